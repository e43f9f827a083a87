"""The maths of a comparison: from one value a run on each side to an estimate, an interval and p-values.

The run (a process) is the unit of replication: steps of one run share a process's luck (memory layout, caches,
neighbours on the machine), so a thousand of them are still one observation. Values are natural logarithms: a
difference of logs is a relative change, and a slow-down of 5 % is as far from 0 as the speed-up that undoes it.

**Location** of a side is Tukey's bisquare M-estimate, three reweightings from the median:
    mu = sum(w x) / sum(w),  w = (1 - u^2)^2 for |u| < 1 and else 0,  u = (x - mu) / (4.685 s),
with s = 1.4826 MAD of the residuals of both sides about their medians, times N / (N - 2). At the normal distribution
it is 95 % as efficient as the mean; a run that a neighbour slowed by 20 % has no weight at all. Its variance is
Huber's: v = sum(psi^2) / sum(psi')^2 n / (n - 1), psi = (x - mu) (1 - u^2)^2 (Huber & Ronchetti, Robust Statistics,
2009, 6.2).

**Test** T = (mu_b - mu_a) / sqrt(v_a + v_b), by permutation of the runs between the sides: exact whatever the
distribution is, where A and B differ in nothing (Chung & Romano, Annals of Statistics 41, 2013, on why T must be
studentized). All arrangements where there are at most `ARRANGEMENTS`, else that many random ones (a fixed seed). Too
few runs, or too small a level, to be reached that way: Welch's t on the means, which outliers make blind but not
false. So many that permuting is idle: Student's t for T.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Band", "Evidence", "evidence", "holm", "interval", "runs_needed"]

Array = npt.NDArray[np.float64]

ARRANGEMENTS = 4999
FIRST_ARRANGEMENTS = 499
"""Enough to see that a p-value is far from any level."""
RESOLVED = 10
"""Arrangements at least as extreme that a p-value at the level must still rest on, were they drawn at random."""
MANY = 80
"""Runs of both sides together from which on Student's t stands for the permutations."""
FEW = 6
"""Runs a side below which the mean is the estimate: four residuals tell no outlier from the rest."""
BISQUARE = 4.685
LEVEL = 0.05
"""1 - confidence of intervals."""
POWER = 0.9


@dataclass(frozen=True)
class Band:
    """How far single runs of the same thing lie apart on one platform: the stored A/A band."""

    spread: Mapping[str, float]
    """Metric -> standard deviation of the logarithm from run to run, about the relative one."""
    runs: int
    """How many runs it was got from."""


@dataclass(frozen=True)
class Evidence:
    """What two samples of logarithms say of their difference."""

    centres: tuple[float, float]
    """Location of either side, in logarithms."""
    interval: tuple[float, float] | None
    """95 % confidence interval; None where the spread is unknown."""
    p: dict[str, float] = field(default_factory=dict)
    """Test -> two-sided p-value."""
    decided_by: str = ""
    """The test that is judged; empty where no test can be made."""
    one_sided: float = 1.0
    """p-value of that test in the direction of the change."""
    error: float | None = None
    """Standard deviation of a single run, in logarithms; None where unknown."""

    @property
    def change(self) -> float:
        """Estimate of the difference, b - a, in logarithms."""
        return self.centres[1] - self.centres[0]


def evidence(
    a: Sequence[float], b: Sequence[float], level: float, spread: float | None = None, freedom: int = 0
) -> Evidence:
    """Compare two samples of logarithms.

    Args:
        a: one value a run of side A.
        b: the same of side B.
        level: one-sided level that a p-value will be held against: chooses a test that can reach it.
        spread: of the A/A band: standard deviation of one run, used where a side has a single run.
        freedom: its degrees of freedom, runs - 1.
    """
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if min(len(x), len(y)) > 1:
        return _two_samples(x, y, level)
    alone = max(len(x), len(y))
    if spread is None and alone >= 5:
        many = x if len(x) > 1 else y
        spread, freedom = float(np.std(many, ddof=1)), alone - 1
        name = "prediction"
    else:
        name = "band"
    centres = float(np.mean(x)), float(np.mean(y))
    if spread is None or freedom < 1:
        return Evidence(centres, None)
    # Student's prediction interval: a new run against n of them, or two runs with a spread known from elsewhere.
    error = spread * math.sqrt(1 / len(x) + 1 / len(y))
    return _student(centres, error, freedom, name, spread)


def interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the difference b - a of two samples of at least two each, without any test."""
    return _estimate(np.asarray(a, dtype=float), np.asarray(b, dtype=float)).interval


def _two_samples(x: Array, y: Array, level: float) -> Evidence:
    found, welch = _estimate(x, y), _welch(x, y)
    p = {**welch.p, **_mann_whitney(x, y)}
    least = max(_least_p(len(x), len(y)), RESOLVED / ARRANGEMENTS)
    if found.decided_by == "welch" or least > level:
        return replace(welch, p=p)
    if len(x) + len(y) > MANY:
        return replace(found, p={**found.p, **p})
    one_sided = _permuted(x, y)
    p = {"permutation": min(1.0, 2 * one_sided), **p}
    return replace(found, p=p, decided_by="permutation", one_sided=one_sided)


def _estimate(x: Array, y: Array) -> Evidence:
    """By bisquare, or by means where runs are few or most of them agree to the last digit."""
    scale = _scale(x[None], y[None]) if min(len(x), len(y)) >= FEW else np.zeros(1)
    if scale[0] == 0:
        return _welch(x, y)
    (mu_a,), (var_a,) = _location(x[None], scale)
    (mu_b,), (var_b,) = _location(y[None], scale)
    spread = math.sqrt((var_a * len(x) + var_b * len(y)) / 2)
    freedom = _freedom(var_a, len(x), var_b, len(y))
    return _student((float(mu_a), float(mu_b)), math.sqrt(var_a + var_b), freedom, "robust-t", spread)


def _student(centres: tuple[float, float], error: float, freedom: float, name: str, spread: float) -> Evidence:
    from scipy import special

    change = centres[1] - centres[0]
    if error == 0:
        p = 0.0 if change else 1.0
        return Evidence(centres, (change, change), {name: p}, name, p / 2 if change else 1.0, spread)
    one_sided = float(special.stdtr(freedom, -abs(change) / error))
    reach = float(special.stdtrit(freedom, 1 - LEVEL / 2)) * error
    return Evidence(centres, (change - reach, change + reach), {name: 2 * one_sided}, name, one_sided, spread)


def _welch(x: Array, y: Array) -> Evidence:
    """Welch's t on means: unequal variances, Satterthwaite's degrees of freedom."""
    var_a, var_b = float(np.var(x, ddof=1)) / len(x), float(np.var(y, ddof=1)) / len(y)
    spread = math.sqrt((var_a * len(x) + var_b * len(y)) / 2)
    freedom = _freedom(var_a, len(x), var_b, len(y))
    return _student((float(np.mean(x)), float(np.mean(y))), math.sqrt(var_a + var_b), freedom, "welch", spread)


def _freedom(var_a: float, n_a: int, var_b: float, n_b: int) -> float:
    total = var_a + var_b
    return total**2 / (var_a**2 / (n_a - 1) + var_b**2 / (n_b - 1)) if total else n_a + n_b - 2


def _mann_whitney(x: Array, y: Array) -> dict[str, float]:
    """Only where it can reach 5 % at all: never at 3 v 3, where its least two-sided p is 10 %."""
    if 2 * _least_p(len(x), len(y)) > LEVEL:
        return {}
    if len(x) + len(y) > MANY:
        return {"mann-whitney": _mann_whitney_normal(x, y)}
    from scipy import stats  # not for many: importing it takes as long as reading 500 records

    return {"mann-whitney": float(stats.mannwhitneyu(x, y, alternative="two-sided").pvalue)}


def _mann_whitney_normal(x: Array, y: Array) -> float:
    """Two-sided, by the normal approximation with corrections for ties and continuity."""
    from scipy import special

    values, place, ties = np.unique(np.concatenate([x, y]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    n_a, n_b, total = len(x), len(y), len(place)
    u = float(ranks[n_a:].sum()) - n_b * (n_b + 1) / 2
    variance = n_a * n_b / 12 * (total + 1 - float((ties**3 - ties).sum()) / (total * (total - 1)))
    distance = max(abs(u - n_a * n_b / 2) - 0.5, 0.0)
    return min(1.0, 2 * float(special.ndtr(-distance / math.sqrt(variance)))) if variance and len(values) > 1 else 1.0


def _least_p(n_a: int, n_b: int) -> float:
    """The least one-sided p-value that any rearrangement of so many runs can give."""
    return 1 / math.comb(n_a + n_b, n_a)


def _scale(x: Array, y: Array) -> Array:
    """(cases, n_a), (cases, n_b) -> (cases,)"""
    parts = [np.abs(side - np.median(side, axis=-1, keepdims=True)) for side in (x, y)]
    residuals = np.concatenate(parts, axis=-1)
    count = residuals.shape[-1]
    scale: Array = 1.4826 * np.median(residuals, axis=-1) * count / (count - 2)
    return scale


def _location(x: Array, scale: Array) -> tuple[Array, Array]:
    """(cases, n), (cases,) -> location and its variance, (cases,) each."""
    width = BISQUARE * np.maximum(scale, 1e-300)[:, None]
    centre = np.median(x, axis=-1, keepdims=True)
    for _ in range(3):
        weights = np.clip(1 - ((x - centre) / width) ** 2, 0, None) ** 2
        centre = (weights * x).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True)
    square = ((x - centre) / width) ** 2
    inside = square < 1
    psi = (x - centre) * (1 - square) ** 2 * inside
    slope = ((1 - square) * (1 - 5 * square) * inside).sum(-1)
    count = x.shape[-1]
    variance: Array = (psi**2).sum(-1) / np.maximum(slope, 1) ** 2 * count / (count - 1)
    return centre[:, 0], variance


def _studentized(x: Array, y: Array) -> Array:
    scale = _scale(x, y)
    (mu_a, var_a), (mu_b, var_b) = _location(x, scale), _location(y, scale)
    statistic: Array = (mu_b - mu_a) / np.sqrt(np.maximum(var_a + var_b, 1e-300))
    return statistic


def _permuted(x: Array, y: Array) -> float:
    """One-sided p-value in the direction of the change."""
    values = np.concatenate([x, y])
    seen = _studentized(x[None], y[None])[0]
    sign = 1.0 if seen >= 0 else -1.0
    tolerance = 1e-12 * abs(seen)

    def beyond(order: npt.NDArray[Any]) -> int:
        drawn = values[order]
        return int((sign * _studentized(drawn[:, : len(x)], drawn[:, len(x) :]) >= sign * seen - tolerance).sum())

    if math.comb(len(values), len(x)) <= ARRANGEMENTS:
        order = _all_arrangements(len(x), len(values))
        return beyond(order) / len(order)
    random = np.random.default_rng(20250101)
    count, hits = 0, 0
    for block in (FIRST_ARRANGEMENTS, ARRANGEMENTS - FIRST_ARRANGEMENTS):
        hits += beyond(np.argsort(random.random((block, len(values))), axis=-1))
        count += block
        if hits > count / 10:
            break  # far above every level
    return (1 + hits) / (1 + count)


def _all_arrangements(chosen: int, count: int) -> npt.NDArray[Any]:
    first = np.array(list(combinations(range(count), chosen)))
    rest = np.array([sorted(set(range(count)) - set(row)) for row in first.tolist()])
    return np.concatenate([first, rest], axis=1)


def holm(p: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Adjusted p-values that hold the chance of any false alarm (Holm, Scandinavian Journal of Statistics 6, 1979, with
    weights): in the order of p / w, each p times the weights still open over its own, never less than the one before.

    Not Benjamini-Hochberg's: that holds the share of false ones among the alarms, but one false alarm already fails
    somebody's pull request. Weights, because the metrics are not equal: the step time is what is asked, and varies from
    run to run about as much as its threshold; bytes vary far less than theirs and need little of the level.
    """
    order = sorted(range(len(p)), key=lambda index: p[index] / weights[index])
    adjusted, before, open_ = [1.0] * len(p), 0.0, sum(weights)
    for index in order:
        before = max(before, min(1.0, p[index] * open_ / weights[index]))
        adjusted[index] = before
        open_ -= weights[index]
    return adjusted


def runs_needed(change: float, error: float, threshold: float, level: float) -> int:
    """Runs a side that decide with a probability of 90 %.

    Normal approximation: n = 2 ((z_level + z_power) error / distance)^2. A change that looks larger than the threshold
    is taken for what it seems: its distance is that from 0, at the level of the test. A smaller one is taken for none:
    its distance is the threshold, which a 95 % interval about 0 must not reach.
    """
    from scipy import special

    beyond = abs(change) > threshold
    quantile = -float(special.ndtri(level if beyond else LEVEL / 2)) + float(special.ndtri(POWER))
    distance = max(abs(change), threshold)
    return math.ceil(2 * (quantile * error / distance) ** 2) + 1
