"""Any document as Markdown, for pull requests and issues: the answer first, long tables folded."""

from collections.abc import Callable
from typing import Any

from vlmprof.errors import UserError
from vlmprof.records.bisect import Bisect
from vlmprof.records.comparison import Comparison
from vlmprof.records.figures import Record
from vlmprof.records.run import Run
from vlmprof.report.bisect import to_markdown as bisect_markdown
from vlmprof.report.comparison import markdown as comparison_markdown
from vlmprof.report.escape import escaped, fenced
from vlmprof.report.page import Block, Cell, Chart, Facts, Lines, Listing, Prose, Table
from vlmprof.report.run_page import run_page

__all__ = ["markdown_of"]


def markdown_of(document: Record) -> str:
    """A document as Markdown.

    Raises:
        UserError: it has no such form.
    """
    if type(document) not in FORMS:
        raise UserError(f"a {type(document).__name__.lower()} has no Markdown: leave --markdown out")
    return FORMS[type(document)](document)


SHOWN = ("failure", "findings", "time", "memory", "ranks", "experts")
"""Sections of a run's page that a pull request gets."""


def run_markdown(run: Run) -> str:
    """Headline, failure and findings open; tables folded."""
    page = run_page(run)
    parts = [f"## {escaped(page.title)}: {escaped(page.badge.text)}"]
    parts.append("\n".join(f"- {name}: {escaped(text)}" for name, text in page.about))
    parts += [_block(block) for block in page.summary]
    for section in page.sections:
        if section.anchor in SHOWN:
            told = [text for block in section.blocks if (text := _block(block))]
            parts += [f"### {section.title}", *told] if told else []
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block) -> str:
    """One block; empty for what is folded even on a page."""
    match block:
        case Facts():
            head = [escaped(fact.label) for fact in block.items]
            values = [escaped(f"{fact.value} ({fact.note})" if fact.note else fact.value) for fact in block.items]
            return _rows(["figure", "value"], zip(head, values, strict=True), numbers=[])
        case Prose():
            return escaped(block.text)
        case Listing():
            return "\n".join(f"- {_cell(item)}" for item in block.items)
        case Lines():
            return fenced("\n".join(block.lines))
        case Table():
            return "" if block.folded else _table(block)
        case Chart():
            return _chart(block)


def _chart(chart: Chart) -> str:
    if chart.absent or chart.numbers is None:
        return f"{escaped(chart.title)}: absent: {escaped(chart.absent)}" if chart.absent else ""
    note = f"\n\n{escaped(chart.note)}" if chart.note else ""
    return f"<details><summary>{escaped(chart.title)}</summary>\n\n{_table(chart.numbers)}{note}\n\n</details>"


def _table(table: Table) -> str:
    numbers = [index for index in range(len(table.columns)) if index not in table.texts]
    return _rows(table.columns, (map(_cell, row) for row in table.rows), numbers)


def _rows(columns: Any, rows: Any, numbers: list[int]) -> str:
    line = ["---:" if index in numbers else "---" for index in range(len(columns))]
    lines = [" | ".join(map(escaped, columns)), " | ".join(line), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(cell: str | Cell) -> str:
    return escaped(cell.text if isinstance(cell, Cell) else cell)


FORMS: dict[type[Record], Callable[[Any], str]] = {
    Run: run_markdown,
    Bisect: bisect_markdown,
    Comparison: comparison_markdown,
}
