"""A verdict a metric: exact figures digit by digit, measured ones by statistics, all corrected for their number."""

import math
import statistics
from collections.abc import Sequence

from vlmprof.compare.samples import LEAST_BAND, STEP, Sample
from vlmprof.compare.statistics import Band, Evidence, evidence, holm, runs_needed
from vlmprof.compare.thresholds import Thresholds
from vlmprof.records.comparison import Metric, Verdict
from vlmprof.sizes import show_bytes

__all__ = ["judge"]

ENOUGH = 5
"""Runs a side that are asked for where nothing is known of the spread."""
MOST_RUNS = 500
"""Beyond it nobody is told how many more runs would do."""


def judge(samples: Sequence[Sample], thresholds: Thresholds, band: Band | None) -> list[Metric]:
    """A metric a sample, in their order.

    The chance that an A/A comparison finds any metric worse is `thresholds.false_alarms`: weighted Holm over the
    one-sided p-values of all measured metrics (`holm`), the step time's weight being `step_share`.
    """
    found = {sample.name: _exact(sample, thresholds) for sample in samples if sample.exact}
    measured = [sample for sample in samples if not sample.exact and min(*sample.a, *sample.b) > 0]
    found |= {
        sample.name: _without_logarithm(sample, thresholds)
        for sample in samples
        if not sample.exact and sample not in measured
    }
    weights = _weights(measured, thresholds.step_share)
    told = [_evidence(one, thresholds.false_alarms * weights[one.name], band) for one in measured]
    tested = [(one, seen) for one, seen in zip(measured, told, strict=True) if seen.decided_by]
    shares = [weights[one.name] for one, _ in tested]
    adjusted: dict[str, float] = {}
    for upward in (True, False):
        p = [seen.one_sided if (seen.change > 0) == upward else 1 - seen.one_sided for _, seen in tested]
        for (one, seen), value in zip(tested, holm(p, shares), strict=True):
            if (seen.change > 0) == upward:
                adjusted[one.name] = value
    for one, seen in zip(measured, told, strict=True):
        level = thresholds.false_alarms * weights[one.name]
        found[one.name] = _measured(one, seen, adjusted.get(one.name), thresholds, level)
    return [found[sample.name] for sample in samples]


def _weights(samples: Sequence[Sample], step_share: float) -> dict[str, float]:
    """Shares of the level, 1 together."""
    others = sum(sample.name != STEP for sample in samples)
    if others in (0, len(samples)):
        return {sample.name: 1 / len(samples) for sample in samples}
    rest = (1 - step_share) / others
    return {sample.name: step_share if sample.name == STEP else rest for sample in samples}


def _evidence(sample: Sample, level: float, band: Band | None) -> Evidence:
    a, b = ([math.log(value) for value in side] for side in (sample.a, sample.b))
    spread = band.spread.get(sample.name) if band else None
    return evidence(a, b, level, spread, band.runs - 1 if band else 0)


def _exact(sample: Sample, thresholds: Thresholds) -> Metric:
    before, after = statistics.median(sample.a), statistics.median(sample.b)
    threshold = thresholds.changes[sample.name]
    change = after / before - 1 if before else None
    worse = (after > before) == sample.lower_better
    verdict: Verdict = "same"
    if before == after:
        reason = "identical"
    elif change is not None and abs(change) <= threshold:
        reason = f"differs by {_amount(after - before, sample.unit)}, within the threshold of {threshold:.1%}"
    else:
        verdict = "worse" if worse else "better"
        reason = f"deterministic, and {_amount(after - before, sample.unit)} {'more' if after > before else 'less'}"
    return Metric.model_validate(
        {
            **sample.facts,
            "a": before,
            "b": after,
            "change": change,
            "threshold": threshold,
            "verdict": verdict,
            "reason": reason,
        }
    )


def _amount(change: float, unit: str) -> str:
    return show_bytes(abs(change)) if unit == "bytes" else f"{abs(change):,.6g} {unit}"


def _without_logarithm(sample: Sample, thresholds: Thresholds) -> Metric:
    """Zeros among measured values: no ratio, so no statistics; equal medians of 0 are the same."""
    before, after = statistics.median(sample.a), statistics.median(sample.b)
    nothing = not any((*sample.a, *sample.b))
    return Metric.model_validate(
        {
            **sample.facts,
            "a": before,
            "b": after,
            "threshold": thresholds.changes[sample.name],
            "verdict": "same" if nothing else "undecided",
            "reason": "0 in every run" if nothing else "0 in some runs: there is no ratio to judge",
        }
    )


def _measured(sample: Sample, seen: Evidence, adjusted: float | None, thresholds: Thresholds, level: float) -> Metric:
    threshold = thresholds.changes[sample.name]
    change = math.expm1(seen.change)
    interval = (math.expm1(seen.interval[0]), math.expm1(seen.interval[1])) if seen.interval else None
    verdict = _verdict(change, interval, adjusted, threshold, thresholds.false_alarms, sample.lower_better)
    missing = _missing(sample, seen, threshold, level) if verdict == "undecided" else None
    return Metric.model_validate(
        {
            **sample.facts,
            "a": math.exp(seen.centres[0]),
            "b": math.exp(seen.centres[1]),
            "change": change,
            "interval": interval,
            "spread": (_spread(sample.a), _spread(sample.b)),
            "p": seen.p,
            "decided_by": seen.decided_by,
            "p_adjusted": adjusted,
            "threshold": threshold,
            "verdict": verdict,
            "reason": _reason(verdict, interval, adjusted, threshold, seen, missing),
            "runs_missing": missing,
        }
    )


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(map(math.log, values)) if len(values) > 1 else None


def _verdict(
    change: float,
    interval: tuple[float, float] | None,
    adjusted: float | None,
    threshold: float,
    level: float,
    lower_better: bool,
) -> Verdict:
    if adjusted is not None and adjusted <= level and abs(change) > threshold:
        return "worse" if (change > 0) == lower_better else "better"
    if interval is not None and -threshold < interval[0] and interval[1] < threshold:
        return "same"
    return "undecided"


def _missing(sample: Sample, seen: Evidence, threshold: float, level: float) -> int | None:
    """Runs more on each side, or None where no sensible number would do."""
    have = min(len(sample.a), len(sample.b))
    if seen.error is None:
        return max(ENOUGH - have, 1)
    needed = runs_needed(seen.change, seen.error, math.log1p(threshold), level)
    return max(needed - have, 1) if needed <= MOST_RUNS else None


def _reason(
    verdict: Verdict,
    interval: tuple[float, float] | None,
    adjusted: float | None,
    threshold: float,
    seen: Evidence,
    missing: int | None,
) -> str:
    if verdict in ("worse", "better"):
        return f"beyond the threshold of {threshold:.1%} and beyond noise (p = {adjusted:.2g}, {seen.decided_by})"
    if verdict == "same":
        return f"the interval lies within the threshold of {threshold:.1%}"
    more = f"about {missing} more on each side would tell" if missing else f"more than {MOST_RUNS} runs would be needed"
    if interval is None or seen.error is None:
        runs = "run" if missing == 1 else "runs"
        baseline = f"a baseline of {LEAST_BAND} runs"
        return f"nothing is known of how far such runs lie apart: {missing} more {runs} on each side, or {baseline}"
    noise = f"single runs lie {math.expm1(seen.error):.1%} apart"
    return f"between {interval[0]:+.1%} and {interval[1]:+.1%}, the threshold being {threshold:.1%}: {noise}; {more}"
