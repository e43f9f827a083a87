"""The bisect document, `vlmprof.bisect/1`: what was asked, every probe, the answer. It is also the resumable state."""

from typing import Annotated, Literal

from pydantic import Field

from vlmprof.records.comparison import Verdict
from vlmprof.records.figures import Record

__all__ = [
    "BISECT_SCHEMA",
    "Answer",
    "Bisect",
    "CommitRecord",
    "Confirmation",
    "FailureSymptom",
    "Held",
    "Observation",
    "Plan",
    "Probe",
    "VerdictName",
]

BISECT_SCHEMA = "vlmprof.bisect/1"
VerdictName = Literal["good", "bad", "skip"]
FailureSymptom = Literal["same", "oom", "nan", "hang", "crash", "any"]


class CommitRecord(Record):
    sha: str
    author: str = ""
    date: str = ""
    """Of the commit, ISO 8601."""
    subject: str = ""


class Observation(Record):
    """What one execution at one commit showed, before anybody judges it: what the cache keeps."""

    exit_code: int | None = None
    """Absent where it was not run, or was ended at its time limit."""
    failure_class: str = ""
    signature: str = ""
    message: str = ""
    evidence: tuple[str, ...] = ()
    blocked: str = ""
    """Why it could not be run at all: a submodule, a fix-up, the set-up."""
    imported: tuple[str, ...] = ()
    """Where the proved module was imported from, within the worktree."""
    seconds: float = 0.0
    log: str = ""
    record: str = ""
    """The run record that it left; of runs in turns the comparison. Empty where it left none."""


class Held(Record):
    """The metric that is hunted, held against the end without the symptom."""

    verdict: Verdict
    change: float | None = None
    """Relative, 0.05 being 5 % more; absent where there is no ratio, as for losses."""
    text: str = ""
    """In half a sentence."""
    place: str = ""
    """The stage that explains most of the change, where one does; in half a sentence."""


class Probe(Record):
    """One commit tried, with its verdict."""

    commit: CommitRecord
    role: str
    verdict: VerdictName
    reason: str
    warning: str = ""
    observation: Observation
    held: Held | None = None
    """Absent where a failure is hunted, and where there was nothing to hold."""
    cached: bool = False
    """It was measured by an earlier bisect."""


class Plan(Record):
    """What was asked: all that a resumed search needs."""

    repository: str
    range: str
    old: str
    new: str
    bases: tuple[str, ...] = ()
    symptom: str = "same"
    """A failure (`FailureSymptom`), or the name of a metric of `vlmprof compare`."""
    threshold: float | None = None
    """Relative change of the metric that counts; absent: half of what the end with the symptom shows."""
    rounds: int = 0
    """Runs a side, in turns with the end without the symptom, of every probe of a metric; 0: one run of each commit."""
    find_fix: bool = False
    first_parent: bool = False
    command: tuple[str, ...] = ()
    """The probe, `{worktree}` still in it; empty: `vlmprof run`, or with `rounds` `vlmprof compare --ab`, with
    `run_arguments`."""
    run_arguments: tuple[str, ...] = ()
    setup: str = ""
    setup_depends: tuple[str, ...] = ()
    fixups: tuple[str, ...] = ()
    timeout: float | None = None
    prove: str = ""
    """Module whose origin must be the worktree; empty: megatron.core where the worktree holds it."""
    confirm: int = 2
    recipe: str = ""

    @property
    def without(self) -> str:
        """The end without the symptom."""
        return self.new if self.find_fix else self.old


class Confirmation(Record):
    """The culprit and its parent again, in turn; then the bad end with the culprit taken back."""

    parent: CommitRecord
    culprit_verdicts: tuple[VerdictName, ...] = ()
    parent_verdicts: tuple[VerdictName, ...] = ()
    revert: Literal["", "confirmed", "not confirmed", "does not apply", "cannot be tested"] = ""


class Answer(Record):
    kind: Literal["found", "found-set", "inconclusive", "ends-not-confirmed", "intermittent"]
    text: str
    """In one sentence."""
    commits: tuple[CommitRecord, ...] = ()
    """The culprit; or all that it may be, oldest first."""
    untested: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """What the culprit changes."""
    merge: CommitRecord | None = None
    """By which the culprit came to the main line of the bad end; absent when it was made there."""
    landed_before: tuple[CommitRecord, ...] = ()
    """Earlier commits that made the same change and were reverted."""
    notes: tuple[str, ...] = ()
    evidence: dict[str, tuple[str, ...]] = {}
    """good and bad -> the telling lines of that side."""
    logs: dict[str, str] = {}
    confirmation: Confirmation | None = None
    inside: "Answer | None" = None
    """In the submodule whose pin the culprit moved."""


class Bisect(Record):
    schema_: Annotated[str, Field(alias="schema")] = BISECT_SCHEMA
    created: str
    """UTC, ISO 8601."""
    plan: Plan
    probes: tuple[Probe, ...] = ()
    """In the order they were tried; a commit tried again stands there again."""
    answer: Answer | None = None
