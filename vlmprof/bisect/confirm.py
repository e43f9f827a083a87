"""Is it really that commit? It and its parent again, in turn; the bad end without it; the submodule that it moved."""

from collections import Counter
from collections.abc import Sequence

from vlmprof.bisect.answer import culprit_text, name, scope_texts
from vlmprof.bisect.attempts import Attempts, Target
from vlmprof.bisect.history import Change, Ends, open_repository
from vlmprof.bisect.search import Evaluate, Found, FoundSet, Search
from vlmprof.bisect.worktree import BlockedError
from vlmprof.errors import UserError
from vlmprof.records.bisect import Answer, Confirmation, Probe, VerdictName

__all__ = ["confirm", "disagreement", "look_inside"]

WITHOUT_IT = "bad end without it"
REVERT_WORDS = {"good": "confirmed", "bad": "not confirmed", "skip": "cannot be tested"}


def confirm(attempts: Attempts, culprit: str, ends: Ends) -> Confirmation | None:
    """Try culprit and parent `--confirm` times each, in turn, then the bad end with the culprit reverted.

    None when --confirm is 0, or the culprit has no parent.
    """
    parents = attempts.repository.parents(culprit)
    if not attempts.plan.confirm or not parents:
        return None
    again: dict[str, list[VerdictName]] = {culprit: [], parents[0]: []}
    for _ in range(attempts.plan.confirm):
        for commit, role in ((culprit, "culprit again"), (parents[0], "parent again")):
            again[commit].append(attempts.attempt(Target(commit, role, fresh=True)).verdict)
    known = attempts.repository.commit(parents[0])
    done = Confirmation(parent=known, culprit_verdicts=tuple(again[culprit]), parent_verdicts=tuple(again[parents[0]]))
    if disagreement(done, culprit, attempts) or culprit == ends.new:
        return done
    probe = attempts.attempt(Target(ends.new, WITHOUT_IT, revert=culprit))
    if probe.observation.blocked.startswith("revert of"):
        return done.model_copy(update={"revert": "does not apply"})
    words = REVERT_WORDS if not attempts.plan.find_fix else REVERT_WORDS | {"good": "not confirmed", "bad": "confirmed"}
    return done.model_copy(update={"revert": words[probe.verdict]})


def disagreement(done: Confirmation, culprit: str, attempts: Attempts) -> str:
    """How repeats of one commit disagree, with counts of all its tries; empty when they do not."""
    new, old = ("good", "bad") if attempts.plan.find_fix else ("bad", "good")
    told = []
    for what, sha, verdicts, unwanted in (
        ("the culprit", culprit, done.culprit_verdicts, old),
        ("its parent", done.parent.sha, done.parent_verdicts, new),
    ):
        if unwanted in verdicts:
            tries = [p for p in attempts.probes if p.commit.sha == sha and p.role != WITHOUT_IT]
            counts = Counter(probe.verdict for probe in tries)
            times = " and ".join(f"{count} times {verdict}" for verdict, count in counts.most_common())
            told.append(f"{what} {name(sha)} was {times}")
    return "; ".join(told)


def look_inside(attempts: Attempts, culprit: str, changes: Sequence[Change]) -> tuple[Answer | None, str]:
    """Search between the pins of the submodule that the culprit moves: the answer in there, or a note why none."""
    bumps = [change for change in changes if change.is_submodule_bump]
    if len(bumps) != 1:
        return None, "it moves several submodules at once" if bumps else ""
    bump = bumps[0]
    try:
        attempts.worktree.checkout(culprit)
        inner = open_repository(attempts.worktree.folder / bump.path)
        ends = inner.ends(f"{bump.old}..{bump.new}")
    except (BlockedError, UserError) as error:
        return None, f"the submodule {bump.path} cannot be searched: {error}"
    search = Search(inner.graph(ends), ends.old, ends.new, attempts.plan.find_fix)
    tried: dict[str, Probe] = {}
    while isinstance(step := search.next_step(), Evaluate):
        target = Target(culprit, f"{bump.path}: {step.role}", path=bump.path, pin=step.commit)
        tried[step.commit] = attempts.attempt(target, step.steps_left, inner.commit)
        search.mark(step.commit, tried[step.commit].verdict, tried[step.commit].reason)
    if isinstance(step.result, Found):
        commit = inner.commit(step.result.commit)
        files = tuple(change.path for change in inner.changes(commit.sha))
        text = culprit_text(commit, attempts.plan, tried[commit.sha])
        return Answer(kind="found", text=f"in {bump.path}: {text}", commits=(commit,), files=files), ""
    if isinstance(step.result, FoundSet):
        commits = tuple(inner.commit(sha) for sha in step.result.commits)
        text = f"in {bump.path}: {scope_texts(commits, step.result.untested)}"
        return Answer(kind="found-set", text=text, commits=commits, untested=step.result.untested), ""
    return None, f"moving the submodule {bump.path} ({name(bump.old)} to {name(bump.new)}) is not what did it"
