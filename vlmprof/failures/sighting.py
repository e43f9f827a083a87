"""A sign seen in a line of a log, with what is known of that line."""

from dataclasses import dataclass, field

from vlmprof.failures.labels import Label
from vlmprof.failures.progress import Progress
from vlmprof.failures.signs import Sign
from vlmprof.failures.tracebacks import Raised

__all__ = ["Sighting"]


@dataclass(slots=True, eq=False)
class Sighting:
    """A sign seen in a line."""

    sign: Sign
    precedence: int
    line: int
    text: str
    """The line as it stood."""
    label: Label
    fields: dict[str, str]
    raised: Raised | None
    frame: str | None = None
    time: float | None = None
    """Seconds within a year: the line's own timestamp or the last one above it."""
    iteration: int | None = None
    """The last iteration logged before."""
    progress: Progress = field(default_factory=Progress)
    survived: bool = False
