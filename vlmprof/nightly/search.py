"""A night's bisect: between the last good commit and tonight's, with the suite's own workload."""

import hashlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from vlmprof.bisect import State as BisectState
from vlmprof.bisect import begin, make_plan, resume
from vlmprof.bisect.attempts import Watcher
from vlmprof.bisect.history import Repository
from vlmprof.bisect.recipes import Recipe
from vlmprof.errors import UserError
from vlmprof.nightly.budget import Budget
from vlmprof.nightly.probe import ProbeJob
from vlmprof.records.bisect import Bisect, CommitRecord, Plan, Probe
from vlmprof.records.store import dump_json, write_whole

__all__ = ["Search", "keep"]

PROGRAM = "import sys; from vlmprof.nightly.probe import main; sys.exit(main(*sys.argv[1:]))"
"""Not `-m`: the package imports the module before it would run."""


class _Budgeted:
    """Tells the watcher, and stops before an attempt for which there is no time."""

    def __init__(self, budget: Budget, watch: Watcher) -> None:
        self._budget = budget
        self._watch = watch

    def trying(self, commit: CommitRecord, role: str, steps_left: int) -> None:
        self._budget.check()
        self._watch.trying(commit, role, steps_left)

    def tried(self, probe: Probe, steps_left: int) -> None:
        self._watch.tried(probe, steps_left)


class Search:
    """Bisects of one workload. What was measured is kept in `folder` for later nights, and an unfinished one."""

    def __init__(self, repository: Repository, folder: Path, budget: Budget, watch: Watcher) -> None:
        self.repository = repository
        self.state = BisectState(folder)
        self._watch = _Budgeted(budget, watch)

    def between(self, good: str, bad: str, recipe: Recipe, since: str, hints: Sequence[str]) -> Bisect:
        """Which commit did it. `hints` are culprits of other workloads: they are tried before the whole range.

        `since`: an answer that is not older is taken as it is (a resumed night's).

        Raises:
            UserError: between the two there is nothing to search, or the clone is shallow.
            MachineError: no space; a probe tested something else than its commit.
            BudgetError: the time is used up; the next night goes on.
            KeyboardInterrupt: Ctrl-C or SIGTERM; what was measured is kept.
        """
        self.repository.refuse_shallow()
        self.repository.ends(f"{good}..{bad}")
        for hint in hints:
            parents = self.repository.parents(hint)
            if not parents or not self._within(hint, good, bad):
                continue
            done = self._ask(self._plan(f"{parents[0]}..{hint}", recipe), since)
            if done.answer is not None and done.answer.kind == "found":
                return done
        return self._ask(self._plan(f"{good}..{bad}", recipe), since)

    def _plan(self, text: str, recipe: Recipe) -> Plan:
        return make_plan(self.repository, text, recipe, self.state.folder, name="nightly")

    def command(self, job: ProbeJob) -> tuple[str, ...]:
        """The probe of a failure."""
        return (sys.executable, "-P", "-c", PROGRAM, str(self._job_file(job)), "{worktree}")

    def _within(self, commit: str, good: str, bad: str) -> bool:
        return self.repository.is_ancestor(commit, bad) and not self.repository.is_ancestor(commit, good)

    def _job_file(self, job: ProbeJob) -> Path:
        text = dump_json(job)
        file = self.state.folder / "jobs" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_whole(file, text)
        return file

    def _ask(self, plan: Plan, since: str) -> Bisect:
        """Answer `plan`, going on with an interrupted bisect of the same question."""
        before = self._before()
        if before is not None and before.answer is not None and before.plan == plan and before.created >= since:
            return before
        if before is not None and before.answer is None:
            if _same_question(before.plan, plan):
                return resume(self.state, self._watch)
            self.state.tell(abort=True)
        return begin(plan, self.state, self._watch)

    def _before(self) -> Bisect | None:
        try:
            return self.state.read()
        except UserError:  # damaged or of another version: what was measured lies elsewhere
            self.state.tell(abort=True)
            return None


def _same_question(before: Plan, plan: Plan) -> bool:
    """Whether its answer answers `plan`, too: its bad end may be an earlier night's."""
    return before.model_copy(update={"new": plan.new, "range": plan.range, "bases": plan.bases}) == plan


def keep(document: Bisect, state: BisectState, folder: Path) -> Bisect:
    """The bisect in the night's folder: document, git's log and every probe's log, by names relative to `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    def copied(log: str) -> str:
        source = Path(log)
        if not log or not source.is_file():
            return ""
        shutil.copyfile(source, folder / source.name)
        return source.name

    probes = tuple(
        probe.model_copy(
            update={
                "observation": probe.observation.model_copy(
                    update={"log": copied(probe.observation.log), "record": ""}  # what it told stands in the probe
                )
            }
        )
        for probe in document.probes
    )
    answer = document.answer
    if answer is not None:
        answer = answer.model_copy(update={"logs": {side: copied(log) for side, log in answer.logs.items()}})
    kept = document.model_copy(update={"probes": probes, "answer": answer})
    if state.books.exists():
        shutil.copyfile(state.books, folder / "git-bisect.log")
    write_whole(folder / "bisect.json", dump_json(kept))
    return kept
