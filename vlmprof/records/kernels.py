"""Device time of a run from its traced steps: what the kernels of each stage took, and when the device had none."""

import statistics
from collections.abc import Iterable, Sequence

from vlmprof.records.figures import Absent, Figure, Measured, Source
from vlmprof.records.journal import Event
from vlmprof.records.run import Device, Stage
from vlmprof.records.stage_times import Key
from vlmprof.records.stage_tree import STAGES

__all__ = ["coverage_kernels", "device_of", "with_kernels"]


def _mean(samples: Sequence[float], unit: str = "ms", source: Source = "kernel") -> Figure:
    return Figure(value=statistics.fmean(samples), unit=unit, source=source, samples=tuple(samples))


Point = tuple[str, str]
"""(stage, hook point)"""


def device_of(traced: Sequence[Event], in_layers: Iterable[Point]) -> Device | None:
    """The device over whole traced steps; None where none was traced. `in_layers`: the stages within layers."""
    if not traced:
        return None
    steps = [step["kernels"] for step in traced]

    def mean(name: str) -> Figure:
        return _mean([step[name] for step in steps])

    return Device(
        step_ms=mean("step_ms"),
        busy_ms=mean("busy_ms"),
        exposed_ms=mean("exposed_ms"),
        launch_bound_ms=mean("idle_ms"),
        syncs=_mean([sum(row[6] for row in step["rows"]) for step in steps], "calls"),
        kernels=statistics.fmean(step["kernels"] for step in steps),
        hidden=tuple(_hidden(steps, in_layers)),
    )


def _hidden(steps: Sequence[Event], in_layers: Iterable[Point]) -> list[str]:
    """Stages of layers that were never entered while that side of the model launched CUDA graphs: they replayed inside;
    or parts of them."""
    launches: dict[str, float] = {}
    for step in steps:
        for stage, count in step["graph_launches"].items():
            launches[stage] = launches.get(stage, 0.0) + count / len(steps)
    sides = {_side(stage) for stage in launches}
    seen = {(stage, point) for step in steps for stage, point in step["entered"]}
    entered = {stage for stage, _ in seen}
    unseen: dict[str, list[str]] = {}
    for stage, point in in_layers:
        # A graph that no stage launched may hold anything; else a side that launched none just did not run.
        if (stage, point) not in seen and sides & {_side(stage), "other"}:
            unseen.setdefault(stage, []).append(point)
    within = ", ".join(f"{count:.0f} in {stage}" for stage, count in launches.items())
    reason = f"replayed inside CUDA graphs (launches a step: {within}), whose time stands there"
    in_part = {stage: f" in part ({', '.join(points)})" if stage in entered else "" for stage, points in unseen.items()}
    return [f"{stage}{in_part[stage]}: {reason}" for stage in STAGES if stage in unseen]


def _side(stage: str) -> str:
    """`encoder` of `encoder.attention`."""
    return stage.partition(".")[0]


def coverage_kernels(traced: Sequence[Event]) -> float | None:
    """Kernel time in a named stage over all kernel time."""
    whole = sum(step["kernels"]["kernel_ms"] for step in traced)
    return sum(step["kernels"]["named_ms"] for step in traced) / whole if whole else None


def with_kernels(rows: list[Stage], traced: Sequence[Event]) -> list[Stage]:
    """Rows with their device times; a stage that only traced steps saw gets rows without a span."""
    if not traced:
        return rows
    seen: dict[Key, list[Sequence[float]]] = {}
    nothing = (0.0, 0.0, 0.0, 0.0, 0)
    for number, step in enumerate(traced):
        for stage, phase, *values in step["kernels"]["rows"]:
            samples = seen.setdefault((stage, phase), [nothing] * len(traced))
            samples[number] = values
    known = {(row.name, row.phase) for row in rows}
    untimed: Measured = Absent(absent="no spanned step entered it")
    extra = [
        Stage.model_validate(
            {"name": stage, "phase": phase, "total_ms": untimed, "self_ms": untimed, "ranges": 0, "share": 0}
        )
        for stage, phase in seen
        if (stage, phase) not in known
    ]
    return [_with(row, seen.get((row.name, row.phase)), traced) for row in _in_order([*rows, *extra])]


def _in_order(rows: list[Stage]) -> list[Stage]:
    return sorted(rows, key=lambda row: STAGES.index(row.name))


def _with(row: Stage, samples: list[Sequence[float]] | None, traced: Sequence[Event]) -> Stage:
    if row.name == "step":
        steps = [step["kernels"] for step in traced]
        whole = {
            "busy_ms": _mean([step["busy_ms"] for step in steps]),
            "exposed_ms": _mean([step["exposed_ms"] for step in steps]),
        }
        return row.model_copy(update=whole)
    if samples is None:
        return row
    busy, own, exposed, idle, syncs = zip(*samples, strict=True)
    figures = {
        "busy_ms": _mean(busy),
        "busy_self_ms": _mean(own),
        "exposed_ms": _mean(exposed),
        "launch_bound_ms": _mean(idle),
        "syncs": statistics.fmean(syncs),
    }
    return row.model_copy(update=figures)
