"""A bisect document as a page."""

import shlex

from vlmprof.records.bisect import Answer, Bisect, Probe
from vlmprof.report.bisect import TITLES, answer_facts, duration, seconds_of
from vlmprof.report.change_charts import Attempt, search_path
from vlmprof.report.page import Block, Cell, Chart, Fact, Facts, Lines, Listing, Page, Prose, Section, Table, Tone

__all__ = ["bisect_page"]

VERDICTS: dict[str, Tone] = {"good": "good", "bad": "bad", "skip": "warn"}
ANSWERS: dict[str, Tone] = {"found": "bad", "found-set": "bad"}
"""Whatever else is no answer yet."""


def bisect_page(document: Bisect) -> Page:
    """The answer first, then its evidence, then every attempt."""
    answer = document.answer
    badge = Cell(TITLES[answer.kind], ANSWERS.get(answer.kind, "warn")) if answer else Cell("unfinished", "warn")
    sections = [_answer(answer)] if answer is not None else []
    if answer is not None and answer.inside is not None:
        sections.append(_answer(answer.inside, "inside", "In the submodule"))
    return Page(
        "bisect",
        document.plan.range,
        badge,
        _about(document),
        (_headline(document),),
        (*sections, _path(document)),
    )


def _about(document: Bisect) -> tuple[tuple[str, str], ...]:
    plan = document.plan
    command = shlex.join(plan.command or ("vlmprof", "run", *plan.run_arguments))
    rows = [("where", plan.repository), ("when", document.created), ("symptom", plan.symptom), ("probe", command)]
    rows += [("recipe", plan.recipe)] if plan.recipe else []
    rows += [("hunting", "the commit with which it went away")] if plan.find_fix else []
    return tuple(rows)


def _headline(document: Bisect) -> Facts:
    probes = document.probes
    took = sum(probe.observation.seconds for probe in probes if not probe.cached)
    count = {verdict: sum(probe.verdict == verdict for probe in probes) for verdict in VERDICTS}
    known = sum(probe.cached for probe in probes)
    return Facts(
        (
            Fact("attempts", str(len(probes)), f"{known} known from before" if known else ""),
            Fact("verdicts", " / ".join(str(count[one]) for one in VERDICTS), "good / bad / skip"),
            Fact("time measuring", duration(took)),
        )
    )


def _answer(answer: Answer, anchor: str = "answer", title: str = "Answer") -> Section:
    blocks: list[Block] = [Prose(answer.text)]
    facts = [(name, text) for name, text in answer_facts(answer) if name not in answer.evidence]
    if facts:
        blocks.append(Table(("", ""), tuple(facts), texts=frozenset({0, 1})))
    for side, told in answer.evidence.items():
        blocks.append(Lines(told, f"evidence, {side} side"))
    return Section(anchor, title, tuple(blocks))


def _path(document: Bisect) -> Section:
    """Every attempt in order."""
    rows = tuple(_attempt(number, probe) for number, probe in enumerate(document.probes, 1))
    warnings = tuple(
        Cell(f"{probe.commit.sha[:12]}: {probe.warning}", "warn") for probe in document.probes if probe.warning
    )
    table = Table(
        ("", "verdict", "commit", "tried as", "subject", "reason", "date", "time"),
        rows,
        texts=frozenset({1, 2, 3, 4, 5, 6}),
    )
    blocks: tuple[Block, ...] = (table, Listing(warnings)) if warnings else (table,)
    return Section("path", "Path of the search", (_path_chart(document), *blocks))


def _path_chart(document: Bisect) -> Chart:
    """Attempts from left to right, the commits that were tried by their dates from the bottom up."""
    title = "Attempts in order, by the date of the commit tried"
    probes = document.probes
    if not probes:
        return Chart("path-chart", title, absent="nothing was tried yet")
    commits = {probe.commit.sha: probe.commit for probe in probes}
    ordered = sorted(commits, key=lambda sha: commits[sha].date)
    culprits = [one.sha for one in document.answer.commits] if document.answer is not None else []
    attempts = [
        Attempt(ordered.index(probe.commit.sha), probe.verdict, f"{probe.role}: {probe.commit.subject}")
        for probe in probes
    ]
    marked = [ordered.index(sha) for sha in culprits if sha in commits]
    note = "Oldest commit at the bottom; only commits that were tried. The dashed line is the answer."
    return Chart("path-chart", title, search_path(attempts, [sha[:7] for sha in ordered], marked), note=note)


def _attempt(number: int, probe: Probe) -> tuple[str | Cell, ...]:
    commit = probe.commit
    return (
        str(number),
        Cell(probe.verdict, VERDICTS[probe.verdict]),
        commit.sha[:12],
        probe.role,
        commit.subject,
        probe.reason,
        commit.date[:10],
        seconds_of(probe),
    )
