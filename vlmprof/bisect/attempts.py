"""Attempts: a commit tried once and written down, or read back from what an interrupted bisect wrote down.

The attempts that a bisect asks for follow from the earlier verdicts alone. So a resumed one asks for the same ones
again, is given the recorded ones, and runs nothing twice.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vlmprof.bisect.history import Repository
from vlmprof.bisect.metrics import Yardstick, metric_names
from vlmprof.bisect.probe import Prober, cache_key
from vlmprof.bisect.state import State
from vlmprof.bisect.verdict import judge, judge_metric
from vlmprof.bisect.worktree import BlockedError, Fixup, Worktree
from vlmprof.records.bisect import Bisect, CommitRecord, Observation, Probe

__all__ = ["Attempts", "Target", "Watcher"]


@dataclass(frozen=True)
class Target:
    """What to try: a commit, and what to change about it."""

    commit: str
    role: str
    revert: str = ""
    """A commit to take back on top of it."""
    fresh: bool = False
    """Measure it anew, whatever was measured before."""
    path: str = ""
    """A submodule to put to `pin` instead of where the commit has it."""
    pin: str = ""


class Watcher(Protocol):
    """Is told of every attempt."""

    def trying(self, commit: CommitRecord, role: str, steps_left: int) -> None:
        """It begins."""

    def tried(self, probe: Probe, steps_left: int) -> None:
        """It has its verdict."""


class Attempts:
    """Tries targets, and keeps the document up to date on disk."""

    def __init__(
        self, document: Bisect, state: State, repository: Repository, fixups: Sequence[Fixup], watch: Watcher
    ) -> None:
        self.plan = document.plan
        self.worktree = Worktree(state.tree, repository)
        self.repository = repository.read_through(self.worktree.git)
        self.probes: list[Probe] = []
        self._recorded = deque(document.probes)
        self._document = document
        self._state = state
        self._fixups = fixups
        self.yardstick = Yardstick(self.plan) if self.plan.symptom in metric_names() else None
        """Where a metric is hunted."""
        self._good_tree = Worktree(state.good_tree, repository)
        self._prober = Prober(
            self.plan, self.worktree, fixups, state.logs, self._good_tree if self.plan.rounds else None
        )
        self._watch = watch
        self._reference: Observation | None = None

    def remove_trees(self) -> None:
        """Take away what was checked out; records and logs stay."""
        self.worktree.remove()
        self._good_tree.remove()

    def document(self) -> Bisect:
        """Everything so far."""
        return self._document.model_copy(update={"probes": tuple(self.probes)})

    def attempt(
        self, target: Target, steps_left: int = 0, describe: Callable[[str], CommitRecord] | None = None
    ) -> Probe:
        """Try `target`. `describe` tells of commits that are not the repository's own.

        Raises:
            MachineError: the probe tested something else than the commit; no space.
            KeyboardInterrupt: Ctrl-C; what was measured is kept.
        """
        wanted = target.pin or target.commit
        if self._recorded and _answers(self._recorded[0], wanted, target.role):
            probe = self._recorded.popleft()
            self.probes.append(probe)
        else:
            self._recorded.clear()
            commit = (describe or self.repository.commit)(wanted)
            self._watch.trying(commit, target.role, steps_left)
            probe = self._judged(target, commit)
            self.probes.append(probe)
            self._state.write(self.document())
        self._learn(probe)
        self._watch.tried(probe, steps_left)
        return probe

    def _learn(self, probe: Probe) -> None:
        """The ends say what is hunted."""
        if self.yardstick is not None:
            self.yardstick.learn(probe)
        end = "good end" if self.plan.find_fix else "bad end"
        if self._reference is None and probe.role == end and probe.verdict == "bad":
            self._reference = probe.observation

    def _judged(self, target: Target, commit: CommitRecord) -> Probe:
        if self.yardstick and self.yardstick.is_anchor(target.commit, target.role):
            text = "what the others run in turns with"
            return Probe(commit=commit, role=target.role, verdict="good", reason=text, observation=Observation())
        seen, cached = self._observed(target)
        if self.yardstick is None:
            held, judgement = None, judge(seen, self.plan.symptom, self._reference)
        else:
            held = self.yardstick.hold(seen)
            judgement = judge_metric(seen, self.plan.symptom, held)
        return Probe(
            commit=commit,
            role=target.role,
            verdict=judgement.verdict,
            reason=judgement.reason,
            warning=judgement.warning,
            observation=seen,
            held=held,
            cached=cached,
        )

    def _observed(self, target: Target) -> tuple[Observation, bool]:
        threshold = self.yardstick.threshold if self.yardstick else None
        tree = self._tree_without_checkout(target)
        if tree and (known := self._state.recall(cache_key(self.plan, tree, threshold))):
            return known, True
        try:
            tree = self._prober.prepare(target.commit, target.revert)
            if target.path:
                tree = self.worktree.pin_submodule(target.path, target.pin)
        except BlockedError as error:
            return Observation(blocked=str(error)), False
        key = cache_key(self.plan, tree, threshold)
        known = None if target.fresh else self._state.recall(key)
        if known is not None:
            return known, True
        label = key[:16] + (f"-{len(self.probes)}" if target.fresh else "")
        seen = self._prober.measure(label, threshold, by_stage=target.fresh)
        if not target.fresh:
            self._state.remember(key, seen)
        return seen, False

    def _tree_without_checkout(self, target: Target) -> str:
        if target.fresh or target.revert or target.path or self._fixups:
            return ""
        return self.repository.git.line("rev-parse", f"{target.commit}^{{tree}}")


def _answers(recorded: Probe, wanted: str, role: str) -> bool:
    """Whether what was written down is the probe that is asked for, its record still there."""
    record = recorded.observation.record
    return (recorded.commit.sha, recorded.role) == (wanted, role) and (not record or Path(record).exists())
