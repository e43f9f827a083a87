"""Which stages moved: self times, so that they add up, over the batches that every run observed.

Of each run, the half of its observed steps that went most as usual is kept (a step against the mean of all runs over
its batch: a hiccup of the machine stays out, whatever the batch); its stage times are means over them, corrected for
which batches those were. Means add up over stages, so the rows' changes sum to the change of the observed step.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from vlmprof.compare.statistics import interval
from vlmprof.compare.values import batches_of, shared_batches
from vlmprof.records.comparison import StageChange
from vlmprof.records.figures import Figure, Measured, middle_half
from vlmprof.records.run import Run, Stage
from vlmprof.records.stage_times import Key

__all__ = ["StageTimes", "stage_changes", "stage_times"]

StageTimes = Mapping[Key, Sequence[float]]
"""(stage, phase) -> self time of each run, ms a step."""

STILL = 0.002
"""Of the observed step: a change below it is not worth dividing up."""
SMALL = 0.05
"""Of the step's change: stages that explain less are not called moved."""
ALONE = 0.005
"""Of the observed step: what a stage must move to be called moved where no spread is known."""


def stage_times(runs: Sequence[Run]) -> StageTimes:
    """Self times of runs, over their shared batches; empty where one of them was not observed."""
    if not runs or not all(batches_of(run, "spanned") and run.stages for run in runs):
        return {}
    shared = shared_batches(runs, "spanned")
    tables = [_samples(run, shared) for run in runs]
    if not shared or any(table is None for table in tables):
        return _plain_values(runs)
    known = [table for table in tables if table is not None]
    keys = list(dict.fromkeys(key for table in known for key in table))
    nothing = [0.0] * len(shared)
    usual = {
        key: [statistics.fmean(column) for column in zip(*(table.get(key, nothing) for table in known), strict=True)]
        for key in keys
    }
    times: dict[Key, list[float]] = {key: [] for key in keys}
    for table in known:
        kept = _usual_steps(table, usual, len(shared))
        for key in keys:
            own, common = table.get(key, nothing), usual[key]
            times[key].append(statistics.fmean(common) + statistics.fmean(own[i] - common[i] for i in kept))
    return times


def _samples(run: Run, shared: Sequence[int]) -> dict[Key, list[float]] | None:
    """Self times by step of the shared batches; None where samples do not belong to steps one by one."""
    places = {batch: place for place, batch in enumerate(batches_of(run, "spanned"))}
    table: dict[Key, list[float]] = {}
    for row in run.stages:
        if row.name == "step" or not isinstance(row.self_ms, Figure):
            continue
        if len(row.self_ms.samples) != len(places):
            return None
        table[row.name, row.phase] = [row.self_ms.samples[places[batch]] for batch in shared]
    return table


def _usual_steps(table: Mapping[Key, Sequence[float]], usual: Mapping[Key, Sequence[float]], count: int) -> list[int]:
    def total(of: Mapping[Key, Sequence[float]], place: int) -> float:
        return math.fsum(values[place] for values in of.values())

    return middle_half([total(table, place) / max(total(usual, place), 1e-9) for place in range(count)])


def _plain_values(runs: Sequence[Run]) -> StageTimes:
    tables = [
        {
            (row.name, row.phase): row.self_ms.value
            for row in run.stages
            if row.name != "step" and isinstance(row.self_ms, Figure)
        }
        for run in runs
    ]
    keys = dict.fromkeys(key for table in tables for key in table)
    return {key: [table.get(key, 0.0) for table in tables] for key in keys}


def stage_changes(times: StageTimes, a: Sequence[Run], b: Sequence[Run], scales: Sequence[float]) -> list[StageChange]:
    """A row a stage and phase, the largest changes first.

    Args:
        times: of all runs, A's first.
        a: runs of side A.
        b: runs of side B.
        scales: each run's times are divided by it (1, or thousands of useful tokens).
    """
    if not times:
        return []
    scaled = {key: [value / scale for value, scale in zip(row, scales, strict=True)] for key, row in times.items()}
    kept = _usual_runs(scaled, len(a))
    missing = {stage for run in (*a, *b) for stage in run.missing}
    whole = [math.fsum(row[index] for row in scaled.values()) for index in range(len(scales))]
    observed = _mean(whole, kept[1]) - _mean(whole, kept[0])
    step = _mean(whole, kept[0])
    still = abs(observed) < STILL * step
    rows = []
    for (stage, phase), values in scaled.items():
        if stage in missing:
            continue
        before, after = _mean(values, kept[0]), _mean(values, kept[1])
        change = after - before
        reach = _interval(values[: len(a)], values[len(a) :])
        share = None if still else change / observed
        facts = {
            "name": stage,
            "phase": phase,
            "a_ms": before,
            "b_ms": after,
            "change_ms": change,
            "share_of_change": share,
            "interval": reach,
            "moved": _moved(change, step, share, reach),
        }
        rows.append(StageChange.model_validate({**facts, **_kernels(a, b, stage, phase), **_ranks(a, b, stage, phase)}))
    return sorted(rows, key=lambda row: -abs(row.change_ms))


def _mean(values: Sequence[float], kept: Sequence[int]) -> float:
    return statistics.fmean(values[index] for index in kept)


def _usual_runs(times: Mapping[Key, Sequence[float]], count_a: int) -> tuple[list[int], list[int]]:
    """Of either side the runs in the middle half by observed step: the same for all stages, so that they add up."""
    whole = [math.fsum(column) for column in zip(*times.values(), strict=True)]
    first = middle_half(whole[:count_a])
    return first, [count_a + index for index in middle_half(whole[count_a:])]


def _interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the difference in ms, from three runs a side on."""
    return interval(a, b) if min(len(a), len(b)) >= 3 else None


def _moved(change: float, step: float, share: float | None, reach: tuple[float, float] | None) -> bool:
    if share is not None and abs(share) < SMALL:
        return False
    if reach is None:
        return abs(change) > ALONE * step
    return reach[0] > 0 or reach[1] < 0


def _kernels(a: Sequence[Run], b: Sequence[Run], stage: str, phase: str) -> dict[str, float]:
    sides = [[_value(row.busy_self_ms) for row in _rows(side, stage, phase)] for side in (a, b)]
    told = [[value for value in side if value is not None] for side in sides]
    if not all(told):
        return {}
    return {"busy_a_ms": statistics.fmean(told[0]), "busy_b_ms": statistics.fmean(told[1])}


def _value(measured: Measured | None) -> float | None:
    return measured.value if isinstance(measured, Figure) else None


def _rows(runs: Sequence[Run], stage: str, phase: str) -> list[Stage]:
    return [row for run in runs if (row := run.stage(stage, phase)) is not None]


def _ranks(a: Sequence[Run], b: Sequence[Run], stage: str, phase: str) -> dict[str, object]:
    """Over ranks: who is slowest, and how far the fastest and the slowest moved."""
    sides = [[row.ranks for row in _rows(side, stage, phase) if row.ranks is not None] for side in (a, b)]
    if not all(sides):
        return {}
    first, second = sides
    return {
        "rank_a": statistics.mode(spread.slowest for spread in first),
        "rank_b": statistics.mode(spread.slowest for spread in second),
        "rank_change_ms": tuple(
            statistics.fmean(getattr(spread, name) for spread in second)
            - statistics.fmean(getattr(spread, name) for spread in first)
            for name in ("min", "max")
        ),
    }
