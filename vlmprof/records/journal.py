"""The journal: what a worker tells as it goes, one JSON object a line, so that nothing measured is lost when it dies.

Events (`event` names them; `time` is seconds since the epoch): `start`, `environment`, `model`, `plan`, `begin` (of a
step), `step`, `where`, `refused`, `failure`, `done`. `assemble` makes a run record of them.
"""

import json
import time
from pathlib import Path
from typing import IO, Any, Protocol, Self

__all__ = ["Event", "FileJournal", "Journal", "MemoryJournal", "read_journal"]

Event = dict[str, Any]


class Journal(Protocol):
    def tell(self, event: str, **facts: Any) -> None:
        """Add one event."""
        ...


class MemoryJournal:
    """Keeps its events: for a profile attached to somebody else's training."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, event: str, **facts: Any) -> None:
        self.events.append({"event": event, "time": time.time(), **facts})


class FileJournal:
    """Writes each event as one line at once; the reader tolerates a last line that is cut off."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def tell(self, event: str, **facts: Any) -> None:
        self._file.write(json.dumps({"event": event, "time": time.time(), **facts}) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def read_journal(path: Path, position: int = 0) -> tuple[list[Event], int]:
    """The whole events from a byte position on, in order, and the position behind them; none when there is no file.
    A last line without its end is left for the next call: its writer is at it, or died."""
    if not path.exists():
        return [], position
    with path.open("rb") as file:
        file.seek(position)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    events = []
    for line in whole.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events, position + len(whole)
