"""What a probe's log says went wrong: the failures room's diagnosis, and the last words where it knows none."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmprof.failures import diagnose
from vlmprof.records.diagnosis import Diagnosis

__all__ = ["Sighting", "sight"]

Diagnose = Callable[[Sequence[Path], int | None], Diagnosis]
TAIL_BYTES = 65536
FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)')
EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(: (?P<message>.*))?$")
VARIABLE_PARTS = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"(?:/[\w.+-]+)+/"), ""),
    (re.compile(r"\d+(?!x…)"), "N"),
)


@dataclass(frozen=True)
class Sighting:
    """A failure, or with an empty class none that is known."""

    failure_class: str = ""
    signature: str = ""
    message: str = ""
    evidence: tuple[str, ...] = ()


def sight(log: Path, exit_code: int | None, diagnose: Diagnose = diagnose) -> Sighting:
    """What the log of a command that ended with `exit_code` (None: its time limit) says."""
    found = diagnose([log], exit_code)
    if found.failure_class:
        message = found.message or found.reading or ""
        return Sighting(found.failure_class, found.signature or "", message, tuple(found.evidence))
    return Sighting(evidence=_last_lines(_tail(log))[-1:]) if exit_code == 0 else last_words(_tail(log))


def last_words(text: str) -> Sighting:
    """The last Python exception of a log as a crash; without one, its last lines and no class."""
    lines = _last_lines(text)
    starts = [number for number, line in enumerate(lines) if line.endswith("Traceback (most recent call last):")]
    frame = ""
    for line in lines[starts[-1] + 1 :] if starts else ():
        if match := FRAME.match(line):
            frame = f"{Path(match['file']).name}:{match['function']}"
        elif not line[0].isspace() and (match := EXCEPTION.match(line)):
            said = normalise(match["message"] or "")
            return Sighting("crash", f"{match['type']}: {said} @ {frame}", line, (line,))
    return Sighting(evidence=lines[-3:])


def _last_lines(text: str) -> tuple[str, ...]:
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())


def normalise(message: str) -> str:
    """Without what differs from run to run: addresses, numbers, folders."""
    for pattern, replacement in VARIABLE_PARTS:
        message = pattern.sub(replacement, message)
    return message.strip()


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
