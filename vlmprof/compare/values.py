"""One value a run: what each metric is read from, over the batches that all the runs trained on."""

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple

from vlmprof.errors import UserError
from vlmprof.records.figures import Figure, Measured, Source
from vlmprof.records.run import Run, StepKind

__all__ = [
    "EXACT",
    "METRICS",
    "MetricRow",
    "batches_of",
    "check_numbers",
    "figure_values",
    "shared_batches",
    "step_values",
]

EXACT: tuple[Source, ...] = ("tensor-bytes", "analytic", "counted")
"""Sources that give the same digits for the same work."""


class MetricRow(NamedTuple):
    name: str
    title: str
    read: Callable[[Run], Measured | None]
    kind: StepKind
    """Of the steps whose samples the figure has."""
    per_token: bool = False
    """Whether `--normalize useful-tokens` divides it."""
    direction: Literal["lower-better", "higher-better"] = "lower-better"


def _memory(name: str) -> Callable[[Run], Measured | None]:
    return lambda run: getattr(run.memory, name) if run.memory else None


def _device(name: str) -> Callable[[Run], Measured | None]:
    return lambda run: getattr(run.device, name) if run.device else None


def _router(name: str) -> Callable[[Run], Measured | None]:
    return lambda run: getattr(run.router, name, None)


def _flops(run: Run) -> Measured | None:
    """All FLOPs of a step, recomputation included: samples are those of plain steps."""
    if run.flops is None:
        return None
    parts = [part for phases in run.flops.stages.values() for part in phases.values() if isinstance(part, Figure)]
    if not parts:
        return None
    samples = tuple(math.fsum(values) for values in zip(*(part.samples for part in parts), strict=False))
    return Figure(value=math.fsum(part.value for part in parts), unit="FLOP", source="analytic", samples=samples)


METRICS: tuple[MetricRow, ...] = (
    MetricRow("device_busy_ms", "device busy", _device("busy_ms"), "traced", per_token=True),
    MetricRow("exposed_ms", "exposed comms", _device("exposed_ms"), "traced", per_token=True),
    MetricRow("flops", "FLOPs", _flops, "plain", per_token=True),
    MetricRow("memory_peak", "peak memory", _memory("peak"), "counted"),
    MetricRow("memory_held_after", "memory after a step", _memory("held_after"), "counted"),
    MetricRow("saved_activations", "saved activations", _memory("saved_activations"), "counted"),
    MetricRow("parameter_bytes", "parameters", _memory("parameters"), "counted"),
    MetricRow("gradient_bytes", "gradients", _memory("gradients"), "counted"),
    MetricRow("optimizer_bytes", "optimizer state", _memory("optimizer_state"), "counted"),
    MetricRow("host_rss", "host memory", _memory("host_rss"), "counted"),
    MetricRow("dispatcher_bytes", "dispatcher bytes", _router("bytes_sent"), "counted", per_token=True),
    MetricRow("dropped_tokens", "dropped tokens", _router("dropped_tokens"), "counted", per_token=True),
)
"""Every metric besides the step time. Rates (tokens/s, TFLOP/s, MFU) are the step time again and are not judged
twice."""


def batches_of(run: Run, kind: StepKind) -> list[int]:
    """The batches of the measured steps of one kind, in order: what samples of that kind belong to."""
    steps = [step for step in run.steps if step.kind == kind]
    measured = [step for step in steps if not step.warmup]
    # A run that counted its first step only has that one's samples (records/assemble.py).
    return [step.batch for step in (measured or (steps[-1:] if kind == "counted" else []))]


def shared_batches(runs: Sequence[Run], kind: StepKind) -> list[int]:
    """The batches that every run has a measured step of this kind for; runs without any are passed over."""
    found = [batches for run in runs if (batches := batches_of(run, kind))]
    if not found:
        return []
    common = set(found[0]).intersection(*found[1:])
    return [batch for batch in dict.fromkeys(found[0]) if batch in common]


def step_values(runs: Sequence[Run], shared: Collection[int]) -> list[float | None]:
    """Logarithm of each run's plain step time in ms; None for a run without plain steps.

    Paired by batch: of every batch, how far the run's time lies above the mean log time of all runs; the median of
    these over the batches, put back on the scale of a typical batch. Without shared batches: the median of its steps.
    """
    times = [_by_batch(run) for run in runs]
    if not shared:
        return [statistics.median(map(math.log, own.values())) if own else None for own in times]
    told = [own for own in times if own]
    typical = {batch: statistics.fmean(math.log(own[batch]) for own in told) for batch in shared}
    level = statistics.median(typical.values())
    return [
        level + statistics.median(math.log(own[batch]) - typical[batch] for batch in shared) if own else None
        for own in times
    ]


def _by_batch(run: Run) -> dict[int, float]:
    return {step.batch: step.ms for step in run.steps if step.kind == "plain" and not step.warmup}


def figure_values(
    runs: Sequence[Run], row: MetricRow, batches: Sequence[Sequence[int]]
) -> tuple[list[Figure | None], bool]:
    """Each run's figure, None where it lacks it; and whether all of them are of the same batches.

    A figure is the median of its samples over the batches that all runs share.

    Args:
        runs: of both sides.
        row: what to read.
        batches: of each run, which batch each sample of `row.kind` belongs to; empty where numbers of batches do not
            mean the same in all runs.
    """
    told = [measured if isinstance(measured := row.read(run), Figure) else None for run in runs]
    having = [own for own, measured in zip(batches, told, strict=True) if measured is not None]
    shared = set(having[0]).intersection(*having[1:]) if having else set()
    if not shared or any(len(own) != len(m.samples) for own, m in zip(batches, told, strict=True) if m):
        return list(told), False
    return [measured and _over(measured, own, shared) for measured, own in zip(told, batches, strict=True)], True


def _over(measured: Figure, batches: Sequence[int], shared: Collection[int]) -> Figure:
    if len(batches) == len(shared):
        kept: Sequence[float] = measured.samples
    else:
        kept = [sample for batch, sample in zip(batches, measured.samples, strict=True) if batch in shared]
    return measured.model_copy(update={"value": statistics.median(kept)})


def check_numbers(run: Run, where: str) -> None:
    """Raises:
    UserError: a step time, or a figure that is compared, is not a finite number (a step time: above 0).
    """
    for step in run.steps:
        if not (math.isfinite(step.ms) and step.ms > 0):
            raise UserError(f"{where}: the time of step {step.index} is {step.ms:g} ms: the record is damaged")
    for row in METRICS:
        measured = row.read(run)
        if isinstance(measured, Figure) and not all(map(math.isfinite, (measured.value, *measured.samples))):
            raise UserError(f"{where}: {row.title} has a sample that is no number: the record is damaged")
    for stage in run.stages:
        own = stage.self_ms
        if isinstance(own, Figure) and not all(map(math.isfinite, (own.value, *own.samples))):
            raise UserError(f"{where}: the time of stage {stage.name} has a sample that is no number")
