"""What a report says, as values: pages of sections of blocks. `html` shows them; nothing here knows HTML or plotly."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

__all__ = ["Block", "Cell", "Chart", "Fact", "Facts", "Lines", "Listing", "Page", "Prose", "Section", "Table", "Tone"]

Tone = Literal["", "good", "bad", "warn", "dim"]
"""What a text says at a glance; it never stands alone: the words say it, too."""


class Cell(NamedTuple):
    """A text with a tone, and an anchor of the same page that it leads to."""

    text: str
    tone: Tone = ""
    to: str = ""


class Fact(NamedTuple):
    """One headline figure."""

    label: str
    value: str
    note: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Facts:
    items: tuple[Fact, ...]


@dataclass(frozen=True)
class Prose:
    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class Listing:
    items: tuple[Cell, ...]


@dataclass(frozen=True)
class Lines:
    """Text as a program wrote it: evidence, a command."""

    lines: tuple[str, ...]
    caption: str = ""


@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    caption: str = ""
    texts: frozenset[int] = frozenset({0})
    """Columns that hold words; the others hold numbers and stand flush right."""
    folded: str = ""
    """What to unfold it by, where it is not shown at once."""


@dataclass(frozen=True)
class Chart:
    """A figure, and its numbers as a table; or why there is none."""

    key: str
    title: str
    plot: dict[str, Any] | None = None
    """`data` and `layout` of a plotly figure."""
    numbers: Table | None = None
    note: str = ""
    absent: str = ""


Block = Facts | Prose | Listing | Lines | Table | Chart


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """One document, or several below one another."""

    kind: str
    """run, comparison, bisect, night"""
    title: str
    badge: Cell
    about: tuple[tuple[str, str], ...] = ()
    """What, where, when: label and text."""
    summary: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()
    anchor: str = ""
    parts: tuple["Page", ...] = field(default=())
