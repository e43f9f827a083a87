"""A night in Markdown: what a person reads in the morning, on the terminal, in a job's summary or in a mail."""

from collections.abc import Iterator

from vlmprof.records.bisect import Answer, CommitRecord
from vlmprof.records.night import Night, WorkloadNight
from vlmprof.report.escape import code, escaped

__all__ = ["facts", "headline", "summary"]

WORDS = {
    "first": "first night",
    "good": "good",
    "fixed": "fixed",
    "regressed": "**regressed**",
    "failed": "**failed**",
    "undecided": "undecided",
    "not-done": "not done",
}
COUNTED = ("failed", "regressed", "fixed", "undecided", "not-done", "first", "good")


def headline(night: Night) -> str:
    """How many workloads came to what, the worst first."""
    statuses = [part.status for part in night.workloads]
    told = [f"{statuses.count(status)} {status}" for status in COUNTED if status in statuses]
    return f"{', '.join(told)} of {len(statuses)}"


def summary(night: Night) -> str:
    """The whole night."""
    target = night.target
    lines = [
        f"# Night of {night.created[:10]}: {headline(night)}",
        "",
        f"{code(target.repository)} at {code(target.ref)}: {commit_words(target.commit)}",
        "",
        "| workload | result | why | culprit |",
        "|---|---|---|---|",
    ]
    for part in night.workloads:
        who = commit_words(part.culprit) if part.culprit is not None and part.status != "fixed" else ""
        lines.append(f"| {part.name} | {WORDS[part.status]} | {escaped(part.reason)} | {who} |")
    for part in night.workloads:
        told = list(facts(part))
        lines += ["", f"## {part.name}", "", *told] if told else []
    left = [f"{part.name}: {', '.join(part.not_done)}" for part in night.workloads if part.not_done]
    if left:
        lines += ["", f"Not done: {escaped('; '.join(left))}."]
    lines += [f"\n{escaped(note)}" for note in night.notes]
    return "\n".join(lines) + "\n"


def commit_words(commit: CommitRecord) -> str:
    """A commit with who and when."""
    who = ", ".join(filter(None, (commit.author, commit.date[:10])))
    return f"{code(commit.sha[:12])} {escaped(commit.subject, 80)}" + (f" ({escaped(who)})" if who else "")


def facts(part: WorkloadNight) -> Iterator[str]:
    """What is known of a workload beyond its row, a list item each; nothing where all is well."""
    if part.status in ("failed", "regressed", "undecided"):
        if part.good is not None:
            yield f"- last good: {commit_words(part.good.commit)}, measured {part.good.date[:10]}"
        if part.matter is not None:
            yield f"- first seen: {part.matter.since_date[:10]} at {commit_words(part.matter.since)}"
        if part.outcome is not None:
            yield from (f"- {code(line)}" for line in part.outcome.evidence[-3:])
    if part.answer is not None:
        yield from _answer(part.answer)
    for matter in part.other_matters:
        how = "gone, too" if matter.closed_by is not None else "open, and hidden or not looked at tonight"
        yield f"- {how}: {escaped(matter.title)}"
    yield from (f"- {escaped(note)}" for note in part.notes)
    for what in ("run", "comparison", "ab", "bisect"):
        if part.status != "good" and (path := getattr(part, what)):
            yield f"- {what}: {code(path)}"


def _answer(answer: Answer) -> Iterator[str]:
    told = answer.text.replace(
        ": code 1: ", ": "
    )  # how a probe of ours says that a metric is worse: 1 tells nothing more
    yield f"- bisect, {answer.kind}: {escaped(told)}"
    if answer.kind != "found":
        yield from (f"- candidate: {commit_words(commit)}" for commit in answer.commits)
    if answer.files:
        yield f"- it changes {', '.join(code(path) for path in answer.files[:5])}{' ...' if answer.files[5:] else ''}"
    done = answer.confirmation
    if done is not None:
        yield (
            f"- confirmed: the commit again {', '.join(done.culprit_verdicts)}; its parent again "
            f"{', '.join(done.parent_verdicts)}"
            + (f"; tonight's commit without it: {done.revert}" if done.revert else "")
        )
    yield from (f"- {escaped(note)}" for note in answer.notes)
