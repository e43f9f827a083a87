"""A counted step on a CUDA device: who holds what, from the allocator's own history with the stages as tags.

Nothing is intercepted: each allocation and release bears the tag of the stage and phase that was running
(`MemoryTags`), and the history is read when the step is over. What lived before is known by its address: parameters,
gradients and optimizer state belong to the stage whose module they serve, the rest to who made it in an earlier
counted step.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vlmprof.stages.ranges import MemoryTags
from vlmprof.stages.timeline import Owner

__all__ = ["Block", "DeviceMemory", "History", "own_blocks", "read_history"]

OTHER = ("other", "step")


class Block(NamedTuple):
    """A living allocation."""

    owner: Owner
    size: int
    """As asked for; the allocator rounds it up."""
    micro_batch: int = -1


@dataclass
class DeviceMemory:
    """The whole allocator at one moment; bytes."""

    allocated: int
    reserved: int


@dataclass
class History:
    """One counted step, read from the allocator's entries; bytes."""

    events: list[tuple[Owner, int, tuple[str, str]]] = field(default_factory=list)
    """(owner, gained or lost, where it happened), as `read_timeline` takes them."""
    live: dict[int, list[Block]] = field(default_factory=dict)
    """Address -> what lives at the end, or where it stopped."""
    at_peak: DeviceMemory = field(default_factory=lambda: DeviceMemory(0, 0))
    saved: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """(micro-batch, stage, phase) -> bytes that its forward made and that lived when its backward began."""


def own_blocks(
    snapshot: Mapping[str, Any],
    device: int,
    lasting: Iterable[tuple[int, Owner, int]],
    known: Mapping[int, Block],
) -> dict[int, list[Block]]:
    """Address -> whose the living blocks of a snapshot are. One block may serve many, as Megatron's buffers do.

    Args:
        snapshot: of `torch.cuda.memory._snapshot()`.
        lasting: (address, owner, bytes) of parameters, gradients and optimizer state.
        known: blocks of earlier steps by address.
    """
    sizes = {
        block["address"]: block.get("requested_size", block["size"])
        for segment in snapshot["segments"]
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    starts = sorted(sizes)
    shares: dict[int, dict[Owner, int]] = {}
    for address, owner, size in lasting:
        number = bisect_right(starts, address) - 1
        if number >= 0 and address < starts[number] + sizes[starts[number]]:
            owned = shares.setdefault(starts[number], {})
            owned[owner] = owned.get(owner, 0) + size
    found: dict[int, list[Block]] = {}
    for address, size in sizes.items():
        owned = shares.get(address, {})
        rest = size - sum(owned.values())
        before = known.get(address)
        if not owned and before is not None and before.size == size:
            found[address] = [before]
            continue
        blocks = [Block(owner, share) for owner, share in owned.items()]
        if rest > 0:
            blocks.append(Block((*OTHER, blocks[0].owner[2] if blocks else "tensors"), rest))
        found[address] = blocks
    return found


def read_history(
    entries: Iterable[Mapping[str, Any]], start: Mapping[int, list[Block]], reserved: int, until_oom: bool = False
) -> History:
    """Replay the allocator's entries of one step on what lived at its start.

    Args:
        entries: of `device_traces`, in order: action, addr, size, user_metadata.
        start: address -> whose the blocks at the start are.
        reserved: bytes in segments at the start.
        until_oom: stop at the first failed allocation: what lived then.
    """
    history = History()
    live = {address: list(blocks) for address, blocks in start.items()}
    allocated = sum(block.size for blocks in live.values() for block in blocks)
    history.at_peak = DeviceMemory(allocated, reserved)
    counted: set[int] = set()
    for entry in entries:
        action, size = entry["action"], entry["size"]
        if action == "oom":
            if until_oom:
                break
            continue
        address = entry["addr"]
        if action in ("segment_alloc", "segment_map"):
            reserved += size
        elif action in ("segment_free", "segment_unmap"):
            reserved -= size
        elif action == "alloc":
            stage, phase, number = MemoryTags.read(entry.get("user_metadata") or "") or (*OTHER, -1)
            if phase == "backward" and number not in counted:
                counted.add(number)
                _note_saved(history, live, number)
            block = Block((stage, phase, "tensors"), size, number)
            live[address] = [block]
            history.events.append((block.owner, size, (stage, phase)))
            allocated += size
            if allocated > history.at_peak.allocated:
                history.at_peak = DeviceMemory(allocated, reserved)
        elif action == "free_requested":
            where = (MemoryTags.read(entry.get("user_metadata") or "") or OTHER)[:2]
            for block in live.pop(address, ()):
                history.events.append((block.owner, -block.size, where))
                allocated -= block.size
    history.live = live
    return history


def _note_saved(history: History, live: Mapping[int, list[Block]], number: int) -> None:
    """The first allocation of a backward: what this micro-batch's forward made and is there, was kept for it."""
    for blocks in live.values():
        for block in blocks:
            stage, phase, _ = block.owner
            if phase == "forward" and block.micro_batch == number:
                key = (number, stage, phase)
                history.saved[key] = history.saved.get(key, 0) + block.size
