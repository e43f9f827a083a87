"""The night document, `vlmprof.night/1`: what ran on which commit, what came of it, which commit is to blame.

It is also the resumable state of a night: written whole after every part, `finished` empty until the last one. Paths in
it are relative to the night's folder, so that the folder can be moved, zipped and uploaded.
"""

from typing import Annotated, Literal

from pydantic import Field

from vlmprof.records.bisect import Answer, CommitRecord
from vlmprof.records.figures import Record
from vlmprof.records.run import Outcome

__all__ = ["NIGHT_SCHEMA", "Good", "Matter", "Night", "NightTarget", "WorkloadNight", "WorkloadStatus"]

NIGHT_SCHEMA = "vlmprof.night/1"
WorkloadStatus = Literal["first", "good", "fixed", "regressed", "failed", "undecided", "not-done"]
"""first: nothing to compare with yet, from now on this commit is good. good: nothing worse than the last good commit.
fixed: good, and an earlier night's matter is closed by it. regressed: it trains, but something is surely worse.
failed: the training run failed. undecided: nothing surely worse, but something could not be told. not-done: never
begun, because the budget was used up."""


class NightTarget(Record):
    """The repository under test, and the commit of this night."""

    repository: str
    """Path or address as it was given, without credentials."""
    ref: str
    commit: CommitRecord


class Good(Record):
    """A commit on which a workload was good."""

    commit: CommitRecord
    date: str
    """When it was measured: UTC, ISO 8601."""


class Matter(Record):
    """A failure or a regression from the night that saw it first to the one in which it was gone."""

    id: str
    """Stays the same from night to night; workloads with one culprit share it."""
    title: str
    kind: Literal["failure", "metric", "time"]
    symptom: str
    """Failure signature, or the names of the metrics that are worse, with commas."""
    since: CommitRecord
    """The first commit at which a night saw it."""
    since_date: str
    good: Good | None = None
    """The last good commit before it."""
    culprit: CommitRecord | None = None
    hunted: str = ""
    """Which of several metrics the culprit was found for."""
    closed_by: CommitRecord | None = None
    """The commit of the night in which it was gone; absent while it is open."""


class WorkloadNight(Record):
    """One workload of the suite in one night."""

    name: str
    hash: str = ""
    platform: str = ""
    status: WorkloadStatus = "not-done"
    reason: str = ""
    """In one sentence."""
    good: Good | None = None
    """The last good commit before this night, that it was held against."""
    outcome: Outcome | None = None
    """How its training run ended."""
    run: str = ""
    """Path of the run folder; empty where nothing ran."""
    comparison: str = ""
    """Path of the comparison of tonight's run with the last good commit's, or with the baseline."""
    ab: str = ""
    """Path of the comparison of times, tonight's commit interleaved with the last good one."""
    bisect: str = ""
    """Path of the bisect document."""
    answer: Answer | None = None
    """Of that bisect."""
    matter: Matter | None = None
    """Of tonight's problem; where there is none, the one that this night closes."""
    other_matters: tuple[Matter, ...] = ()
    """Also closed by this night, or still open, as tonight's problem hides whether they are gone."""
    untold: str = ""
    """What could not be told, and why: not comparable, times that are undecided."""
    not_done: tuple[str, ...] = ()
    """Parts that the budget left no time for: run, times, bisect."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    """Wall time of all its parts."""

    @property
    def culprit(self) -> CommitRecord | None:
        """The one commit that did it, where one was found, tonight or in an earlier night."""
        if self.answer is not None and self.answer.kind == "found":
            return self.answer.commits[0]
        return self.matter.culprit if self.matter is not None else None


class Night(Record):
    schema_: Annotated[str, Field(alias="schema")] = NIGHT_SCHEMA
    created: str
    """UTC, ISO 8601."""
    finished: str = ""
    """UTC, ISO 8601; empty while it goes on, or where it was interrupted."""
    suite: str
    """Name or file as it was given."""
    suite_digest: str
    """Of the suite's content: a night is resumed only with the suite that it began with."""
    target: NightTarget
    bisect_range: str = ""
    """GOOD..BAD of a bisect by hand; then nothing is remembered."""
    budget_minutes: float | None = None
    accept: bool = False
    """What is worse was accepted: the changes are meant."""
    workloads: tuple[WorkloadNight, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 a regression or a culprit, else 3 a training run failed, else 4 something was left open, else 0."""
        codes = {exit_code_of(workload) for workload in self.workloads}
        return next((code for code in (1, 3, 4) if code in codes), 0)


def exit_code_of(workload: WorkloadNight) -> int:
    """What one workload has to say to the exit code of the night."""
    if workload.status == "regressed" or (workload.status == "failed" and workload.culprit is not None):
        return 1
    if workload.status == "failed":
        return 3
    return 4 if workload.status in ("undecided", "not-done") or workload.not_done else 0
