"""The figures of a CUDA device held against the kernels that ran, and against what is planted."""

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vlmprof.records.figures import Figure
from vlmprof.records.run import Run

Train = Callable[..., tuple[Run, Path]]
PLANTED_MS = 10.0


def value(measured: Any) -> float:
    assert isinstance(measured, Figure), measured
    return measured.value


def read_again(path: Path) -> tuple[dict[tuple[str, str], float], float, float]:
    """Busy by (stage, phase), kernel time in named stages, and all of it, written apart from vlmprof's own reading:
    for each kernel walk over all ranges of its launch's thread, take the shortest that holds the launch."""
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    ranges: dict[Any, list[tuple[float, float, str]]] = {}
    launches, kernels, window = {}, [], (0.0, 0.0)
    for event in events:
        if event["cat"] == "user_annotation" and "/" in event["name"]:
            ranges.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
            if event["name"] == "step/step":
                window, main = (event["ts"], event["ts"] + event["dur"]), event["tid"]
        elif event["cat"] in ("cuda_runtime", "cuda_driver"):
            launches[event["args"]["correlation"]] = (event["tid"], event["ts"])
        elif event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            kernels.append(event)
    busy: dict[tuple[str, str], list[tuple[float, float]]] = {}
    named = whole = 0.0
    for kernel in kernels:
        thread, at = launches[kernel["args"]["correlation"]]
        if not window[0] <= at <= window[1]:
            continue
        holding = [one for one in ranges.get(thread, ()) if one[0] <= at < one[1]]
        holding = holding or [one for one in ranges[main] if one[0] <= at < one[1]]
        name, _, phase = min(holding, key=lambda one: one[1] - one[0])[2].rpartition("/")
        stage = ".".join(part for part in name.split(".") if not part.isdecimal())
        whole += kernel["dur"]
        named += kernel["dur"] if stage not in ("step", "other") else 0.0
        parts = stage.split(".")
        for depth in range(1, len(parts) + 1):
            key = (".".join(parts[:depth]), phase)
            busy.setdefault(key, []).append((kernel["ts"], kernel["ts"] + kernel["dur"]))
    return {key: covered(intervals) / 1e3 for key, intervals in busy.items()}, named, whole


