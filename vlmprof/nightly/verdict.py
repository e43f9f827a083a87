"""What a workload's night comes to: its problem if it has one, its status, and the matter that is open or closed by it.

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
    """The same symptom in another night is the same matter."""
    text: str
    """In one sentence."""
    searchable: bool = True
    """Whether a commit may be to blame."""


def of_failure(outcome: Outcome | None) -> Problem | None:
    """The problem of a run that failed."""
    if outcome is None or outcome.status != "failed":
        return None
    kind = outcome.failure_class or "failure"
    text = f"{kind}: {outcome.message}" if outcome.message else kind
    return Problem("failure", outcome.signature or text, text, outcome.failure_class not in PASSING)


def matter_of(problem: Problem, name: str, before: Remembered, tonight: CommitRecord, date: str) -> Matter:
    """The open matter that `problem` belongs to, or a new one."""
    known = before.matter
    if known is not None and (known.kind, known.symptom) == (problem.kind, problem.symptom):
        return known
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
    part: WorkloadNight, problem: Problem | None, before: Remembered, tonight: CommitRecord, undecided: str = ""
) -> WorkloadNight:
    """`part` with its status and the reason for it. `undecided`: what could not be told, and why."""
    known = before.matter
    if problem is not None:
        status = "failed" if problem.kind == "failure" else "regressed"
        return part.model_copy(update={"status": status, "reason": problem.text})
    if part.not_done and not part.run:
        reason = part.reason or "the budget was used up before it began"
        return part.model_copy(update={"status": "not-done", "reason": reason, "matter": known})
    untold = undecided or ("times were not compared" if "times" in part.not_done else "")
    if untold and (undecided or (known is not None and known.kind == "time")):
        return part.model_copy(update={"status": "undecided", "reason": untold, "matter": known})
    if known is not None:
        closed = known.model_copy(update={"closed_by": tonight})
        return part.model_copy(update={"status": "fixed", "reason": f"gone: {known.title}", "matter": closed})
    if before.good is None and part.good is None:
        return part.model_copy(
            update={"status": "first", "reason": "nothing to compare with yet: it is good from now on"}
        )
    return part.model_copy(update={"status": "good", "reason": _nothing_worse(part, tonight)})


def _nothing_worse(part: WorkloadNight, tonight: CommitRecord) -> str:
    if part.good is None:
        return "nothing is worse than the baseline"
    if part.good.commit.sha == tonight.sha:
        return "the commit that was good before, and nothing is worse"
    return f"nothing is worse than at {part.good.commit.sha[:12]}"


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
    matter = part.matter if part.matter is not None and part.matter.closed_by is None else None
    if part.status not in ("first", "good", "fixed") or part.not_done:
        return before.model_copy(update={"matter": matter})
    if not moves:
        return before.model_copy(update={"matter": matter})
    return Remembered(good=Good(commit=tonight, date=date), platform=part.platform, matter=matter)
