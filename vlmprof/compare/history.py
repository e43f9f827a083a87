"""Change points over the records of a folder, in order of time: per workload and platform, per metric and stage.

The mathematics stands in `changepoints.py`; here series are made of records, and levels of chance are shared out.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vlmprof.compare.changepoints import MIN_RUNS, Shift, shifts
from vlmprof.compare.thresholds import load_thresholds
from vlmprof.errors import NoAnswerError, UserError
from vlmprof.records.baseline import list_baselines
from vlmprof.records.history import ChangePoint, History, HistoryRun, MetricHistory, Series
from vlmprof.records.slim import tested_state
from vlmprof.records.summary import RATES, Read, Summary, metrics_of, read_summaries

__all__ = ["find_history"]

LEVEL = 0.05
"""Chance that a family of metrics without any change gets a change point: the step time (its rates are the same fact
again), the peak memory, the device's time, and all the stages together."""
LEAST = 0.005
"""Relative change below which a metric's change point is not told."""
LEAST_OF_STEP = 0.002
"""A stage's change point is told from this share of the step time on."""
HEADLINE = ("step_ms", *RATES, "memory_peak", "device_busy_ms")
UNITS = {"memory_peak": "bytes"} | dict.fromkeys(RATES, "tokens/s")


class Dated(NamedTuple):
    when: datetime
    file: Path
    summary: Summary
    metrics: dict[str, float]


def find_history(
    folder: Path, metrics: Sequence[str] = (), store: Path | None = None, since: datetime | None = None
) -> History:
    """The history of all records below `folder`.

    Args:
        folder: searched at any depth.
        metrics: names to look at (see `metrics_of`), or stages, for all their phases; none: everything.
        store: of baselines: a latest level that is no worse than the accepted runs counts as accepted.
        since: earlier records are left out.

    Raises:
        UserError: a record or the folder cannot be read, a metric is unknown, no record is left.
        NoAnswerError: no series is long enough for a change point.
    """
    records = sorted((_dated(one) for one in read_summaries(folder)), key=lambda one: (one.when, one.file))
    kept = [one for one in records if since is None or one.when >= since]
    if not kept:
        raise UserError(f"no record in '{folder}' was made since {since:%Y-%m-%d %H:%M}")
    groups = _grouped(kept)
    _refuse_unknown(metrics, kept)
    accepted = _accepted(store)
    series = tuple(_series(key, group, metrics, accepted.get(key[1:], {})) for key, group in groups.items())
    if all(one.too_few for one in series):
        longest = max(sum(run.status == "ok" for run in one.runs) for one in series)
        raise NoAnswerError(
            f"'{folder}' has at most {longest} good runs of one workload on one platform: "
            f"a change of level needs {2 * MIN_RUNS} or more"
        )
    return History(folder=str(folder), method=_method(), series=series)


Key = tuple[str, str, str]
"""Workload, hash, platform."""


def _grouped(records: Sequence[Dated]) -> dict[Key, list[Dated]]:
    """One series a workload and platform. A run that died before it could tell its platform is shown with the first
    series of its workload."""
    known: dict[tuple[str, str], str] = {}
    for one in records:
        summary = one.summary
        if summary.environment is not None:
            known.setdefault((summary.workload.name, summary.workload.hash), summary.environment.platform)
    groups: dict[Key, list[Dated]] = {}
    for one in records:
        work = (one.summary.workload.name, one.summary.workload.hash)
        environment = one.summary.environment
        platform = environment.platform if environment else known.get(work, "unknown")
        groups.setdefault((*work, platform), []).append(one)
    return groups


def _dated(read: Read) -> Dated:
    try:
        when = datetime.fromisoformat(read.summary.created)
    except ValueError:
        raise UserError(
            f"'{read.file}' was made at '{read.summary.created}', which is no time: it was edited"
        ) from None
    return Dated(when if when.tzinfo else when.replace(tzinfo=UTC), *read)


def _refuse_unknown(metrics: Sequence[str], records: Sequence[Dated]) -> None:
    known = {name for one in records for name in one.metrics}
    for name in metrics:
        if not any(_matches(one, (name,)) for one in known):
            raise UserError(
                f"no record has a metric '{name}': there are {', '.join(one for one in HEADLINE if one in known)}, "
                "and stages, e.g. decoder.router or decoder.router/forward"
            )


