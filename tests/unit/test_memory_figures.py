import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmprof.errors import UserError
from vlmprof.records.memory import _slope, entropy, imbalance
from vlmprof.sizes import parse_size, show_bytes
from vlmprof.stages.timeline import by_stage, read_timeline, saved_activations

A, B = ("decoder", "forward", "tensors"), ("encoder", "backward", "tensors")


def test_the_peak_and_who_held_what_at_it() -> None:
    events = [(A, 10, ("decoder", "forward")), (B, 5, ("head", "forward")), (A, -10, ("decoder", "backward"))]
    timeline = read_timeline({B: 1}, events)
    assert (timeline.peak, timeline.peak_where) == (16, ("head", "forward"))
    assert timeline.held_at_peak == {A: 10, B: 6}
    assert timeline.stage_peaks == {("decoder", "forward"): 11, ("head", "forward"): 16, ("decoder", "backward"): 6}


def test_a_step_that_allocates_nothing_peaks_at_its_start() -> None:
    timeline = read_timeline({A: 7}, [(A, -3, ("decoder", "forward"))])
    assert (timeline.peak, timeline.held_at_peak) == (7, {A: 7})


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 100)), min_size=1, max_size=30))
def test_what_is_held_at_the_peak_adds_up_to_it(sizes: list[tuple[tuple[str, str, str], int]]) -> None:
    events = []
    for number, (owner, size) in enumerate(sizes):
        events.append((owner, size, (owner[0], owner[1])))
        if number % 3 == 2:
            events.append((owner, -size, (owner[0], owner[1])))
    timeline = read_timeline({}, events)
    assert sum(timeline.held_at_peak.values()) == timeline.peak


def test_saved_is_of_the_micro_batch_that_saved_most_in_forward() -> None:
    saved = {(0, "head", "forward"): 5, (1, "head", "forward"): 6, (0, "head", "recompute"): 100}
    assert saved_activations(saved) == {("head", "forward"): 6}
    assert saved_activations({}) == {}


def test_holdings_by_stage() -> None:
    held = {A: 1, ("decoder", "step", "parameters"): 2, ("decoder", "backward", "tensors"): 3, B: 0}
    assert by_stage(held) == {"decoder": {"tensors": 4, "parameters": 2}}


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 * 2**20), ("1.5GB", 1_500_000_000), ("2G", 2 * 10**9), ("1000", 1000), (" 3 kib ", 3072), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1MiB", "0", "1XB", "0.1B", "MiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="is not a size: write 512MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (132.4 * 2**20, "132 MiB"), (5e12, "4.5 TiB")]
)
def test_shown_bytes(count: float, text: str) -> None:
    assert show_bytes(count) == text


def test_load_figures() -> None:
    assert (imbalance([4, 4, 4, 4]), entropy([4, 4, 4, 4])) == (1.0, pytest.approx(1.0))
    assert (imbalance([8, 0, 0, 0]), entropy([8, 0, 0, 0])) == (4.0, pytest.approx(0.0))
    assert (imbalance([0, 0]), entropy([0, 0])) == (1.0, 1.0)


def test_a_slope_knows_how_sure_it_is() -> None:
    slope, sure = _slope([10.0, 20.0, 30.0, 40.0])
    assert slope == pytest.approx(10.0)
    assert sure is not None
    assert sure[0] == pytest.approx(10.0)
    _, unsure = _slope([10.0, 12.0, 9.0, 11.0])
    assert unsure is not None
    assert unsure[0] < 0 < unsure[1]
    assert _slope([1.0, 2.0]) == (1.0, None)