def covered(intervals: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total


def test_layers_are_transformer_engines_and_the_record_is_whole(breakdown: tuple[Run, Path]) -> None:
    run, folder = breakdown
    assert run.outcome.status == "ok", run.outcome
    assert run.environment is not None
    assert run.environment.precision == "bf16"
    assert run.stages[0].total_ms.source == "cuda-event"  # type: ignore[union-attr]
    assert [path.name for path in folder.glob("trace-*")] == ["trace-rank0.json.gz"]
    assert not any(finding.rule in ("host-clock", "no-transformer-engine") for finding in run.findings)


def test_kernels_and_wall_time_are_covered(breakdown: tuple[Run, Path]) -> None:
    run, _ = breakdown
    assert run.coverage_kernels is not None
    assert run.coverage_kernels >= 0.99
    assert run.coverage is not None
    assert run.coverage >= 0.98


def test_busy_equals_an_independent_reading_of_the_trace(breakdown: tuple[Run, Path]) -> None:
    run, folder = breakdown
    again, named, whole = read_again(folder / "trace-rank0.json.gz")
    assert run.device is not None
    step_ms = run.device.step_ms.samples[-1]  # type: ignore[union-attr]
    checked = 0
    for row in run.stages:
        if row.name in ("step", "other") or row.busy_ms is None:
            continue
        last = row.busy_ms.samples[-1]  # type: ignore[union-attr]
        if last > 0.01 * step_ms:
            checked += 1
            assert last == pytest.approx(again[row.name, row.phase], rel=0.02), (row.name, row.phase)
    assert checked >= 8
    assert named / whole >= 0.99


def planted(run: Run, field: str) -> dict[str, float]:
    return {f"{row.name}/{row.phase}": value(getattr(row, field)) for row in run.stages if getattr(row, field)}


def busy_wait(torch: Any) -> None:
    torch.cuda._sleep(int(PLANTED_MS / 1e3 * 1.98e9))


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_planted_kernel_lands_in_its_stage_alone(
    train: Train, breakdown: tuple[Run, Path], monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    import torch
    from megatron.core.transformer.moe.router import TopKRouter

    plain = TopKRouter.forward

    def slow(self: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        if phase == "forward":
            busy_wait(torch)
            return plain(self, hidden, *args, **kwargs)
        return plain(self, Waiting.apply(hidden), *args, **kwargs)

    class Waiting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            busy_wait(torch)
            return gradient

    monkeypatch.setattr(TopKRouter, "forward", slow)
    run, _ = train()
    before, after = planted(breakdown[0], "busy_self_ms"), planted(run, "busy_self_ms")
    gained = {key: after[key] - before.get(key, 0.0) for key in after if key.count("/") and key != "step/step"}
    where = f"decoder.router/{phase}"
    added = 2 * 2 * PLANTED_MS  # layers times micro-batches
    assert gained.pop(where) == pytest.approx(added, rel=0.15)
    assert max(map(abs, gained.values())) < 0.05 * added, gained


def test_a_planted_host_sleep_is_launch_bound_time_and_not_busy(
    train: Train, breakdown: tuple[Run, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from megatron.core.transformer.moe.router import TopKRouter

    plain = TopKRouter.forward

    def late(self: Any, *args: Any, **kwargs: Any) -> Any:
        torch.cuda.synchronize()  # nothing queued: the sleep is felt
        time.sleep(PLANTED_MS / 1e3)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(TopKRouter, "forward", late)
    run, _ = train()
    where, added = "decoder.router/forward", 2 * 2 * PLANTED_MS
    idle_before, idle = planted(breakdown[0], "launch_bound_ms"), planted(run, "launch_bound_ms")
    busy_before, busy = planted(breakdown[0], "busy_self_ms"), planted(run, "busy_self_ms")
    assert idle[where] - idle_before[where] == pytest.approx(added, rel=0.25)
    assert busy[where] - busy_before[where] < 0.02 * added


def test_memory_is_the_allocators_and_somebodys(breakdown: tuple[Run, Path]) -> None:
    run, _ = breakdown
    assert run.memory is not None
    assert run.memory.device is not None
    assert run.memory.peak.source == "allocator"  # type: ignore[union-attr]
    peak = value(run.memory.peak)
    held = sum(
        value(row.memory.held_at_peak) for row in run.stages if row.memory is not None and row.memory.held_at_peak
    )
    assert held == pytest.approx(peak, rel=0.01)
    other = next(row.memory for row in run.stages if row.name == "other" and row.memory is not None)
    assert other.held_at_peak is None or value(other.held_at_peak) < 0.02 * peak
    parameters = value(run.memory.parameters)
    assert parameters == pytest.approx(2 * run.parameters["total"], rel=0.01)  # bf16
    assert value(run.memory.optimizer_state) == pytest.approx(6 * parameters, rel=0.02)  # master, two moments: fp32


def test_a_real_oom_says_who_holds_what(train: Train, breakdown: tuple[Run, Path]) -> None:
    import torch

    assert breakdown[0].memory is not None
    peak = value(breakdown[0].memory.peak)
    try:
        assert torch.cuda.memory_allocated() < 0.05 * peak  # what earlier tests trained is gone
        run, _ = train(memory_limit=int(peak * 0.8), kinds=("counted",))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    outcome = run.outcome
    assert outcome.failure_class == "oom", outcome
    assert outcome.stage is not None
    assert outcome.held is not None
    held = sum(size for row in outcome.held.values() for size in row.values())
    assert 0.5 * peak < held < 0.85 * peak
    assert sum(outcome.held.get("building", {}).values()) < held


def test_nvtx_in_every_step_leaves_no_trace(train: Train) -> None:
    run, folder = train(nvtx=True, kinds=())
    assert run.outcome.status == "ok"
    assert {step.kind for step in run.steps} == {"plain"}
    assert not list(folder.glob("trace-*"))


def test_the_memory_snapshot_is_left(train: Train) -> None:
    _, folder = train(memory_snapshot=True, kinds=("counted",), steps=1)
    snapshot = folder / "memory-rank0.pickle"
    assert snapshot.stat().st_size > 100_000
