"""Where the level of a series changes: candidates by PELT, each then tested against the runs on either side of it.

Let x be the logarithms of one value a run, in order of time: a change of level is a factor.

1. *Noise*: s = 1.4826 median|d - median(d)| / sqrt(2), with d the differences of neighbours: shifts of level and
   outliers do not move it. At least FLOOR, so that what is deterministic has a scale.
2. *Lone spikes*: y = x, held within CLIP s of the running median over 2 MIN_RUNS - 1 runs. Fewer than MIN_RUNS runs in
   a row that stand out do not move that median, and are left with nothing to change a level by.
3. *Candidates*: PELT on y (ruptures' `KernelCPD`, linear kernel: the sum of squares about the segments' means) with
   penalty PENALTY s^2 log(n); where it finds none, the best single split. Each is moved to where the two segments
   beside it differ most, and dropped where that leaves a segment of fewer than MIN_RUNS runs.
4. *Test*: Mann-Whitney's U on x and Welch's t on y between the two segments, as quantiles z of the normal distribution.
   In ranks an outlier counts no more than any other run, but they cannot tell a large change from a huge one; t can.
   The larger z counts, and its p is doubled for the choice. Where neighbours are correlated (lag-1 correlation r of the
   residuals above 2 / sqrt(n): a machine that drifts) z is divided by sqrt((1 + r) / (1 - r)).
   The place was chosen because it looked like a change. That is paid for by taking the probability that the largest z
   of all places reaches b in a series without any change (Siegmund 1992; James, James and Siegmund 1987):

       p = 2 b phi(b) Int_l^u nu(x + b^2 / (n x)) / x dx + 2 (1 - Phi(b))
       l = b sqrt(1/(n-m) - 1/n), u = b sqrt(1/m - 1/n), m = MIN_RUNS, n the length of the whole series
       nu(x) ~ (2/x) (Phi(x/2) - 1/2) / ((x/2) Phi(x/2) + phi(x/2))

   The candidate with the largest p is taken out and its segments are joined, until every p is below the level asked
   for and every change is at least as large as asked for.

`benchmarks/history.py` shows by simulation what this finds and how often it cries wolf.
"""

import warnings
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from ruptures.detection.kernelcpd import KernelCPD
from scipy.special import ndtr, ndtri, stdtr
from scipy.stats import mannwhitneyu

__all__ = ["FLOOR", "MIN_RUNS", "Shift", "largest_of_all", "shifts"]

MIN_RUNS = 4
"""A level is held for at least so many runs; what is shorter is a spike."""
FLOOR = 1e-3
"""Relative noise is at least this."""
PENALTY = 2.0
CLIP = 2.0

Series = NDArray[np.float64]


@dataclass(frozen=True)
class Shift:
    """The level before index `at` and from it on: medians of the segments that end and begin there."""

    at: int
    before: float
    after: float
    p: float

    @property
    def change(self) -> float:
        """Relative."""
        return self.after / self.before - 1.0


def shifts(values: Series, level: float, least: float = 0.0) -> list[Shift]:
    """The changes of level in `values` (positive, in order of time).

    Args:
        values: one a run.
        level: chance that a series without any change gets one.
        least: relative change below which one is not told.
    """
    if len(values) < 2 * MIN_RUNS:
        return []
    x = np.log(values)
    noise = _noise(x)
    y = _without_spikes(x, noise)
    places = _refined(y, _candidates(y, noise))
    while places:
        found = _tested(x, y, places)
        doubtful = [shift for shift in found if shift.p >= level]
        small = [shift for shift in found if abs(shift.change) < least]
        if not doubtful and not small:
            return found
        worst = (
            max(doubtful, key=lambda shift: shift.p) if doubtful else min(small, key=lambda shift: abs(shift.change))
        )
        places = _refined(y, [place for place in places if place != worst.at])
    return []


def _noise(x: Series) -> float:
    steps = np.diff(x)
    return max(float(1.4826 * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2)), FLOOR)


def _without_spikes(x: Series, noise: float) -> Series:
    """Values held within CLIP times the noise of the running median; at the ends its window is cut short."""
    reach = MIN_RUNS - 1
    padded = np.pad(x, reach, constant_values=np.nan)
    middle = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1), axis=1)
    return np.clip(x, middle - CLIP * noise, middle + CLIP * noise)


def _candidates(y: Series, noise: float) -> list[int]:
    penalty = PENALTY * noise**2 * np.log(len(y))
    found = KernelCPD(kernel="linear", min_size=MIN_RUNS).fit(y.reshape(-1, 1)).predict(pen=penalty)
    return [int(place) for place in found[:-1]] or [_best_split(y)]


