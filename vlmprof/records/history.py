"""The history, `vlmprof.history/1`: one value a run of every metric, run after run, and where its level changed."""

from typing import Annotated, Literal

from pydantic import Field

from vlmprof.records.figures import Record

__all__ = ["HISTORY_SCHEMA", "ChangePoint", "History", "HistoryRun", "MetricHistory", "Series"]

HISTORY_SCHEMA = "vlmprof.history/1"


class HistoryRun(Record):
    record: str
    """Path of the record."""
    created: str
    """UTC, ISO 8601."""
    status: str
    failure_class: str | None = None
    commit: str = ""
    """What was measured: commit of the Megatron checkout, or `megatron-core==X` of a release."""


class ChangePoint(Record):
    """A level that lasted, and another that followed."""

    run: int
    """Index of the first run of the new level."""
    last_before: int
    """Index of the last run of the old level that has this metric."""
    before: float
    """Median of the old level."""
    after: float
    change: float
    """Relative: after / before - 1."""
    p: float
    """Chance of such a difference somewhere in a history without any change."""
    verdict: Literal["worse", "better"]
    runs_before: int
    """Length of the old level."""
    runs_after: int


class MetricHistory(Record):
    name: str
    unit: str
    values: tuple[float | None, ...]
    """One a run; null where it failed or did not measure this."""
    changes: tuple[ChangePoint, ...] = ()
    latest: float | None = None
    """Median of the latest level."""
    accepted: float | None = None
    """Median of the accepted runs of the baseline, where a store was named and has one."""
    worse_now: bool = False
    """The latest level began with a worsening beyond the threshold, and no baseline accepts it."""


class Series(Record):
    """The runs of one workload on one platform, in order of time."""

    platform: str
    workload: str
    hash: str
    runs: tuple[HistoryRun, ...]
    metrics: tuple[MetricHistory, ...]
    too_few: bool = False
    """Too few runs ended well to find anything."""


class History(Record):
    schema_: Annotated[str, Field(alias="schema")] = HISTORY_SCHEMA
    folder: str
    method: str
    series: tuple[Series, ...]
