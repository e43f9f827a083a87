"""The allocator's history, replayed: who holds what at the peak, what a forward keeps, what lived when it failed."""

from typing import Any

from vlmprof.stages.allocator import Block, own_blocks, read_history
from vlmprof.stages.ranges import MemoryTags
from vlmprof.stages.timeline import read_timeline

PARAMETERS = ("decoder.experts", "step", "parameters")


def entry(action: str, address: int, size: int, tag: str = "") -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "user_metadata": tag}


FORWARD, BACKWARD = "decoder.experts|forward|0", "decoder.experts|backward|0"
START = {0: [Block(PARAMETERS, 100)]}


def test_a_tag_tells_stage_phase_and_micro_batch_and_others_are_nobodys() -> None:
    assert MemoryTags.read(FORWARD) == ("decoder.experts", "forward", 0)
    assert MemoryTags.read("head|forward|-1") == ("head", "forward", -1)
    assert MemoryTags.read("somebody else's") is None
    assert MemoryTags.read("") is None


def test_the_peak_and_who_held_it() -> None:
    history = read_history(
        [
            entry("segment_alloc", 0, 1000),
            entry("alloc", 1, 40, FORWARD),
            entry("alloc", 2, 30, FORWARD),
            entry("free_requested", 2, 30, FORWARD),
            entry("free_completed", 2, 30, FORWARD),
            entry("alloc", 3, 20, BACKWARD),
            entry("free_requested", 1, 40, BACKWARD),
            entry("segment_free", 0, 200),
        ],
        START,
        reserved=500,
    )
    timeline = read_timeline({PARAMETERS: 100}, history.events)
    assert timeline.peak == 170
    assert timeline.held_at_peak == {PARAMETERS: 100, ("decoder.experts", "forward", "tensors"): 70}
    assert timeline.peak_where == ("decoder.experts", "forward")
    assert (history.at_peak.allocated, history.at_peak.reserved) == (170, 1500)
    assert history.saved == {(0, "decoder.experts", "forward"): 40}  # what lived when backward began
    assert {address: sum(b.size for b in blocks) for address, blocks in history.live.items()} == {0: 100, 3: 20}


def test_at_a_failed_allocation_the_replay_stops() -> None:
    entries = [
        entry("alloc", 1, 40, FORWARD),
        {"action": "oom", "size": 999, "device_free": 1},
        entry("free_requested", 1, 40, FORWARD),
    ]
    assert set(read_history(entries, START, 0, until_oom=True).live) == {0, 1}
    assert set(read_history(entries, START, 0).live) == {0}


def test_living_blocks_are_their_parameters_and_the_rest_of_a_buffer_is_others() -> None:
    def block(address: int, size: int, state: str = "active_allocated") -> dict[str, Any]:
        return {"address": address, "size": size + 12, "requested_size": size, "state": state}

    blocks = [block(1000, 100), block(2000, 50), block(3000, 8), block(4000, 9, "inactive")]
    snapshot = {"segments": [{"device": 0, "blocks": blocks}, {"device": 1, "blocks": [block(9000, 7)]}]}
    lasting = [(1000, PARAMETERS, 60), (1060, ("head", "step", "parameters"), 30)]
    known = {2000: Block(("encoder", "forward", "tensors"), 50), 3000: Block(("data", "step", "tensors"), 999)}
    assert own_blocks(snapshot, 0, lasting, known) == {
        1000: [
            Block(PARAMETERS, 60),
            Block(("head", "step", "parameters"), 30),
            Block(("other", "step", "parameters"), 10),
        ],
        2000: [Block(("encoder", "forward", "tensors"), 50)],
        3000: [Block(("other", "step", "tensors"), 8)],  # another size at that address: not the same block
    }