def _refined(y: Series, places: list[int]) -> list[int]:
    """Each place moved to where its two neighbours differ most; of those that then hold too short a segment between
    them the one that explains less is dropped, and the rest move again."""
    while True:
        places = _moved(y, places)
        edges = [0, *places, len(y)]
        short = [number for number, (a, b) in enumerate(pairwise(edges)) if b - a < MIN_RUNS]
        if not places or not short:
            return places
        beside = [one for one in (short[0] - 1, short[0]) if 0 <= one < len(places)]
        least = min(beside, key=lambda one: _gain(y, edges[one], edges[one + 1], edges[one + 2]))
        places = places[:least] + places[least + 1 :]


def _moved(y: Series, places: list[int]) -> list[int]:
    edges = [0, *places, len(y)]
    for number in range(1, len(edges) - 1):
        left, right = edges[number - 1], edges[number + 1]
        edges[number] = left + _best_split(y[left:right])
    return edges[1:-1]


def _gain(y: Series, start: int, place: int, end: int) -> float:
    """By how much the sum of squares is less with the place than without."""
    apart = float(y[start:place].mean() - y[place:end].mean())
    return float(apart**2 * (place - start) * (end - place) / (end - start))


def _best_split(y: Series) -> int:
    """The first index of the right part, where the sums of squares of both parts are least."""
    sizes = np.arange(1, len(y))
    sums = np.cumsum(y - y.mean())[:-1]
    return int(np.argmax(sums**2 / (sizes * (len(y) - sizes)))) + 1


def _tested(x: Series, y: Series, places: list[int]) -> list[Shift]:
    edges = [0, *places, len(x)]
    slower = np.sqrt(_inflation(x, edges))
    found = []
    for before, place, after in zip(edges, edges[1:], edges[2:], strict=False):
        old, new = (float(np.exp(np.median(part))) for part in (x[before:place], x[place:after]))
        z = max(_ranks(x[before:place], x[place:after]), _welch(y[before:place], y[place:after])) / slower
        found.append(Shift(place, old, new, min(1.0, 2 * largest_of_all(float(z), len(x)))))
    return found


def _inflation(x: Series, edges: list[int]) -> float:
    """By how much correlated neighbours make the variance of a mean larger: (1 + r) / (1 - r)."""
    rest = np.concatenate([x[a:b] - np.median(x[a:b]) for a, b in pairwise(edges)])
    width = CLIP * max(float(1.4826 * np.median(np.abs(rest))), FLOOR)
    rest = np.clip(rest, -width, width)
    square = float(rest @ rest)
    measured = square > len(x) * (FLOOR / 10) ** 2  # what is deterministic leaves nothing but rounding
    r = float(rest[1:] @ rest[:-1]) / square if measured else 0.0
    return (1 + r) / (1 - r) if r > 2 / np.sqrt(len(x)) else 1.0


def _welch(a: Series, b: Series) -> float:
    """Welch's t as a quantile of the normal distribution, at least 0."""
    va, vb = (max(float(one.var(ddof=1)), FLOOR**2) / len(one) for one in (a, b))
    t = abs(float(a.mean() - b.mean())) / np.sqrt(va + vb)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return _quantile(float(stdtr(freedom, -t)))


def _ranks(a: Series, b: Series) -> float:
    """Mann-Whitney's U as a quantile of the normal distribution, at least 0."""
    if np.ptp(np.concatenate([a, b])) == 0:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _quantile(float(mannwhitneyu(a, b).pvalue) / 2)


def _quantile(tail: float) -> float:
    return float(-ndtri(max(tail, 1e-300)))


def largest_of_all(z: float, n: int) -> float:
    """Chance that in a series of `n` without any change the largest standardised difference over all places reaches
    `z` in size. Good where it is small; at most 1."""
    if z < 1:
        return 1.0
    low, high = z * np.sqrt(1 / (n - MIN_RUNS) - 1 / n), z * np.sqrt(1 / MIN_RUNS - 1 / n)
    x = np.exp(np.linspace(np.log(low), np.log(high), 200))
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    integral = float(np.trapezoid(_overshoot(x + z**2 / (n * x)), np.log(x)))
    return float(min(1.0, 2 * z * density * integral + 2 * ndtr(-z)))


def _overshoot(x: Series) -> Series:
    """Siegmund's approximation of nu: what a discrete walk's jump over a border costs."""
    half = x / 2
    density = np.exp(-(half**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray((ndtr(half) - 0.5) / half / (half * ndtr(half) + density))
