from hypothesis import given
from hypothesis import strategies as st

from vlmprof.records.stage_tree import STAGES, ancestors
from vlmprof.stages.attribution import LEAVE, attribute
from vlmprof.stages.clock import WallClock
from vlmprof.stages.tree import Range


def milliseconds(earlier: float, later: float) -> float:
    return later - earlier


def test_time_belongs_to_the_innermost_range() -> None:
    events = [(0.0, 0), (1.0, 1), (3.0, 2), (6.0, LEAVE), (10.0, LEAVE), (15.0, LEAVE)]
    times = attribute(events, milliseconds)
    assert {key: (time.self_ms, time.count) for key, time in times.items()} == {0: (6.0, 1), 1: (6.0, 1), 2: (3.0, 1)}


def test_a_rerun_inside_backward_is_taken_off_it() -> None:
    backward, rerun = 1, 2
    events = [(0.0, 0), (0.0, backward), (2.0, rerun), (7.0, LEAVE), (8.0, LEAVE), (8.0, LEAVE)]
    times = attribute(events, milliseconds)
    assert (times[backward].self_ms, times[rerun].self_ms) == (3.0, 5.0)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, int]]:
    """Balanced events under one outermost range, at increasing times."""
    events, depth, now = [(0.0, 0)], 1, 0.0
    for _ in range(draw(st.integers(0, 40))):
        now += draw(st.floats(0, 5))
        if depth > 1 and draw(st.booleans()):
            events.append((now, LEAVE))
            depth -= 1
        else:
            events.append((now, draw(st.integers(1, 5))))
            depth += 1
    return events + [(now + 1.0, LEAVE)] * depth


@given(histories())
def test_self_times_add_up_to_the_step(events: list[tuple[float, int]]) -> None:
    times = attribute(events, milliseconds)
    assert abs(sum(time.self_ms for time in times.values()) - events[-1][0]) < 1e-6
    assert all(time.self_ms >= 0 for time in times.values())


def test_range_names() -> None:
    assert Range("decoder.router", 3, "forward").name == "decoder.3.router/forward"
    assert Range("decoder.dispatcher.combine", 0, "backward").name == "decoder.0.dispatcher.combine/backward"
    assert Range("projector", None, "backward").name == "projector/backward"
    assert Range("decoder", 2, "recompute").name == "decoder.2/recompute"


def test_what_may_lie_inside_what() -> None:
    decoder, layer = Range("decoder", None, "backward"), Range("decoder", 3, "backward")
    router = Range("decoder.router", 3, "backward")
    assert decoder.holds(layer)
    assert layer.holds(router)
    assert not layer.holds(Range("decoder.router", 2, "backward"))
    assert not router.holds(layer)
    assert not Range("encoder", None, "backward").holds(router)


def test_the_tree_has_every_parent_before_its_children() -> None:
    for stage in STAGES:
        for parent in ancestors(stage):
            assert STAGES.index(parent) < STAGES.index(stage)


def test_the_wall_clock_gives_milliseconds() -> None:
    assert WallClock.milliseconds(1_000_000, 3_500_000) == 2.5
