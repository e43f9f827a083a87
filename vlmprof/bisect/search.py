"""Which commit to try next, and what the verdicts so far amount to: a pure state machine, no git and no I/O.

    search = Search(graph, good="v1", bad="main")
    while isinstance(step := search.next_step(), Evaluate):
        search.mark(step.commit, "good", reason)
    step.result     # Found | FoundSet | Inconclusive | EndsNotConfirmed

A search is nothing but its graph and the verdicts in the order they came: what was saved is resumed by marking the
same verdicts again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vlmprof.bisect.weights import ancestors, choose, parents_first

__all__ = [
    "Done",
    "EndsNotConfirmed",
    "Evaluate",
    "Found",
    "FoundSet",
    "Graph",
    "Inconclusive",
    "Mark",
    "Result",
    "Role",
    "Search",
    "Verdict",
]

Verdict = Literal["good", "bad", "skip"]
Role = Literal["bad end", "good end", "merge base", "search"]

PATIENCE = 16
"""Skips in a row that end the search: the way between tries doubles, so by then they lie everywhere."""


@dataclass(frozen=True)
class Graph:
    """The commits of GOOD..BAD. Parents outside of it may be named; they are known to be no suspects."""

    parents: Mapping[str, Sequence[str]]
    """Commit -> its parents, the first one first."""
    bases: tuple[str, ...] = ()
    """Merge bases of the ends where GOOD is no ancestor of BAD: tested first, as git does. Else empty."""


@dataclass(frozen=True)
class Mark:
    """A verdict and why it was given."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Found:
    """The one commit with which the symptom came (or went, with find_fix)."""

    commit: str


@dataclass(frozen=True)
class FoundSet:
    """One of `commits`; which one cannot be said, as all but the last could not be tested."""

    commits: tuple[str, ...]
    """Oldest first. The last one is known to have the symptom (with find_fix: not to have it)."""
    untested: tuple[str, ...] = ()
    """Those of them that were not tried, because everything around them could not be tested."""


@dataclass(frozen=True)
class Inconclusive:
    """There is no answer between these ends."""

    reason: str
    commit: str = ""


@dataclass(frozen=True)
class EndsNotConfirmed:
    """An end is not what the caller said it was."""

    end: Literal["good end", "bad end"]
    commit: str
    mark: Mark


Result = Found | FoundSet | Inconclusive | EndsNotConfirmed


@dataclass(frozen=True)
class Evaluate:
    """Try this commit next."""

    commit: str
    role: Role
    suspects: int
    """How many commits it may still be."""
    steps_left: int
    """Tries left in the worst case if none is skipped, this one included."""


@dataclass(frozen=True)
class Done:
    result: Result


@dataclass
class Search:
    """The search between one good and one bad end. With `find_fix`, `good` and `bad` are the older and the newer end
    all the same, but the older one has the symptom and the newer one has not."""

    graph: Graph
    good: str
    bad: str
    find_fix: bool = False
    first_parent: bool = False
    patience: int = PATIENCE
    marks: dict[str, Mark] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parents = self.graph.parents
        if self.bad not in parents:
            raise ValueError(f"the bad end {self.bad} is not in the graph")
        reach = 1 if self.first_parent else None
        known = {commit: tuple(p for p in listed[:reach] if p in parents) for commit, listed in parents.items()}
        self._order = parents_first(self.bad, known)
        self._parents = {commit: known[commit] for commit in self._order}

    def mark(self, commit: str, verdict: Verdict, reason: str = "") -> None:
        """Take the verdict on a commit; the last one on it counts.

        Raises:
            ValueError: the commit has nothing to do with this search.
        """
        if commit not in self._parents and commit != self.good and commit not in self.graph.bases:
            raise ValueError(f"{commit} is not part of this search")
        self.marks.pop(commit, None)  # a new verdict is also the newest
        self.marks[commit] = Mark(verdict, reason)

    def next_step(self) -> Evaluate | Done:
        """The commit to try next, or the answer."""
        return self._next_end() or self._next_base() or self._next_suspect()

    def suspects(self) -> list[str]:
        """The commits it may still be, parents first; the last one is known to have changed already."""
        new, old = self._verdicts()
        newest = self.bad
        cleared: set[str] = set()
        for commit, mark in self.marks.items():
            if commit not in self._parents:
                continue
            if mark.verdict == old:
                cleared |= ancestors(commit, self._parents)
            elif mark.verdict == new and commit != self.bad:
                newest = commit  # every try lies among the ancestors of the one before
        reachable = ancestors(newest, self._parents)
        return [commit for commit in self._order if commit in reachable and commit not in cleared]

    def _verdicts(self) -> tuple[Verdict, Verdict]:
        """What the newer and the older side of the change look like."""
        return ("good", "bad") if self.find_fix else ("bad", "good")

    def _next_end(self) -> Evaluate | Done | None:
        new, old = self._verdicts()
        ends: tuple[tuple[str, Literal["good end", "bad end"], Verdict], ...] = (
            (self.bad, "bad end", new),
            (self.good, "good end", old),
        )
        # the symptom is learned at the end that shows it, so that one goes first
        for commit, end, wanted in reversed(ends) if self.find_fix else ends:
            mark = self.marks.get(commit)
            if mark is None:
                return self._evaluate(commit, end, self._order)
            if mark.verdict != wanted:
                return Done(EndsNotConfirmed(end, commit, mark))
        return None

    def _next_base(self) -> Evaluate | Done | None:
        new, _ = self._verdicts()
        for base in self.graph.bases:
            mark = self.marks.get(base)
            if mark is None:
                return self._evaluate(base, "merge base", self._order)
            if mark.verdict == new:
                change = "came with" if self.find_fix else "was removed by"
                reason = (
                    f"the merge base {base[:12]} is {mark.verdict} already: what differs between the ends {change} a "
                    "commit on the good end's side, not on the bad end's"
                )
                return Done(Inconclusive(reason, base))
        return None

    def _next_suspect(self) -> Evaluate | Done:
        suspects = self.suspects()
        if len(suspects) == 1:
            return Done(Found(suspects[0]))
        newest = suspects[-1]
        skipped = {commit for commit in suspects if commit in self.marks and commit != newest}
        untested = [commit for commit in suspects if commit not in skipped and commit != newest]
        streak = self._skips_in_a_row()
        if not untested or streak >= self.patience:
            return Done(FoundSet(tuple(suspects), tuple(untested)))
        return self._evaluate(choose(suspects, self._parents, skipped, streak), "search", suspects)

    def _skips_in_a_row(self) -> int:
        count = 0
        for mark in reversed(self.marks.values()):
            if mark.verdict != "skip":
                break
            count += 1
        return count

    def _evaluate(self, commit: str, role: Role, suspects: Sequence[str]) -> Evaluate:
        left = math.ceil(math.log2(len(suspects))) if suspects else 0
        ends = [end for end in (self.bad, self.good, *self.graph.bases) if end not in self.marks]
        return Evaluate(commit, role, len(suspects), left + len(ends))
