"""The parts of one workload's night: train it on tonight's commit, hold it against the last good one, find who did it.

Each part leaves its document in the workload's folder, and one that is there already is not done again.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlmprof.bisect.attempts import Watcher
from vlmprof.bisect.history import Repository
from vlmprof.bisect.metrics import MOST, half_of
from vlmprof.bisect.recipes import Recipe
from vlmprof.bisect.symptoms import normalise
from vlmprof.bisect.worktree import BlockedError
from vlmprof.compare.ab import LEAST_ROUNDS
from vlmprof.errors import MachineError, NoAnswerError, UserError
from vlmprof.launch import run_workload
from vlmprof.nightly.budget import Budget
from vlmprof.nightly.held_against import exactly, of_metrics, of_times, thresholds, untold_times
from vlmprof.nightly.probe import ProbeJob
from vlmprof.nightly.search import Search, keep
from vlmprof.nightly.state import Remembered, State
from vlmprof.nightly.suite import SuiteWorkload
from vlmprof.nightly.target import export, tree_of
from vlmprof.nightly.times import Checkout, interleave
from vlmprof.nightly.verdict import Problem, matter_of, of_failure
from vlmprof.records.baseline import find_baseline
from vlmprof.records.bisect import CommitRecord
from vlmprof.records.comparison import COMPARISON_SCHEMA, Comparison
from vlmprof.records.night import Good, WorkloadNight
from vlmprof.records.run import Outcome, Run
from vlmprof.records.store import dump_json, read_document, read_run, write_whole

__all__ = ["Parts", "Setting"]


ANSWERS = ("found", "found-set", "intermittent")
"""Kinds of answers after which the next metric is not hunted as well."""


@dataclass(frozen=True)
class Setting:
    """What all workloads of a night have in common."""

    repository: Repository
    tonight: CommitRecord
    created: str
    folder: Path
    state: State
    budget: Budget
    say: Callable[[str], None]
    watch: Watcher


class Parts:
    """One workload in one night."""

    def __init__(self, setting: Setting, name: str, entry: SuiteWorkload, key: str, before: Remembered) -> None:
        self.setting = setting
        self.name = name
        self.entry = entry
        self.workload = entry.load(name)
        self.key = key
        self.before = before
        self.folder = setting.folder / name

    def measure(self, part: WorkloadNight) -> WorkloadNight:
        """Train on tonight's commit.

        Raises:
            BudgetError: there is no time for it.
            KeyboardInterrupt: Ctrl-C or SIGTERM; nothing of it is left.
        """
        if part.outcome is not None:
            return part
        self.setting.budget.check()
        began = time.monotonic()
        self.setting.say(f"{self.name}: training at {self.setting.tonight.sha[:12]}")
        try:
            record, _ = self._train(self.setting.tonight.sha, self.folder / "run")
        except MachineError as error:
            return part.model_copy(update={"reason": str(error), "not_done": ("run",)})
        except (BlockedError, UserError) as error:
            # the folder names the commit: without it the same refusal reads the same in every night
            told = str(error).replace(str(tree_of(self.setting.state.trees, self.setting.tonight.sha)), "CHECKOUT")
            refused = Outcome(status="failed", failure_class="setup", signature=normalise(told), message=told)
            return part.model_copy(update={"outcome": refused, "seconds": time.monotonic() - began})
        facts = record.environment
        return part.model_copy(
            update={
                "run": f"{self.name}/run",
                "platform": facts.platform if facts else self.before.platform,
                "outcome": record.outcome,
                "seconds": time.monotonic() - began,
            }
        )

    def hold(self, part: WorkloadNight) -> WorkloadNight:
        """Hold tonight's record against that of the last good commit, or against the baseline where there is none.

        Raises:
            BudgetError, KeyboardInterrupt: as `measure`; only where the last good record is lost and measured anew.
        """
        if part.comparison or part.untold or part.outcome is None or part.outcome.status != "ok":
            return part
        tonight = read_run(self.folder / "run")
        try:
            good, label = self._accepted(tonight)
            if not good:
                return part
            comparison = exactly(good, tonight, (label, f"tonight {self.setting.tonight.sha[:12]}"))
        except UserError as error:
            return part.model_copy(update={"untold": f"not compared: {error}"})
        write_whole(self.folder / "comparison.json", dump_json(comparison))
        return part.model_copy(update={"comparison": f"{self.name}/comparison.json"})

    def _accepted(self, tonight: Run) -> tuple[Sequence[Run], str]:
        """The records to hold tonight's against, and what they are called; none on a first night without a baseline."""
        if self.before.good is None:
            try:
                return find_baseline(None, tonight).runs, "baseline"
            except NoAnswerError:
                return (), ""
        return [read_run(self._good_record(self.before.good))], f"last good {self.before.good.commit.sha[:12]}"

    def _good_record(self, good: Good) -> Path:
        """The record of the last good commit, measured anew where it is lost.

        Raises:
            UserError: it cannot be had, or training fails there today.
        """
        file = self.setting.state.good_file(self.key, good)
        if file is not None:
            return file
        self.setting.budget.check()
        self.setting.say(f"{self.name}: training at the good commit {good.commit.sha[:12]}")
        try:
            record, folder = self._train(good.commit.sha, self.folder / "good")
        except BlockedError as error:
            raise UserError(f"the good commit {good.commit.sha[:12]} cannot be had: {error}") from None
        if record.outcome.status != "ok":
            told = record.outcome.message or record.outcome.failure_class
            raise UserError(f"training fails at the good commit {good.commit.sha[:12]}, too: {told}")
        return folder / "run.json"

    def comparison(self, part: WorkloadNight, which: Literal["comparison", "ab"]) -> Comparison | None:
        """A comparison that was made tonight."""
        path = getattr(part, which)
        if not path:
            return None
        return read_document(self.setting.folder / path, Comparison, COMPARISON_SCHEMA, "comparison")

    def problem(self, part: WorkloadNight) -> Problem | None:
        """What is wrong, of all that was measured."""
        return (
            of_failure(part.outcome)
            or of_metrics(self.comparison(part, "comparison"))
            or of_times(self.comparison(part, "ab"))
        )

    def times(self, part: WorkloadNight) -> WorkloadNight:
        """Run the last good commit and tonight's in turns, where the suite wants it and nothing is wrong so far.

        Raises:
            BudgetError: the time is used up; the runs that were made stay in the night's folder.
            KeyboardInterrupt: Ctrl-C or SIGTERM; the runs that were made are counted when the night goes on.
        """
        good, tonight = self.before.good, self.setting.tonight
        ok = part.outcome is not None and part.outcome.status == "ok"
        if not self.entry.rounds or good is None or good.commit.sha == tonight.sha or not ok:
            return part
        if part.ab or part.untold or self.problem(part) is not None:
            return part
        self.setting.budget.check()
        began = time.monotonic()
        self.setting.say(f"{self.name}: {good.commit.sha[:12]} and {tonight.sha[:12]} in turns")

        def tell(line: str) -> None:
            self.setting.say(f"  {line}")
            self.setting.budget.check()

        try:
            comparison = interleave(
                self.workload,
                self.entry,
                self._checkout(good.commit.sha, "last good"),
                self._checkout(tonight.sha, "tonight"),
                self.folder / "ab",
                tell,
            )
        except (BlockedError, UserError) as error:
            return part.model_copy(update={"untold": f"times were not compared: {error}"})
        write_whole(self.folder / "ab.json", dump_json(comparison))
        return part.model_copy(
            update={
                "ab": f"{self.name}/ab.json",
                "untold": untold_times(comparison),
                "seconds": part.seconds + time.monotonic() - began,
            }
        )

    def _checkout(self, sha: str, what: str) -> Checkout:
        return Checkout(export(self.setting.repository, sha, self.setting.state.trees), f"{what} {sha[:12]}")

    def search(self, part: WorkloadNight, problem: Problem, hints: Sequence[str]) -> WorkloadNight:
        """Find the commit to blame. `hints`: culprits that other workloads found tonight.

        Raises:
            BudgetError: the time is used up; the next night goes on.
            KeyboardInterrupt: Ctrl-C or SIGTERM; what was measured is kept.
        """
        if not problem.searchable:
            return _noted(part, "neither bisected nor kept in mind: a failure of this kind is hardly a commit's doing")
        matter = matter_of(problem, self.name, self.before, self.setting.tonight, self.setting.created)
        part = part.model_copy(update={"matter": matter})
        why_not = self._why_not(matter.culprit)
        if why_not or self.before.good is None:
            return _noted(part, why_not)
        self.setting.budget.check()
        began = time.monotonic()
        good = matter.good or self.before.good
        self.setting.say(
            f"{self.name}: {problem.text}: bisecting {good.commit.sha[:12]}..{self.setting.tonight.sha[:12]}"
        )
        search = Search(
            self.setting.repository, self.setting.state.bisect_folder(self.key), self.setting.budget, self.setting.watch
        )
        ends = good.commit.sha, self.setting.tonight.sha
        try:
            for metric in problem.metrics or ("",):
                recipe = self._recipe(problem, metric, search)
                done = search.between(*ends, recipe, self.setting.created, hints)
                if done.answer is not None and done.answer.kind in ANSWERS:
                    break
        except (BlockedError, UserError) as error:  # MachineError as well: no answer here, the others go on
            return _noted(part, f"not bisected: {error}")
        kept = keep(done, search.state, self.folder / "bisect")
        if kept.answer is not None and kept.answer.kind == "found":
            matter = matter.model_copy(update={"culprit": kept.answer.commits[0], "hunted": metric})
        return part.model_copy(
            update={
                "bisect": f"{self.name}/bisect/bisect.json",
                "answer": kept.answer,
                "matter": matter,
                "seconds": part.seconds + time.monotonic() - began,
            }
        )

    def _recipe(self, problem: Problem, metric: str, search: Search) -> Recipe:
        """How to hunt a failure, or one metric of those that are worse."""
        entry = self.entry
        if problem.kind == "failure":
            job = ProbeJob(workload=self.workload, entry=entry)
            return Recipe(command=search.command(job), confirm=entry.confirm)
        in_turns = problem.kind == "time"
        threshold = None
        if in_turns:
            # one digit, so that the question stays the same when the next night measures a little more or less
            half = float(f"{half_of(problem.change or 0.0):.0e}")
            threshold = max(min(half, MOST), thresholds(entry.slowdown).changes[metric])
        return Recipe(
            symptom=metric,
            threshold=threshold,
            rounds=max(entry.rounds, LEAST_ROUNDS) if in_turns else None,
            workload=entry.workload or self.name,
            set=entry.set,
            data=entry.data,
            steps=entry.steps,
            warmup=entry.warmup,
            nproc=entry.nproc,
            stage_breakdown=entry.stage_breakdown,
            memory_limit="" if in_turns else entry.memory_limit,
            timeout=entry.timeout,
            confirm=entry.confirm,
        )

    def _why_not(self, culprit: CommitRecord | None) -> str:
        """Why there is nothing to search; empty when there is."""
        good = self.before.good
        if culprit is not None:
            return f"not bisected again: {culprit.sha[:12]} was found to have done it"
        if good is None:
            return "not bisected, as no good commit is known: name one with --bisect GOOD..BAD"
        if good.commit.sha == self.setting.tonight.sha:
            return f"not bisected: the same commit was good on {good.date[:10]}, so something else has changed"
        return ""

    def _train(self, commit: str, folder: Path) -> tuple[Run, Path]:
        """The record of the workload on `commit`, made now or by the part of the night before it was interrupted."""
        if (folder / "run.json").exists():
            record = read_run(folder)
            if record.outcome.status != "interrupted":
                return record, folder
        shutil.rmtree(folder, ignore_errors=True)
        tree = export(self.setting.repository, commit, self.setting.state.trees)
        record, _ = run_workload(self.workload, self.entry.options(tree, folder))
        if record.outcome.status == "interrupted":
            shutil.rmtree(folder, ignore_errors=True)
            raise KeyboardInterrupt
        return record, folder


def _noted(part: WorkloadNight, note: str) -> WorkloadNight:
    return part if note in part.notes else part.model_copy(update={"notes": (*part.notes, note)})
