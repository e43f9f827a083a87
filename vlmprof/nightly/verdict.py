"""What a workload's night comes to: its problem if it has one, its status, and the matters that it opens and closes.

Pure: from what was measured and what was remembered before the night.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from vlmprof.nightly.state import Remembered
from vlmprof.records.bisect import CommitRecord
from vlmprof.records.night import Good, Matter, WorkloadNight
from vlmprof.records.run import Outcome

__all__ = ["Problem", "after", "matter_of", "of_failure", "settle", "share_matters"]

PASSING = ("hardware", "host-oom", "killed")
"""Failure classes of which a commit is hardly the cause: told, but neither bisected nor kept as a matter."""
TITLE_LENGTH = 120


@dataclass(frozen=True)
class Problem:
    kind: Literal["failure", "metric", "time"]
    symptom: str
    """Failure signature, or names of metrics with commas."""
    text: str
    """In one sentence."""
    searchable: bool = True
    """Whether a commit may be to blame."""
    change: float | None = None
    """Of times: the largest relative change."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those that are worse; none of a failure."""
        return () if self.kind == "failure" else tuple(self.symptom.split(", "))

    def is_that_of(self, matter: Matter) -> bool:
        """Whether `matter` is about the same: the same failure, or a metric in common."""
        if self.kind == "failure" or matter.kind != self.kind:
            return (matter.kind, matter.symptom) == (self.kind, self.symptom)
        return bool(set(self.metrics) & set(matter.symptom.split(", ")))


def of_failure(outcome: Outcome | None) -> Problem | None:
    """The problem of a run that failed."""
    if outcome is None or outcome.status != "failed":
        return None
    kind = outcome.failure_class or "failure"
    text = f"{kind}: {outcome.message}" if outcome.message else kind
    return Problem("failure", outcome.signature or text, text, outcome.failure_class not in PASSING)


def matter_of(problem: Problem, name: str, before: Remembered, tonight: CommitRecord, date: str) -> Matter:
    """The open matter that `problem` belongs to, or a new one.

    Where the metric that its culprit was found for is mended, what is still worse is another's doing, not known yet.
    """
    for known in before.matters:
        if problem.is_that_of(known):
            mended = known.hunted and known.hunted not in problem.metrics
            return known.model_copy(update={"culprit": None, "hunted": ""}) if mended else known
    text = " ".join(f"{name}: {problem.text}".split())
    seed = "\0".join((name, before.platform, problem.kind, problem.symptom, tonight.sha))
    return Matter(
        id=hashlib.sha256(seed.encode()).hexdigest()[:12],
        title=text if len(text) <= TITLE_LENGTH else text[: TITLE_LENGTH - 1] + "…",
        kind=problem.kind,
        symptom=problem.symptom,
        since=tonight,
        since_date=date,
        good=before.good,
    )


def settle(
    part: WorkloadNight,
    problem: Problem | None,
    before: Remembered,
    tonight: CommitRecord,
    accepted: Problem | None = None,
) -> WorkloadNight:
    """`part` with its status, the reason for it, and what becomes of the matters that were open before.

    Args:
        part: everything measured; `matter` is that of `problem`.
        problem: what is wrong.
        before: what was remembered before the night.
        tonight: the commit.
        accepted: what is worse and meant to be; it is no problem, then, and neither is what was open.
    """
    gone = {matter.id for matter in before.matters if accepted or _is_gone(matter, part, problem)}
    matters = [
        matter.model_copy(update={"closed_by": tonight}) if matter.id in gone else matter
        for matter in before.matters
        if part.matter is None or matter.id != part.matter.id
    ]
    closed = [matter for matter in matters if matter.closed_by is not None]
    status, reason = _status(part, problem, before, tonight, closed)
    if accepted is not None:
        status, reason = "good", f"accepted: {accepted.text}"
    if problem is None and part.outcome is not None and len(closed) < len(matters):
        status = "undecided"
        reason = part.untold or "not seen tonight, but not looked at either: " + "; ".join(
            matter.title for matter in matters if matter.closed_by is None
        )
    main = part.matter
    if main is None and status == "fixed":
        main = closed[0]
    others = tuple(matter for matter in matters if main is None or matter.id != main.id)
    return part.model_copy(update={"status": status, "reason": reason, "matter": main, "other_matters": others})


def _status(
    part: WorkloadNight,
    problem: Problem | None,
    before: Remembered,
    tonight: CommitRecord,
    closed: list[Matter],
) -> tuple[str, str]:
    if problem is not None:
        return ("failed" if problem.kind == "failure" else "regressed"), problem.text
    if part.outcome is None:
        return "not-done", part.reason or "the budget was used up before it began"
    if part.untold or "comparison" in part.not_done:
        return "undecided", part.untold or "no time was left to compare it"
    if closed:
        return "fixed", f"gone: {'; '.join(matter.title for matter in closed)}"
    if before.good is None and not part.comparison:
        return "first", "nothing to compare with yet: it is good from now on"
    if part.good is None:
        return "good", "nothing is worse than the baseline"
    if part.good.commit.sha == tonight.sha:
        return "good", "the commit that was good before, and nothing is worse"
    return "good", f"nothing is worse than at {part.good.commit.sha[:12]}"


def _is_gone(matter: Matter, part: WorkloadNight, problem: Problem | None) -> bool:
    """Whether the night saw that what `matter` is about is no longer so; what it did not look at may still be."""
    if problem is not None and problem.is_that_of(matter):
        return False
    if part.outcome is None or part.outcome.status != "ok":
        return False
    if matter.kind == "failure":
        return True
    if matter.kind == "metric":
        return bool(part.comparison)
    return bool(part.ab) and not part.untold


def share_matters(parts: Iterable[WorkloadNight], open_before: Iterable[Matter]) -> tuple[WorkloadNight, ...]:
    """Workloads whose matters have one culprit share its id: one regression, one issue."""
    ids = {matter.culprit.sha: matter.id for matter in open_before if matter.culprit is not None}
    shared = []
    for part in parts:
        matter = part.matter
        if matter is not None and matter.culprit is not None and matter.closed_by is None:
            matter = matter.model_copy(update={"id": ids.setdefault(matter.culprit.sha, matter.id)})
        shared.append(part.model_copy(update={"matter": matter}))
    return tuple(shared)


def after(part: WorkloadNight, before: Remembered, tonight: CommitRecord, date: str, moves: bool) -> Remembered:
    """What is remembered of a workload after the night. `moves`: tonight's commit is not behind the last good one."""
    if part.status == "not-done":
        return before
    every = [*([part.matter] if part.matter is not None else []), *part.other_matters]
    still = tuple(matter for matter in every if matter.closed_by is None)
    if part.status in ("first", "good", "fixed") and not part.not_done and moves:
        return Remembered(good=Good(commit=tonight, date=date), platform=part.platform, matters=still)
    return before.model_copy(update={"matters": still})
