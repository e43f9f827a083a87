"""Lines within a block of bytes: where those begin and end that may hold a sign."""

from vlmprof.failures.labels import Label
from vlmprof.failures.signs import PREFILTER, SCANS

__all__ = ["LONGEST", "around_sign", "hits_of", "line_end"]

LONGEST = 4000
"""Characters of a line that are looked at, around where a sign may be."""


def hits_of(data: bytes) -> set[int]:
    """Where lines begin that may hold a sign. A progress bar's states are lines of their own."""
    found: set[int] = set()
    end = -1
    for at in PREFILTER.places(data):
        if at > end:
            found.add(line_start(data, at))
            end = line_end(data, at)
    for pattern in SCANS:
        found.update(line_start(data, match.start()) for match in pattern.finditer(data))
    return found


def line_start(data: bytes, at: int) -> int:
    start = data.rfind(b"\n", 0, at) + 1
    return max(start, data.rfind(b"\r", start, at) + 1)


def line_end(data: bytes, at: int) -> int:
    """Where the line ends, or the state of a progress bar, that holds the byte at `at`."""
    end = data.find(b"\n", at)
    end = len(data) if end < 0 else end
    bar = data.find(b"\r", at, end)
    return end if bar < 0 else bar


def around_sign(line: bytes, label: Label) -> tuple[str, Label]:
    """Of a very long line, the part around the first place where a sign may be."""
    first = next(iter(PREFILTER.places(line)), 0)
    part = line[max(0, first - LONGEST // 2) :][:LONGEST].decode("utf-8", "replace").strip()
    return part, label._replace(text=part)