def _matches(metric: str, wanted: Sequence[str]) -> bool:
    return not wanted or any(metric == one or metric.partition("/")[0] == one for one in wanted)


def _accepted(store: Path | None) -> dict[tuple[str, str], dict[str, float]]:
    """(hash, platform) -> metric -> median of the accepted runs."""
    if store is None:
        return {}
    found = {}
    for baseline in list_baselines(store).values():
        own: dict[str, list[float]] = {}
        for run in baseline.runs:
            for name, value in metrics_of(Summary.model_validate(run.model_dump(by_alias=True))).items():
                own.setdefault(name, []).append(value)
        found[baseline.hash, baseline.platform] = {name: statistics.median(values) for name, values in own.items()}
    return found


def _series(key: Key, group: Sequence[Dated], wanted: Sequence[str], accepted: Mapping[str, float]) -> Series:
    workload, hash8, platform = key
    values = [one.metrics if one.summary.outcome.status == "ok" else {} for one in group]
    names = dict.fromkeys(name for one in values for name in one)
    stages = sum(_told_often(name, values) for name in names if "/" in name)
    steps = [one["step_ms"] for one in values if "step_ms" in one]
    step = statistics.median(steps) if steps else 0.0
    return Series(
        platform=platform,
        workload=workload,
        hash=hash8,
        runs=tuple(_run(one.file, one.summary) for one in group),
        metrics=tuple(
            _metric(name, [one.get(name) for one in values], stages, step, accepted.get(name))
            for name in names
            if _matches(name, wanted)
        ),
        too_few=sum(bool(one) for one in values) < 2 * MIN_RUNS,
    )


def _told_often(name: str, values: Sequence[Mapping[str, float]]) -> bool:
    return sum(name in one for one in values) >= 2 * MIN_RUNS


def _run(file: Path, summary: Summary) -> HistoryRun:
    return HistoryRun(
        record=str(file),
        created=summary.created,
        status=summary.outcome.status,
        failure_class=summary.outcome.failure_class,
        commit=tested_state(summary),
    )


def _metric(
    name: str, values: Sequence[float | None], stages: int, step: float, accepted: float | None
) -> MetricHistory:
    places = [index for index, value in enumerate(values) if value is not None]
    own = np.array([value for value in values if value is not None])
    is_stage = "/" in name
    found: list[Shift] = []
    if own.size and float(own.min()) > 0:  # a stage that took no time at all has no level
        found = shifts(own, LEVEL / max(stages, 1) if is_stage else LEVEL, LEAST)
        if is_stage:
            found = [shift for shift in found if abs(shift.after - shift.before) >= LEAST_OF_STEP * step]
    edges = [0, *(shift.at for shift in found), len(places)]
    changes = tuple(
        ChangePoint(
            run=places[shift.at],
            last_before=places[shift.at - 1],
            before=shift.before,
            after=shift.after,
            change=shift.change,
            p=shift.p,
            verdict="worse" if (shift.change > 0) != (name in RATES) else "better",
            runs_before=shift.at - edges[number],
            runs_after=edges[number + 2] - shift.at,
        )
        for number, shift in enumerate(found)
    )
    latest = changes[-1].after if changes else float(np.median(own)) if own.size else None
    return MetricHistory(
        name=name,
        unit=UNITS.get(name, "ms"),
        values=tuple(values),
        changes=changes,
        latest=latest,
        accepted=accepted,
        worse_now=_worse_now(name, changes, latest, accepted),
    )


def _worse_now(name: str, changes: Sequence[ChangePoint], latest: float | None, accepted: float | None) -> bool:
    """Whether the latest level began with a worsening that matters and that nobody accepted."""
    threshold = load_thresholds().changes.get(name.replace("useful_", "").replace("tokens_per_second", "step_ms"))
    if not changes or changes[-1].verdict == "better" or threshold is None or latest is None:
        return False
    sign = -1.0 if name in RATES else 1.0
    if abs(math.log(changes[-1].after / changes[-1].before)) < math.log1p(threshold):
        return False
    return accepted is None or sign * math.log(latest / accepted) > math.log1p(threshold)


def _method() -> str:
    return (
        "PELT on robust logarithms, each place confirmed by Mann-Whitney. Chance that a history without any change gets"
        f" a change point: {LEVEL:.0%} each for the step time, the memory, the device and all stages together. A level "
        f"lasts {MIN_RUNS} runs or more"
    )
