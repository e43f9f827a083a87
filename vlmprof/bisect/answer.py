"""The answer in words and facts, from the search's result."""

from collections.abc import Callable, Mapping, Sequence

from vlmprof.bisect.metrics import metric_names
from vlmprof.bisect.search import EndsNotConfirmed, FoundSet, Inconclusive
from vlmprof.records.bisect import Answer, CommitRecord, Plan, Probe

__all__ = ["culprit_text", "evidence_of", "name", "scope_texts", "without_culprit"]

Describe = Callable[[str], CommitRecord]


def name(sha: str) -> str:
    """A commit in short."""
    return sha[:12]


def culprit_text(commit: CommitRecord, plan: Plan, probe: Probe) -> str:
    """What the culprit did, in one sentence."""
    if plan.find_fix:
        return f"{name(commit.sha)} '{commit.subject}' is the first commit without the symptom"
    place = f"; {probe.held.place}" if probe.held and probe.held.place else ""
    return f"{name(commit.sha)} '{commit.subject}' is the first bad commit: {probe.reason}{place}"


def scope_texts(commits: Sequence[CommitRecord], untested: Sequence[str]) -> str:
    """What is known of several candidates."""
    left = f" ({len(untested)} of them were not tried, as all around them cannot be)" if untested else ""
    return f"one of {len(commits)} commits, all but the last of which cannot be tested{left}"


def without_culprit(result: FoundSet | Inconclusive | EndsNotConfirmed, plan: Plan, describe: Describe) -> Answer:
    """The answer where no single commit is named."""
    if isinstance(result, FoundSet):
        commits = tuple(describe(sha) for sha in result.commits)
        text = scope_texts(commits, result.untested)
        return Answer(kind="found-set", text=text, commits=commits, untested=result.untested)
    if isinstance(result, Inconclusive):
        commits = (describe(result.commit),) if result.commit else ()
        return Answer(kind="inconclusive", text=result.reason, commits=commits)
    commit = describe(result.commit)
    shows = (result.end == "bad end") != plan.find_fix
    what = f"does not show the symptom {plan.symptom}" if shows else "is not free of the symptom"
    if plan.symptom in metric_names():
        what = f"is {'not ' if shows else ''}worse in {plan.symptom} than the other end"
    if plan.symptom == "same" and shows:
        what = "does not fail"
    if result.mark.verdict == "skip":
        what = "cannot be judged"
    text = f"the {result.end} {name(commit.sha)} '{commit.subject}' {what}: {result.mark.reason}"
    return Answer(kind="ends-not-confirmed", text=text, commits=(commit,))


def evidence_of(sides: Mapping[str, Probe | None]) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """The telling lines and the logs of each side, where it was tried."""
    seen = {side: probe.observation for side, probe in sides.items() if probe is not None}
    held = {side: (probe.held.text,) for side, probe in sides.items() if probe is not None and probe.held is not None}
    lines = {side: observation.evidence for side, observation in seen.items() if observation.evidence} | held
    return lines, {side: observation.log for side, observation in seen.items() if observation.log}
