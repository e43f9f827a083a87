"""Tonight's run held against what was accepted: what is exact digit by digit, and times where they were interleaved."""

from collections.abc import Sequence
from dataclasses import replace

from vlmprof.bisect.metrics import LOSSES
from vlmprof.compare import Thresholds, compare, load_thresholds, may_be_worse
from vlmprof.nightly.verdict import Problem
from vlmprof.records.comparison import Comparison, Metric
from vlmprof.records.run import Run

__all__ = ["TIMES", "exactly", "of_metrics", "of_times", "thresholds", "untold_times"]

TIMES = ("step_ms",)
"""Metrics that A/B is for: it runs plain steps only."""


def thresholds(slowdown: float | None) -> Thresholds:
    """The shipped ones, with the suite's own for times."""
    shipped = load_thresholds()
    if slowdown is None:
        return shipped
    return replace(shipped, changes={**shipped.changes, **dict.fromkeys(TIMES, slowdown)})


def exactly(good: Sequence[Run], run: Run, labels: tuple[str, str]) -> Comparison:
    """`run` against the accepted runs.

    Raises:
        NotComparable: they do not do the same work.
    """
    return compare(good, [run], thresholds=thresholds(None), labels=labels)


def of_metrics(comparison: Comparison | None) -> Problem | None:
    """What is worse of all that is exact, the losses included."""
    if comparison is None:
        return None
    worse = {row.name: _words(row) for row in comparison.metrics if row.exact and row.verdict == "worse"}
    if comparison.losses is not None and comparison.losses.reading == "diverged":
        worse[LOSSES] = comparison.losses.text
    return Problem("metric", ", ".join(worse), "; ".join(worse.values())) if worse else None


def of_times(ab: Comparison | None) -> Problem | None:
    """What is surely slower."""
    rows = [row for row in ab.metrics if row.name in TIMES and row.verdict == "worse"] if ab else []
    if not rows:
        return None
    names = ", ".join(row.name for row in rows)
    return Problem("time", names, "; ".join(map(_words, rows)), change=max(row.change or 0.0 for row in rows))


def untold_times(ab: Comparison | None) -> str:
    """What could not be told of times, and what would tell; empty where all could."""
    rows = [row for row in ab.metrics if row.name in TIMES and may_be_worse(row)] if ab else []
    return "; ".join(f"{row.title} is undecided: {row.reason}" for row in rows)


def _words(row: Metric) -> str:
    """Without the metric's own word for "exact": the night compares exactly, and that is what it is read for."""
    change = f" {row.change:+.1%}" if row.change is not None else ""
    return f"{row.title}{change} ({row.reason.removeprefix('deterministic, and ')})"
