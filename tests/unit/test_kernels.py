"""Device time from traces laid out by hand: who launched what, what was exposed, whom the device waited for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmprof.records.kernels import coverage_kernels, device_of, with_kernels
from vlmprof.stages.kernels import StepKernels, read_kernels, subtract, union

MAIN, BACKWARD = 1, 2
KNOWN = {
    "step/step": ("step", "step"),
    "decoder/forward": ("decoder", "forward"),
    "decoder.0.experts/forward": ("decoder.experts", "forward"),
    "decoder.0.experts/backward": ("decoder.experts", "backward"),
}


def annotation(name: str, begin: float, end: float, thread: int = MAIN) -> dict[str, Any]:
    return {"cat": "user_annotation", "name": name, "ts": begin, "dur": end - begin, "tid": thread, "args": {}}


def call(name: str, at: float, correlation: int = 0, thread: int = MAIN) -> dict[str, Any]:
    return {
        "cat": "cuda_runtime",
        "name": name,
        "ts": at,
        "dur": 1,
        "tid": thread,
        "args": {"correlation": correlation},
    }


def kernel(begin: float, end: float, correlation: int, name: str = "gemm", cat: str = "kernel") -> dict[str, Any]:
    args = {"correlation": correlation, "stream": 7}
    return {"cat": cat, "name": name, "ts": begin, "dur": end - begin, "tid": 7, "args": args}


STEP = annotation("step/step", 0, 10_000)


def rows(step: StepKernels) -> dict[tuple[str, str], tuple[float, ...]]:
    return {(stage, phase): tuple(values) for stage, phase, *values in step.rows}


def test_a_kernel_belongs_to_the_innermost_range_of_its_launch_not_of_its_time() -> None:
    events = [
        STEP,
        annotation("decoder/forward", 1000, 5000),
        annotation("decoder.0.experts/forward", 2000, 3000),
        call("cudaLaunchKernel", 2500, 1),
        call("cudaLaunchKernel", 4000, 2),
        kernel(4500, 6500, 1),  # runs when the host is elsewhere
        kernel(6500, 7000, 2),
    ]
    step = read_kernels(events, KNOWN)
    found = rows(step)
    assert found["decoder.experts", "forward"][:2] == (2.0, 2.0)
    assert found["decoder", "forward"][:2] == (2.5, 0.5)  # with what lies below, and alone
    assert step.busy_ms == 2.5
    assert step.kernels == 2
    assert step.named_ms == step.kernel_ms == 2.5


def test_backward_runs_in_a_thread_of_its_own() -> None:
    events = [
        STEP,
        annotation("decoder.0.experts/backward", 3000, 4000, BACKWARD),
        call("cudaLaunchKernel", 3500, 1, BACKWARD),
        call("cudaLaunchKernel", 8000, 2, BACKWARD),  # in no range of its thread: the step's, which is `other`
        kernel(3600, 3700, 1),
        kernel(8100, 8200, 2),
    ]
    found = rows(read_kernels(events, KNOWN))
    assert found["decoder.experts", "backward"][0] == pytest.approx(0.1)
    assert found["other", "step"][0] == pytest.approx(0.1)
    assert found["decoder.experts", "backward"][3] == pytest.approx(0.9)  # idle while backward was there


def test_overlapping_kernels_count_once_and_communication_behind_compute_is_not_exposed() -> None:
    events = [
        STEP,
        annotation("decoder/forward", 0, 9000),
        *(call("cudaLaunchKernel", 100 + number, number) for number in (1, 2, 3)),
        kernel(1000, 3000, 1),
        kernel(2000, 5000, 2, "ncclDevKernel_SendRecv"),
        kernel(2000, 2500, 3, "Memcpy HtoD", "gpu_memcpy"),
    ]
    step = read_kernels(events, KNOWN)
    assert step.busy_ms == 4.0
    assert step.exposed_ms == 2.0
    assert rows(step)["decoder", "forward"][2] == 2.0
    assert step.idle_ms == 6.0


def test_kernels_of_another_step_are_left_out_and_waits_are_counted_where_they_are() -> None:
    events = [
        annotation("step/step", 1000, 2000),
        annotation("decoder/forward", 1100, 1500),
        call("cudaLaunchKernel", 500, 1),
        kernel(1200, 1300, 1),
        call("cudaStreamSynchronize", 1200),
        call("cudaEventSynchronize", 2500),
        call("cudaGraphLaunch", 1300, 2),
        kernel(1310, 1320, 2),
        kernel(1330, 1340, 2),  # a graph's kernels share its launch
    ]
    step = read_kernels(events, KNOWN)
    assert step.kernels == 2
    assert rows(step)["decoder", "forward"][4] == 1
    assert step.graph_launches == {"decoder": 1}


def test_a_trace_without_our_step_is_no_trace() -> None:
    with pytest.raises(ValueError, match="no range of the step"):
        read_kernels([kernel(0, 1, 1)], KNOWN)


INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=8
)


@given(INTERVALS, INTERVALS)
def test_union_and_difference_are_those_of_sets(one: list[Any], other: list[Any]) -> None:
    def points(intervals: list[Any]) -> set[int]:
        return {point for begin, end in intervals for point in range(begin, end)}

    assert points(union(one)) == points(one)
    assert sum(end - begin for begin, end in union(one)) == len(points(one))
    assert points(subtract(union(one), union(other))) == points(one) - points(other)


def traced(**changes: Any) -> dict[str, Any]:
    facts = {
        "step_ms": 100.0,
        "busy_ms": 40.0,
        "exposed_ms": 0.0,
        "idle_ms": 60.0,
        "kernel_ms": 50.0,
        "named_ms": 45.0,
        "kernels": 10,
        "graph_launches": {},
        "entered": [["decoder", "language.decoder"], ["decoder.dispatcher.dispatch", "dispatcher.token_dispatch"]],
        "rows": [["decoder", "forward", 30.0, 10.0, 0.0, 5.0, 2]],
    }
    return {"kernels": {**facts, **changes}}


def test_what_replays_inside_graphs_is_named_and_never_0() -> None:
    hooked = [
        ("decoder.attention", "layer.self_attention"),
        ("decoder.dispatcher.dispatch", "dispatcher.dispatch_preprocess"),
        ("decoder.dispatcher.dispatch", "dispatcher.token_dispatch"),
    ]
    assert device_of([traced()], hooked).hidden == ()  # type: ignore[union-attr]
    device = device_of([traced(graph_launches={"decoder": 4})], hooked)
    assert device is not None
    attention, dispatch = device.hidden
    assert attention.startswith("decoder.attention: ")
    assert dispatch.startswith("decoder.dispatcher.dispatch in part (dispatcher.dispatch_preprocess): ")
    assert device.hides("decoder.attention")
    assert not device.hides("decoder.dispatcher.dispatch")
    assert device_of([], hooked) is None
    without_pictures = device_of([traced(graph_launches={"decoder": 4})], [("encoder.mlp", "dense")])
    assert without_pictures is not None
    assert without_pictures.hidden == ()  # it did not run at all
    whole_step = device_of([traced(graph_launches={"other": 1})], [("encoder.mlp", "dense")])
    assert whole_step is not None
    assert whole_step.hides("encoder.mlp")
    assert coverage_kernels([traced()]) == 0.9
    (row,) = with_kernels([], [traced(), traced(rows=[["decoder", "forward", 50.0, 20.0, 0.0, 5.0, 2]])])
    assert row.busy_ms.value == 40.0  # type: ignore[union-attr]
    assert row.total_ms.absent == "no spanned step entered it"  # type: ignore[union-attr]


def test_ranks_are_averaged_stage_by_stage() -> None:
    from vlmprof.records.ranks import merge_steps

    def step(**changes: Any) -> dict[str, Any]:
        base = {"event": "step", "index": 0, "ms": 100.0, "ranges": [], "kind": "traced"}
        return {**base, **traced(**changes)}

    other = [["decoder", "forward", 50.0, 20.0, 0.0, 15.0, 2], ["head", "forward", 4.0, 4.0, 0.0, 0.0, 0]]
    entered = [["decoder", "language.decoder"], ["head", "language.output_layer"]]
    (merged,) = merge_steps({0: [step()], 1: [step(busy_ms=60.0, rows=other, entered=entered)]})
    assert [stage for stage, _ in merged["kernels"]["entered"]] == ["decoder", "decoder.dispatcher.dispatch", "head"]
    assert merged["kernels"]["busy_ms"] == 50.0
    found = {(row[0], row[1]): row[2:] for row in merged["kernels"]["rows"]}
    assert found["decoder", "forward"] == [40.0, 15.0, 0.0, 10.0, 2.0]
    assert found["head", "forward"][0] == 2.0
