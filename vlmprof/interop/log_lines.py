"""The lines of a log of any size: gzip is read through, `\\r` ends a line too, and what cannot matter costs little."""

import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vlmprof.errors import UserError

__all__ = ["LogLine", "LogLines"]

BLOCK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 16
"""Of a line that a block does not finish only so much is kept: binary files have no lines."""
GZIP_MAGIC = b"\x1f\x8b"
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""Colours, cursor movements, titles and links (ECMA-48)."""


class LogLine(NamedTuple):
    text: str
    """Decoded as UTF-8 with replacements, without escape sequences."""
    whole: bool
    """It was ended; only the last line of a file may not be: its writer is at it, or died."""


class LogLines:
    """The lines of `path` that hold one of `marks`, in order.

    Iterating needs memory for one block only. `damage` says afterwards where a gzip file broke off, in plain words.
    """

    def __init__(self, path: Path, marks: Sequence[bytes]) -> None:
        self.damage = ""
        self._path = path
        self._marks = marks

    def __iter__(self) -> Iterator[LogLine]:
        """Yield the lines.

        Raises:
            UserError: the file cannot be read.
        """
        rest = b""
        try:
            with self._path.open("rb") as file:
                for chunk in self._chunks(file):
                    block = rest + chunk.replace(b"\r", b"\n")
                    end = block.rfind(b"\n") + 1
                    rest = block[end:][-LONGEST_LINE_BYTES:]
                    yield from self._marked(block[:end], whole=True)
        except OSError as error:
            raise UserError(f"'{self._path}' cannot be read: {error.strerror or error}") from None
        yield from self._marked(rest, whole=False)

    def _chunks(self, file: io.BufferedReader) -> Iterator[bytes]:
        zipped = file.peek(2)[:2] == GZIP_MAGIC  # a peek works on pipes, too
        source = gzip.GzipFile(fileobj=file) if zipped else file
        try:
            # read1 hands out what came before a gzip file's broken end; read would lose it.
            while chunk := source.read1(BLOCK_BYTES):
                yield chunk
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.damage = "the gzip file is damaged or cut off: what came before that was read"

    def _marked(self, block: bytes, whole: bool) -> Iterator[LogLine]:
        # Most blocks of a big log lack most marks: a search over the block spares one in each of its lines.
        present = [mark for mark in self._marks if mark in block]
        if not present:
            return
        for line in block.split(b"\n"):
            for mark in present:
                if mark in line:
                    yield LogLine(ESCAPES.sub("", line.decode("utf-8", "replace")), whole)
                    break
