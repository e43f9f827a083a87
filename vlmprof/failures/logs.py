"""Logs as blocks of whole lines, in bounded memory: plain or gzip, of any size, with lines of any length."""

import os
import re
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from vlmprof.errors import UserError

__all__ = ["Block", "check_readable", "read_blocks"]

BLOCK = 1 << 20
OVERLAP = 512
"""Bytes that are looked at twice where a line is so long that it must be cut: no sign is lost at the cut."""
LOOKAHEAD = 2
"""Blocks that are read ahead, to know that the end is near."""

_COLOUR = re.compile(rb"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b\n]*(?:\x07|\x1b\\))")


class Block(NamedTuple):
    """Some lines of a log, without colours."""

    data: bytes
    first_line: int
    """Number of its first line, from 1."""
    near_end: bool
    """One of the last few blocks."""


def check_readable(path: Path) -> None:
    """Refuse what cannot be read before anything is read.

    Raises:
        UserError: there is no such file, it is a folder, or it may not be read.
    """
    if path.is_dir():
        raise UserError(f"'{path}' is a folder: name the logs in it, for instance {path}/*.log")
    if not path.exists():
        raise UserError(f"there is no log '{path}'")
    if not os.access(path, os.R_OK):
        raise UserError(f"'{path}' may not be read: no permission")


def read_blocks(path: Path) -> Iterator[Block]:
    """The log in blocks of about a megabyte, each of whole lines where lines are shorter than that.

    Raises:
        UserError: it cannot be read. A gzip file that is cut off or damaged is read as far as it goes.
    """
    ahead: deque[tuple[bytes, int]] = deque()
    for piece in _numbered(_whole_lines(_raw(path))):
        ahead.append(piece)
        if len(ahead) > LOOKAHEAD:
            yield Block(*ahead.popleft(), near_end=False)
    for piece in ahead:
        yield Block(*piece, near_end=True)


def _raw(path: Path) -> Iterator[bytes]:
    read = 0
    try:
        with path.open("rb") as file:
            zipped = file.peek(2)[:2] == b"\x1f\x8b"
            for piece in _unzipped(file) if zipped else iter(lambda: file.read(BLOCK), b""):
                read += len(piece)
                yield piece
    except zlib.error:
        if not read:
            raise UserError(f"'{path}' cannot be read: it is a damaged gzip file") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}") from None


def _unzipped(file: IO[bytes]) -> Iterator[bytes]:
    """What a gzip file holds, as far as it goes: `gzip.GzipFile` would withhold what comes before the damage."""
    engine = zlib.decompressobj(wbits=31)
    packed = b""
    while packed := packed or file.read(BLOCK):
        if piece := engine.decompress(packed, BLOCK):
            yield piece
        packed = engine.unconsumed_tail
        if engine.eof:  # another member may follow, as where logs were appended to
            packed = engine.unused_data.lstrip(b"\0")
            engine = zlib.decompressobj(wbits=31)
    if piece := engine.flush():
        yield piece


def _whole_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        data = rest + piece
        cut = data.rfind(b"\n") + 1 or data.rfind(b"\r") + 1
        if not cut:
            if len(data) <= BLOCK:
                rest = data
                continue
            yield data
            rest = data[-OVERLAP:]
            continue
        yield data[:cut]
        rest = data[cut:]
    if rest:
        yield rest


def _numbered(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, int]]:
    line = 1
    for piece in pieces:
        lines = piece.count(b"\n")
        data = _COLOUR.sub(b"", piece) if b"\x1b" in piece else piece
        yield data.replace(b"\r\n", b"\n") if b"\r" in data else data, line
        line += lines
