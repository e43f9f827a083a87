"""A whole bisect: the ends, the search, the confirmation, the answer."""

from datetime import UTC, datetime
from pathlib import Path

from vlmprof.bisect.answer import culprit_text, evidence_of, name, without_culprit
from vlmprof.bisect.attempts import Attempts, Target, Watcher
from vlmprof.bisect.confirm import confirm, disagreement, look_inside
from vlmprof.bisect.git import printable
from vlmprof.bisect.history import Ends, Repository, open_repository
from vlmprof.bisect.search import EndsNotConfirmed, Evaluate, Found, FoundSet, Mark, Result, Search
from vlmprof.bisect.state import State
from vlmprof.bisect.worktree import parse_fixup
from vlmprof.errors import UserError
from vlmprof.launch.children import stop_on_sigterm
from vlmprof.records.bisect import Answer, Bisect, Plan, Probe
from vlmprof.records.store import write_whole

__all__ = ["begin", "resume"]

SEARCH_ROLES = ("bad end", "good end", "merge base", "search")


def begin(plan: Plan, state: State, watch: Watcher) -> Bisect:
    """A new bisect, to its answer.

    Raises:
        UserError: an unfinished one is there, or a fix-up is none.
        MachineError: no space; a probe tested something else than its commit.
        KeyboardInterrupt: Ctrl-C or SIGTERM; `resume` goes on.
    """
    with state.locked():
        if state.unfinished() is not None:
            raise UserError("a bisect of this repository is unfinished: go on with --resume, or drop it with --abort")
        state.clear()
        return _drive(Bisect(created=datetime.now(UTC).isoformat(timespec="seconds"), plan=plan), state, watch)


def resume(state: State, watch: Watcher) -> Bisect:
    """Go on with the unfinished bisect; an answered one is returned as it is. Raises as `begin`."""
    with state.locked():
        document = state.read()
        if document is None:
            raise UserError("there is no bisect of this repository to resume")
        return document if document.answer is not None else _drive(document, state, watch)


def _drive(document: Bisect, state: State, watch: Watcher) -> Bisect:
    repository = open_repository(Path(document.plan.repository))
    fixups = [parse_fixup(text, repository) for text in document.plan.fixups]
    attempts = Attempts(document, state, repository, fixups, watch)
    with stop_on_sigterm():
        state.write(document)
        attempts.worktree.create(document.plan.new)
        answer = _Bisection(attempts, state).answer()
        done = attempts.document().model_copy(update={"answer": answer})
        state.write(done)
        attempts.remove_trees()
    return done


