"""A night as a page: one row a workload, and below it each workload's own documents."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from vlmprof.records.bisect import Bisect, CommitRecord
from vlmprof.records.comparison import Comparison
from vlmprof.records.figures import Record
from vlmprof.records.night import Night, WorkloadNight
from vlmprof.records.run import Run
from vlmprof.report.bisect import duration
from vlmprof.report.bisect_page import bisect_page
from vlmprof.report.comparison_page import comparison_page
from vlmprof.report.page import Block, Cell, Fact, Facts, Lines, Listing, Page, Prose, Section, Table, Tone
from vlmprof.report.run_page import run_page

__all__ = ["Attached", "attachments", "night_page"]

Attached = Mapping[str, Record | str]
"""Path within the night's folder -> the document, or why it cannot be shown."""
STATUSES: dict[str, Tone] = {
    "good": "good",
    "fixed": "good",
    "first": "good",
    "regressed": "bad",
    "failed": "bad",
    "undecided": "warn",
    "not-done": "warn",
}
WORDS = {"not-done": "not done", "first": "first night"}
PARTS = ("comparison", "ab", "bisect", "run")
"""In the order in which they are shown."""
TITLES = {"run": "Run", "comparison": "Against the last good commit", "ab": "Times, interleaved", "bisect": "Bisect"}


def attachments(night: Night) -> Iterator[str]:
    """Paths of the documents that belong to a night."""
    for workload in night.workloads:
        yield from (path for part in PARTS if (path := getattr(workload, part)))


def night_page(night: Night, attached: Attached) -> Page:
    """The whole night."""
    commit = night.target.commit
    counted = {status: sum(one.status == status for one in night.workloads) for status in STATUSES}
    about = [
        ("target", f"{night.target.repository} at {night.target.ref}"),
        ("commit", _commit(commit)),
        ("when", f"{night.created} to {night.finished}" if night.finished else f"{night.created}, unfinished"),
        ("suite", night.suite),
    ]
    about += [("bisect", night.bisect_range)] if night.bisect_range else []
    about += [("budget", f"{night.budget_minutes:g} minutes")] if night.budget_minutes is not None else []
    facts = Facts(
        tuple(
            Fact(WORDS.get(status, status), str(number), tone=STATUSES[status])
            for status, number in counted.items()
            if number
        )
    )
    overview = Section("workloads", "Workloads", (_overview(night), *_notes(night.notes)))
    parts = tuple(_workload(number, one, attached) for number, one in enumerate(night.workloads))
    title = f"Night of {night.created[:10]}"
    return Page("night", title, _badge(night), tuple(about), (facts,), (overview,), parts=parts)


def _badge(night: Night) -> Cell:
    if not night.finished:
        return Cell("unfinished", "warn")
    tones: dict[int, tuple[str, Tone]] = {
        0: ("all well", "good"),
        1: ("regressed", "bad"),
        3: ("failed", "bad"),
        4: ("open questions", "warn"),
    }
    return Cell(*tones[night.exit_code])


def _commit(commit: CommitRecord) -> str:
    who = ", ".join(filter(None, (commit.author, commit.date[:10])))
    return f"{commit.sha[:12]} {commit.subject}" + (f" ({who})" if who else "")


def _notes(notes: tuple[str, ...]) -> tuple[Block, ...]:
    return (Listing(tuple(Cell(note) for note in notes)),) if notes else ()


def _anchor(number: int) -> str:
    return f"workload-{number}"


def _overview(night: Night) -> Table:
    rows = tuple(
        (
            Cell(one.name, "", _anchor(number)),
            Cell(WORDS.get(one.status, one.status), STATUSES[one.status]),
            _commit(one.culprit) if one.culprit is not None and one.status != "fixed" else "",
            one.reason,
            one.platform,
            duration(one.seconds),
        )
        for number, one in enumerate(night.workloads)
    )
    columns = ("workload", "result", "culprit", "why", "platform", "time")
    return Table(columns, rows, texts=frozenset({0, 1, 2, 3, 4}))


def _workload(number: int, one: WorkloadNight, attached: Attached) -> Page:
    """One workload: its facts, and its documents as parts."""
    shown: list[Page] = []
    lost: list[Cell] = []
    for part in PARTS:
        path = getattr(one, part)
        if not path:
            continue
        document = attached.get(path, "it was not read")
        if isinstance(document, str):
            lost.append(Cell(f"{TITLES[part]}: absent: {document}", "warn"))
        else:
            page = _page(document)
            shown.append(replace(page, title=f"{one.name}: {TITLES[part]}", anchor=part))
    sections: list[Section] = []
    if lost:
        sections.append(Section("lost", "Documents", (Listing(tuple(lost)),)))
    return Page(
        "workload",
        one.name,
        Cell(WORDS.get(one.status, one.status), STATUSES[one.status]),
        _about(one),
        tuple(_summary(one)),
        tuple(sections),
        _anchor(number),
        tuple(shown),
    )


def _page(document: Record) -> Page:
    match document:
        case Run():
            return run_page(document)
        case Comparison():
            return comparison_page(document)
        case Bisect():
            return bisect_page(document)
    raise TypeError(f"{type(document).__name__} is no part of a night")


def _about(one: WorkloadNight) -> tuple[tuple[str, str], ...]:
    rows = [("why", one.reason)] if one.reason else []
    rows += [("last good", f"{_commit(one.good.commit)}, measured {one.good.date[:10]}")] if one.good else []
    if one.matter is not None:
        rows.append(("matter", one.matter.title))
        rows.append(("first seen", f"{one.matter.since_date[:10]} at {_commit(one.matter.since)}"))
        if one.matter.closed_by is not None:
            rows.append(("closed by", _commit(one.matter.closed_by)))
    if one.culprit is not None:
        rows.append(("culprit", _commit(one.culprit)))
    rows += [("not done", f"{', '.join(one.not_done)}: no time was left")] if one.not_done else []
    return tuple(rows)


def _summary(one: WorkloadNight) -> Iterator[Block]:
    if one.answer is not None:
        yield Prose(one.answer.text, "bad" if one.answer.kind == "found" else "warn")
    if one.status == "failed" and one.outcome is not None and one.outcome.evidence:
        yield Lines(one.outcome.evidence, "evidence")
    yield from _notes(one.notes)
