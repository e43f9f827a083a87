"""From the run records of two sides to a comparison: pure."""

import math
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from vlmprof.compare.attribution import stage_changes, stage_times
from vlmprof.compare.caveats import caveats
from vlmprof.compare.comparable import NotComparable, check_comparable, check_outcomes
from vlmprof.compare.judgement import judge
from vlmprof.compare.losses import compare_losses
from vlmprof.compare.memory import memory_changes, peak_change
from vlmprof.compare.samples import STEP, collect, scales_of
from vlmprof.compare.statistics import Band
from vlmprof.compare.summary import overall, relation, summarize
from vlmprof.compare.thresholds import Thresholds
from vlmprof.compare.values import check_numbers
from vlmprof.errors import UserError
from vlmprof.records.comparison import Comparison, Side
from vlmprof.records.run import Run

__all__ = ["compare"]

ATTRIBUTED = 40
"""Runs of a side that stages and memory are told from: more would make them no clearer."""


def compare(
    a: Sequence[Run],
    b: Sequence[Run],
    *,
    thresholds: Thresholds,
    allow: Collection[str] = (),
    normalize: str = "",
    band: Band | None = None,
    labels: tuple[str, str] = ("A", "B"),
    sources: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Comparison:
    """Is B worse than A?

    Args:
        a: run records of side A: the old, the accepted, the good.
        b: run records of side B.
        thresholds: what counts as a change.
        allow: names of refusals to lift.
        normalize: `useful-tokens`, or empty.
        band: the A/A band of the platform, for sides of one run.
        labels: what the sides are called.
        sources: where the records of either side were read from.

    Raises:
        NotComparable: different work, or a run that did not come to its end; the message says what and the way out.
        UserError: a side is empty, an unknown name, a record with values that are no numbers.
    """
    for side, label in zip((a, b), labels, strict=True):
        if not side:
            raise UserError(f"{label}: there is no run to compare")
        check_outcomes(side, label)
        for run in side:
            check_numbers(run, f"{label}: run of {run.created}")
    lifted, unknown = check_comparable(a, b, labels, allow, normalize)
    scales = scales_of([*a, *b], normalize)
    told = collect(a, b, scales, normalize)
    samples = [sample for sample in told if not thresholds.only or sample.name in thresholds.only]
    if not samples:
        what = " or ".join(thresholds.only) or "figure"
        raise NotComparable(f"{labels[0]} and {labels[1]} have no {what} in common: run both with --stage-breakdown")
    metrics = judge(samples, thresholds, band)
    verdict = overall(metrics)
    shown_a, shown_b = _evenly(a), _evenly(b)
    stages = stage_changes(
        stage_times([*shown_a, *shown_b]), shown_a, shown_b, scales_of([*shown_a, *shown_b], normalize)
    )
    moved = {row.name: row for row in metrics}
    step = moved.get(STEP)
    step_change = step.b - step.a if step else None
    observed = math.fsum(row.change_ms for row in stages) if stages else None
    losses = compare_losses(a[0], b[0])
    peak = peak_change(shown_a, shown_b)
    memory = memory_changes(shown_a, shown_b)
    return Comparison(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        a=_side(a, labels[0], sources[0]),
        b=_side(b, labels[1], sources[1]),
        verdict=verdict,
        summary=summarize(verdict, metrics, stages, memory, losses, labels),
        allowed=tuple(lifted),
        normalized=normalize,
        caveats=(*unknown, *caveats(a, b, labels)),
        method=_method(thresholds, band),
        metrics=tuple(metrics),
        stages=tuple(stages),
        step_change_ms=step_change,
        observed_change_ms=observed,
        unexplained_ms=math.fsum(row.change_ms for row in stages if row.name == "other") if stages else None,
        attribution=relation(step_change, observed, a, b),
        memory=tuple(memory),
        memory_change_bytes=peak,
        memory_unexplained_bytes=None
        if peak is None
        else peak - math.fsum(row.change_bytes for row in memory if row.category == "held_at_peak"),
        losses=losses,
    )


def _evenly(runs: Sequence[Run]) -> Sequence[Run]:
    """At most `ATTRIBUTED` of the runs, from all over the side."""
    if len(runs) <= ATTRIBUTED:
        return runs
    return [runs[place * len(runs) // ATTRIBUTED] for place in range(ATTRIBUTED)]


def _side(runs: Sequence[Run], label: str, sources: Sequence[str]) -> Side:
    first = runs[0]
    environment = first.environment
    packages = environment.packages if environment else {}
    core, torch = packages.get("megatron-core"), packages.get("torch")
    created = sorted(run.created for run in runs)
    return Side(
        label=label,
        runs=len(runs),
        created=(created[0], created[-1]),
        workload=f"{first.workload.name} {first.workload.hash}".rstrip(),
        platform=environment.platform if environment else "unknown",
        megatron=core.version if core else "",
        commit=core.commit if core else "",
        torch=torch.version if torch else "",
        sources=tuple(sources),
    )


def _method(thresholds: Thresholds, band: Band | None) -> str:
    known = f"; single runs are judged by the A/A band of {band.runs} accepted runs" if band else ""
    return (
        f"one value a run, paired by batch; at most {thresholds.false_alarms:.0%} of comparisons of a thing with "
        f"itself find anything worse (one-sided, weighted Holm over the measured metrics){known}"
    )
