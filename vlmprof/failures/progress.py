"""Whether training went on: an error after which the iteration count keeps growing was handled, and is no failure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from vlmprof.failures.signs import PROGRESS

__all__ = ["Progress", "has_progress", "last_iteration", "survivors"]

_RISES = 2
"""Growing counts that prove an error handled: the iteration in flight may still be logged after a fatal one."""


@dataclass(slots=True)
class Progress:
    """The counts seen since an error, by form of the line."""

    last: dict[int, int] = field(default_factory=dict)
    rises: int = 0

    def went_on(self, form: int, count: int) -> bool:
        """Take a count; whether training has gone on by now."""
        before = self.last.get(form)
        self.rises += before is not None and count > before
        self.last[form] = count
        return self.rises >= _RISES


class Watched(Protocol):
    """What `survivors` needs of a sighting."""

    progress: Progress


W = TypeVar("W", bound=Watched)


def survivors(data: bytes, pending: Sequence[tuple[int, W]]) -> list[W]:
    """Those of `pending`, with the place in `data` each was seen at, that training survived within these bytes."""
    left = list(pending)
    gone: list[W] = []
    for form, pattern in enumerate(PROGRESS):
        for match in pattern.finditer(data, min((at for at, _ in left), default=len(data))):
            count, at = int(match["n"]), match.start()
            done = [one for start, one in left if start <= at and one.progress.went_on(form, count)]
            if done:
                gone += done
                left = [(start, one) for start, one in left if one not in done]
            if not left:
                return gone
    return gone


def has_progress(data: bytes, end: int) -> bool:
    """Whether an iteration was logged before `end`."""
    return any(pattern.search(data, 0, end) for pattern in PROGRESS)


def last_iteration(data: bytes) -> int | None:
    """The last iteration number in these bytes."""
    found = None
    for match in PROGRESS[0].finditer(data):
        found = int(match["n"])
    return found