class _Bisection:
    def __init__(self, attempts: Attempts, state: State) -> None:
        self.attempts = attempts
        self.plan = attempts.plan
        self.repository: Repository = attempts.repository
        self._state = state
        self._known: dict[str, Probe] = {}

    def answer(self) -> Answer:
        ends = Ends(self.plan.old, self.plan.new, self.plan.bases)
        result, notes = self._past_reverts(self._without_yardstick() or self._search(ends), ends)
        if isinstance(result, Found):
            return self._found(result.commit, ends, notes)
        answer = without_culprit(result, self.plan, self.repository.commit)
        last = self._known.get(answer.commits[-1].sha) if answer.commits else None
        evidence, logs = evidence_of({"bad" if isinstance(result, FoundSet) else "seen": last})
        return answer.model_copy(update={"evidence": evidence, "logs": logs, "notes": tuple(notes)})

    def _without_yardstick(self) -> EndsNotConfirmed | None:
        """Where a metric is hunted the end without it comes first, as all others are held against it; the answer where
        it cannot be measured."""
        yardstick = self.attempts.yardstick
        if yardstick is None:
            return None
        end, role = self.plan.without, yardstick.role
        probe = self._known[end] = self.attempts.attempt(Target(end, role))
        return None if probe.verdict == "good" else EndsNotConfirmed(role, end, Mark(probe.verdict, probe.reason))

    def _search(self, ends: Ends) -> Result:
        """Search between `ends`; what is known already is not tried again, but entered in the books."""
        graph = self.repository.graph(ends, self.plan.first_parent)
        search = Search(graph, ends.old, ends.new, self.plan.find_fix, self.plan.first_parent)
        books = self.attempts.worktree
        books.start_books(self.plan.find_fix, self.plan.first_parent)
        while isinstance(step := search.next_step(), Evaluate):
            probe = self._known.get(step.commit) or self.attempts.attempt(
                Target(step.commit, step.role), step.steps_left
            )
            self._known[step.commit] = probe
            search.mark(step.commit, probe.verdict, probe.reason)
            books.enter(step.commit, probe.verdict, self.plan.find_fix)
            write_whole(self._state.books, printable(books.books()))
        return step.result

    def _past_reverts(self, result: Result, ends: Ends) -> tuple[Result, list[str]]:
        """With which commit the symptom came for the last time: a change may land, be reverted, and land again."""
        notes: list[str] = []
        while isinstance(result, Found) and not self.plan.find_fix:
            culprit = result.commit
            reverts = self.repository.reverts(culprit, ends.new)
            if not reverts:
                break
            probe = self._known.get(reverts[0]) or self.attempts.attempt(Target(reverts[0], "search"))
            self._known[reverts[0]] = probe
            if probe.verdict != "good":
                notes.append(f"{name(reverts[0])} takes its change back, and is {probe.verdict} all the same")
                break
            notes.append(f"{name(culprit)} had the symptom before, until {name(reverts[0])} took it back")
            result = self._search(Ends(reverts[0], ends.new))
        return result, notes

    def _found(self, culprit: str, ends: Ends, notes: list[str]) -> Answer:
        commit, probe = self.repository.commit(culprit), self._known[culprit]
        changes = self.repository.changes(culprit)
        confirmation = confirm(self.attempts, culprit, ends)
        bad, good = self._sides(culprit)
        evidence, logs = evidence_of({"bad": bad, "good": good})
        merge = self.repository.brought_in_by(culprit, ends.new)
        answer = Answer(
            kind="found",
            text=culprit_text(commit, self.plan, self._telling(probe)),
            commits=(commit,),
            files=tuple(printable(change.path) for change in changes),
            landed_before=tuple(map(self.repository.commit, self.repository.earlier_landings(culprit))),
            merge=self.repository.commit(merge) if merge else None,
            confirmation=confirmation,
            evidence=evidence,
            logs=logs,
        )
        if confirmation is not None and (told := disagreement(confirmation, culprit, self.attempts)):
            text = f"intermittent: {told}; no commit can be named by trying each once"
            return answer.model_copy(update={"kind": "intermittent", "text": text, "notes": tuple(notes)})
        inside, note = look_inside(self.attempts, culprit, changes)
        notes += [note] if note else []
        if changes and all(change.is_harmless for change in changes):
            notes.append("suspicious: it touches only documentation or tests")
        return answer.model_copy(update={"inside": inside, "notes": (*notes, *self._proof_notes())})

    def _telling(self, found: Probe) -> Probe:
        """The probe of the culprit that says most: one that says where."""
        tries = [probe for probe in self.attempts.probes if probe.commit.sha == found.commit.sha]
        return next((p for p in tries if p.verdict == found.verdict and p.held and p.held.place), found)

    def _sides(self, culprit: str) -> tuple[Probe | None, Probe | None]:
        """Probes with the symptom and without it, the culprit's and its parent's where they were tried."""
        changed = self._known[culprit]
        old = "bad" if self.plan.find_fix else "good"
        parent = next((self._known[sha] for sha in self.repository.parents(culprit) if sha in self._known), None)
        others = [probe for probe in self.attempts.probes if probe.verdict == old]
        other = parent if parent is not None and parent.verdict == old else others[-1] if others else None
        return (other, changed) if self.plan.find_fix else (changed, other)

    def _proof_notes(self) -> list[str]:
        """Say so where the probe never imported what is under test."""
        probes = [probe for probe in self.attempts.probes if not probe.observation.blocked]
        if any(probe.observation.imported for probe in probes):
            return []
        wanted = self.plan.prove or "megatron.core"
        return [f"not imported: no probe imported {wanted}, so nothing proves which one was tested"]
