"""The maths of a comparison: from one value a run on each side to an estimate, an interval and p-values.

The run (a process) is the unit of replication: steps of one run share a process's luck (memory layout, caches,
neighbours on the machine), so a thousand of them are still one observation. Values are natural logarithms: a
difference of logs is a relative change, and a slow-down of 5 % is as far from 0 as the speed-up that undoes it.

**Location** of a side is Tukey's bisquare M-estimate, three reweightings from the median:
    mu = sum(w x) / sum(w),  w = (1 - u^2)^2 for |u| < 1 and else 0,  u = (x - mu) / (4.685 s),
with s = 1.4826 MAD of the residuals of both sides about their medians, times N / (N - 2). At the normal distribution
it is 95 % as efficient as the mean; a run that a neighbour slowed by 20 % has no weight at all.

**Pseudo-values** carry it into everything that is known of means: z = mu + K psi / mean(psi'), psi = (x - mu) w, has
the mean mu, and var(z) / n is Huber's variance of mu with his correction for few values,
K = 1 + var(psi') / mean(psi')^2 / n (Huber & Ronchetti, Robust Statistics, 2009, 6.2 and 7.6). The interval is
Welch's on z.

**Test**: Welch's t of z, by permutation of the z between the sides, which asks nothing of the distribution;
studentized, so that sides of unlike spread are no false alarm (Chung & Romano, Annals of Statistics 41, 2013). The z
are got from the sides as they are: anew for every arrangement, a slow run among fast ones would be cast out as an
outlier, and a slow-down could be too large to be found. `ARRANGEMENTS` random ones (a fixed seed). Too few runs, or too
small a level, to be reached that way: Welch's t on the values themselves, which outliers make blind but not false. So
many that permuting is idle: Student's distribution.

**A lone run** cannot be told from an outlier by anything but its distance. It is judged by Student's prediction
interval (a new run against n of them, or two runs with a spread known from elsewhere) with the tails of 3 degrees of
freedom.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Band", "Evidence", "evidence", "holm", "interval", "runs_needed"]

Array = npt.NDArray[np.float64]

ARRANGEMENTS = 4999
FIRST_ARRANGEMENTS = 499
"""Enough to see that a p-value is far from any level."""
RESOLVED = 10
"""Arrangements at least as extreme that a p-value at the level must still rest on."""
MANY = 80
"""Runs of both sides together from which on Student's t stands for the permutations."""
FEW = 8
"""Runs a side below which the mean is the estimate: few residuals tell no outlier from the rest, and weighing them down
all the same makes false alarms (by simulation with outliers: 1.5 % at 6 runs a side, 0.7 % at 8)."""
LONE_FREEDOM = 3
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
    error = spread * math.sqrt(1 / len(x) + 1 / len(y))
    return _student(centres, error, min(freedom, LONE_FREEDOM), name, spread)


def interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the difference b - a of two samples of at least two each, without any test."""
    return _estimate(np.asarray(a, dtype=float), np.asarray(b, dtype=float)).interval


def _two_samples(x: Array, y: Array, level: float) -> Evidence:
    pseudo, welch = _pseudo_values(x, y), _welch(x, y)
    p = {**welch.p, **_mann_whitney(x, y)}
    if pseudo is None or level < RESOLVED / ARRANGEMENTS:
        return replace(welch, p=p)
    found = _welch(*pseudo, "robust-t")
    if len(x) + len(y) > MANY:
        return replace(found, p={**found.p, **p})
    one_sided = _permuted(*pseudo)
    p = {"permutation": min(1.0, 2 * one_sided), **p}
    return replace(found, p=p, decided_by="permutation", one_sided=one_sided)


def _estimate(x: Array, y: Array) -> Evidence:
    """By bisquare, or by means where runs are few or most of them agree to the last digit."""
    pseudo = _pseudo_values(x, y)
    return _welch(*pseudo, "robust-t") if pseudo else _welch(x, y)


def _student(centres: tuple[float, float], error: float, freedom: float, name: str, spread: float) -> Evidence:
    from scipy import special

    change = centres[1] - centres[0]
    if error == 0:
        p = 0.0 if change else 1.0
        return Evidence(centres, (change, change), {name: p}, name, p / 2 if change else 1.0, spread)
    one_sided = float(special.stdtr(freedom, -abs(change) / error))
    reach = float(special.stdtrit(freedom, 1 - LEVEL / 2)) * error
    return Evidence(centres, (change - reach, change + reach), {name: 2 * one_sided}, name, one_sided, spread)


def _welch(x: Array, y: Array, name: str = "welch") -> Evidence:
    """Welch's t on means: unequal variances, Satterthwaite's degrees of freedom."""
    var_a, var_b = float(np.var(x, ddof=1)) / len(x), float(np.var(y, ddof=1)) / len(y)
    spread = math.sqrt((var_a * len(x) + var_b * len(y)) / 2)
    freedom = _freedom(var_a, len(x), var_b, len(y))
    return _student((float(np.mean(x)), float(np.mean(y))), math.sqrt(var_a + var_b), freedom, name, spread)


def _freedom(var_a: float, n_a: int, var_b: float, n_b: int) -> float:
    total = var_a + var_b
    return total**2 / (var_a**2 / (n_a - 1) + var_b**2 / (n_b - 1)) if total else n_a + n_b - 2


def _mann_whitney(x: Array, y: Array) -> dict[str, float]:
    """Only where it can reach 5 % at all: never at 3 v 3, where its least two-sided p is 10 %."""
    if 2 * _least_p(len(x), len(y)) > LEVEL:
        return {}
    if len(x) + len(y) > MANY:
        return {"mann-whitney": _mann_whitney_normal(x, y)}
    if np.ptp(np.concatenate([x, y])) == 0:
        return {"mann-whitney": 1.0}  # scipy 1.18 says not a number
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


def _pseudo_values(x: Array, y: Array) -> tuple[Array, Array] | None:
    """None where runs are too few, or most agree to the last digit, so that there is no scale."""
    if min(len(x), len(y)) < FEW:
        return None
    residuals = np.concatenate([np.abs(side - np.median(side)) for side in (x, y)])
    scale = 1.4826 * float(np.median(residuals)) * len(residuals) / (len(residuals) - 2)
    if scale <= 1e-12 * float(np.max(residuals)) or scale == 0:
        return None
    return _pseudo(x, scale), _pseudo(y, scale)


def _pseudo(x: Array, scale: float) -> Array:
    centre = float(np.median(x))
    for _ in range(3):
        weights = np.clip(1 - ((x - centre) / (BISQUARE * scale)) ** 2, 0, None) ** 2
        centre = float((weights * x).sum() / weights.sum()) if weights.any() else centre
    square = ((x - centre) / (BISQUARE * scale)) ** 2
    inside = square < 1
    slopes = (1 - square) * (1 - 5 * square) * inside
    slope = max(float(np.mean(slopes)), 0.1)
    correction = 1 + float(np.var(slopes)) / slope**2 / len(x)
    values: Array = centre + (x - centre) * (1 - square) ** 2 * inside * correction / slope
    return values


def _permuted(x: Array, y: Array) -> float:
    """One-sided p-value in the direction of the change."""
    values = np.concatenate([x, y])
    values = values - values.mean()
    sign = 1.0 if y.mean() >= x.mean() else -1.0
    seen = sign * float(_t(values[None, : len(x)], values[None, len(x) :])[0])

    def beyond(order: npt.NDArray[Any]) -> int:
        drawn = values[order]
        return int((sign * _t(drawn[:, : len(x)], drawn[:, len(x) :]) >= seen - 1e-9 * abs(seen)).sum())

    random = np.random.default_rng(20250101)
    count, hits = 0, 0
    for block in (FIRST_ARRANGEMENTS, ARRANGEMENTS - FIRST_ARRANGEMENTS):
        hits += beyond(np.argsort(random.random((block, len(values))), axis=-1))
        count += block
        if hits > count / 10:
            break  # far above every level
    return (1 + hits) / (1 + count)


def _t(x: Array, y: Array) -> Array:
    """Welch's t of every row, (cases, n_a), (cases, n_b) -> (cases,)."""
    variance = np.var(x, axis=-1, ddof=1) / x.shape[-1] + np.var(y, axis=-1, ddof=1) / y.shape[-1]
    t: Array = (y.mean(-1) - x.mean(-1)) / np.sqrt(np.maximum(variance, 1e-300))
    return t


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

    n = 2 ((z_level + z_power) error / distance)^2 / 0.95 + z_level^2 / 4 + 2: the normal approximation, the efficiency
    of the estimate, what Student's distribution asks of few (Guenther, The American Statistician 35, 1981), and what
    K does (by simulation).
    A change that looks larger than the threshold is taken for what it seems: its distance is that from 0, at the level
    of the test. A smaller one is taken for none: its distance is the threshold, which a 95 % interval about 0 must not
    reach.
    """
    from scipy import special

    beyond = abs(change) > threshold
    quantile = -float(special.ndtri(level if beyond else LEVEL / 2))
    distance = max(abs(change), threshold)
    many = 2 * ((quantile + float(special.ndtri(POWER))) * error / distance) ** 2
    return math.ceil(many / 0.95 + quantile**2 / 4) + 2
