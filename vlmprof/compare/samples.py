"""What there is to judge: each metric with one value a run on both sides."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlmprof.compare.comparable import NotComparable
from vlmprof.compare.statistics import Band
from vlmprof.compare.values import EXACT, METRICS, MetricRow, batches_of, figure_values, shared_batches, step_values
from vlmprof.records.figures import Source
from vlmprof.records.run import Run

__all__ = ["LEAST_BAND", "STEP", "Sample", "band_of", "collect", "scales_of"]

STEP = "step_ms"
PER_TOKENS = 1000.0
"""Normalized figures are for so many useful tokens."""
LEAST_BAND = 5
"""Runs that an A/A band takes: fewer know too little of their own spread."""


@dataclass(frozen=True)
class Sample:
    """A metric on both sides, one value a run."""

    name: str
    title: str
    unit: str
    source: Source
    a: Sequence[float]
    b: Sequence[float]
    exact: bool
    lower_better: bool = True

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of its metric that need no judging."""
        return {
            **{name: getattr(self, name) for name in ("name", "title", "unit", "source", "exact")},
            "direction": "lower-better" if self.lower_better else "higher-better",
            "samples": (len(self.a), len(self.b)),
        }


def collect(a: Sequence[Run], b: Sequence[Run], scales: Sequence[float], normalize: str) -> list[Sample]:
    """Every metric that both sides tell.

    Args:
        a: runs of side A.
        b: runs of side B.
        scales: what the per-token figures of each run are divided by, A's first.
        normalize: not empty: figures are per token, and batches of the two sides are not the same.
    """
    paired = not normalize and _same_data([*a, *b])
    steps = step_values([*a, *b], shared_batches([*a, *b], "plain") if paired else ())
    known = [None if log is None else math.exp(log) / scale for log, scale in zip(steps, scales, strict=True)]
    first, second = ([value for value in side if value is not None] for side in (known[: len(a)], known[len(a) :]))
    samples = []
    if first and second:
        unit = f"ms / {PER_TOKENS:,.0f} tokens" if normalize else "ms"
        samples.append(Sample(STEP, "step time", unit, "wall-clock", first, second, exact=False))
    batches = {
        kind: [batches_of(run, kind) if paired else [] for run in (*a, *b)] for kind in {row.kind for row in METRICS}
    }
    found = [_sample(row, a, b, scales, normalize, batches[row.kind]) for row in METRICS]
    return samples + [one for one in found if one is not None]


def _sample(
    row: MetricRow,
    a: Sequence[Run],
    b: Sequence[Run],
    scales: Sequence[float],
    normalize: str,
    batches: Sequence[Sequence[int]],
) -> Sample | None:
    figures, aligned = figure_values([*a, *b], row, batches)
    per_token = bool(normalize) and row.per_token
    sides: tuple[list[float], list[float]] = ([], [])
    for number, one in enumerate(figures):
        if one is not None:
            sides[number >= len(a)].append(one.value / (scales[number] if per_token else 1.0))
    told = [one for one in figures if one is not None]
    if not sides[0] or not sides[1]:
        return None
    exact = aligned and all(one.source in EXACT for one in told) and all(len(set(side)) == 1 for side in sides)
    unit = f"{told[0].unit} / {PER_TOKENS:,.0f} tokens" if per_token else told[0].unit
    return Sample(row.name, row.title, unit, told[0].source, *sides, exact, row.direction == "lower-better")


def _same_data(runs: Sequence[Run]) -> bool:
    """Whether a batch's number stands for the same samples in all of them; unknown settings are taken at their word."""
    keys = []
    for run in runs:
        settings = run.workload.settings
        if settings is not None:
            data = {name: value for name, value in settings.get("data", {}).items() if name != "path"}
            keys.append((data, settings.get("seed"), settings.get("knobs", {}).get("global_batch_size")))
    return all(key == keys[0] for key in keys)


def scales_of(runs: Sequence[Run], normalize: str) -> list[float]:
    """Thousands of useful tokens a step of each run; 1 where nothing is normalized.

    Raises:
        NotComparable: a run does not tell its useful tokens.
    """
    if not normalize:
        return [1.0] * len(runs)
    tokens = [run.effective_work.useful_tokens if run.effective_work else 0.0 for run in runs]
    if not all(tokens):
        raise NotComparable("a run does not tell its useful tokens: --normalize useful-tokens has nothing to go by")
    return [count / PER_TOKENS for count in tokens]


def band_of(runs: Sequence[Run]) -> Band | None:
    """The A/A band that accepted runs of one thing make; None for fewer than five."""
    if len(runs) < LEAST_BAND:
        return None
    half = runs[:1], runs[1:]
    spread = {}
    for sample in collect(*half, [1.0] * len(runs), ""):
        values = [*sample.a, *sample.b]
        if not sample.exact and len(values) == len(runs) and min(values) > 0:
            spread[sample.name] = statistics.stdev(map(math.log, values))
    return Band(spread, len(runs))
