"""The table of failure signs (`signs.toml`), and which of them a line holds."""

import functools
import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from typing import Any, Literal, NamedTuple

from vlmprof.failures.prefilter import Prefilter, choose_windows
from vlmprof.records.run import FailureClass

__all__ = [
    "EXITS",
    "HARMLESS",
    "PREFILTER",
    "PROGRESS",
    "SCANS",
    "SIGNS",
    "UNCAUGHT",
    "Exit",
    "Held",
    "Sign",
    "signs_of",
]

Kind = Literal["root", "exit", "collateral", "wrapper", "context"]


class Sign(NamedTuple):
    """A row of the table; the columns are explained at its top."""

    name: str
    kind: Kind
    precedence: int
    failure_class: FailureClass | None
    fragments: tuple[str, ...]
    scan: str
    pattern: re.Pattern[str] | None
    unless: re.Pattern[str] | None
    frame: re.Pattern[str] | None
    uncaught: bool
    before_training: bool
    lasting: bool
    exception: str
    says: str
    reading: str
    advice: tuple[str, ...]


class Exit(NamedTuple):
    """What an exit code means where nothing tells more."""

    failure_class: FailureClass
    precedence: int
    exception: str
    says: str
    reading: str
    advice: tuple[str, ...]
    of_run: bool


class Held(NamedTuple):
    """A sign that a line holds, and the named parts of its pattern."""

    sign: Sign
    fields: dict[str, str]


def _compiled(row: dict[str, Any], column: str) -> re.Pattern[str] | None:
    return re.compile(row[column]) if column in row else None


def _sign(row: dict[str, Any]) -> Sign:
    return Sign(
        name=row["name"],
        kind=row["kind"],
        precedence=row["precedence"],
        failure_class=row.get("class"),
        fragments=tuple(row.get("fragments", ())),
        scan=row.get("scan", ""),
        pattern=_compiled(row, "pattern"),
        unless=_compiled(row, "unless"),
        frame=_compiled(row, "frame"),
        uncaught=row.get("uncaught", False),
        before_training=row.get("before_training", False),
        lasting=row.get("lasting", False),
        exception=row.get("exception", ""),
        says=row.get("says", ""),
        reading=row.get("reading", ""),
        advice=tuple(row.get("advice", ())),
    )


def _exits(rows: list[dict[str, Any]]) -> dict[int, Exit]:
    return {
        code: Exit(
            failure_class=row["class"],
            precedence=row["precedence"],
            exception=row["exception"],
            says=row["says"],
            reading=row["reading"],
            advice=tuple(row["advice"]),
            of_run=row.get("of_run", False),
        )
        for row in rows
        for code in row["codes"]
    }


def _by_window(ordinary: str) -> dict[str, list[tuple[int, str]]]:
    """Window -> (row, fragment) of every fragment that it finds."""
    windows = choose_windows((fragment for sign in SIGNS for fragment in sign.fragments), ordinary)
    found: dict[str, list[tuple[int, str]]] = {}
    for row, sign in enumerate(SIGNS):
        for fragment in sign.fragments:
            found.setdefault(windows[fragment], []).append((row, fragment))
    return found


_TABLE: dict[str, Any] = tomllib.loads(resources.files(__package__).joinpath("signs.toml").read_text(encoding="utf-8"))
SIGNS: tuple[Sign, ...] = tuple(_sign(row) for row in _TABLE["sign"])
EXITS: dict[int, Exit] = _exits(_TABLE["exit"])
_FRAGMENTS = _by_window(_TABLE["ordinary"])
_WITH_DIGITS = tuple(
    (row, fragment)
    for row, sign in enumerate(SIGNS)
    for fragment in sign.fragments
    if any(letter.isdigit() for letter in fragment)
)
_DIGITS = str.maketrans("123456789", "000000000")
_SCANS = tuple((row, re.compile(sign.scan)) for row, sign in enumerate(SIGNS) if sign.scan)

UNCAUGHT: Sign = next(sign for sign in SIGNS if sign.name == "exception")
"""What an exception is that no other sign tells of."""
HARMLESS: re.Pattern[str] = re.compile(_TABLE["harmless"])
PREFILTER = Prefilter([*_FRAGMENTS, *choose_windows(("raceback (most", "(most recent"), _TABLE["ordinary"]).values()])
"""Finds the places in a block where a sign may be, or a traceback begins."""
SCANS: tuple[re.Pattern[bytes], ...] = tuple(re.compile(sign.scan.encode()) for sign in SIGNS if sign.scan)
PROGRESS: tuple[re.Pattern[bytes], ...] = tuple(re.compile(pattern.encode()) for pattern in _TABLE["progress"])


@functools.lru_cache(maxsize=4096)
def _rows(text: str) -> tuple[int, ...]:
    """The rows of which a line has a fragment; all its digits are 0, so that like lines are looked at once."""
    return tuple(
        row
        for window, fragments in _FRAGMENTS.items()
        if window in text
        for row, fragment in fragments
        if fragment in text
    )


def signs_of(text: str) -> Iterator[Held]:
    """The signs that a line holds, in the table's order, before columns that need more than the line.

    Args:
        text: the line, without the label of its rank; at most a few thousand characters.
    """
    rows = set(_rows(text.translate(_DIGITS)))
    rows.update(row for row, fragment in _WITH_DIGITS if fragment in text)
    rows.update(row for row, scan in _SCANS if scan.search(text))
    for row in sorted(rows):
        sign = SIGNS[row]
        if sign.unless is not None and sign.unless.search(text):
            continue
        if sign.pattern is None:
            yield Held(sign, {})
        elif match := sign.pattern.search(text):
            yield Held(sign, {name: value for name, value in match.groupdict().items() if value is not None})
