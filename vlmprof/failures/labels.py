"""Whose line is it, and when was it written: rank labels, ranks in file names, timestamps."""

import re
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

__all__ = ["Label", "file_rank", "last_time", "mentioned_rank", "numbered", "split_label", "time_span"]

_LABEL = re.compile(
    r"""\[(?:rank|Rank|RANK)[ :=_-]?(?P<rank>\d{1,6})\]:?[ ]?                # torch: [rank3]:, [Rank 3]
      | \[(?P<role>[A-Za-z]\w*?)(?P<local>\d{1,6})\]:[ ]?                     # torchrun --tee: [default3]:
      | \[?(?P<node>(?:[A-Za-z][\w.-]*)?(?:node|host|worker|gpu|pod)[\w.-]*):(?P<on_node>\d{1,6})\]?:?[ ]
      | \[\d+,(?P<mpi>\d{1,6})\](?:<std(?:out|err)>)?:?[ ]?                   # mpirun --tag-output
      | (?P<task>[ ]{0,5}\d{1,6}):[ ]                                         # srun --label
      | \[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[ ]   # a collector's timestamp
    """,
    re.VERBOSE,
)
_TASK = re.compile(rb"[ ]{0,5}\d{1,6}: ")
_MENTION = re.compile(r"(?:[\[(, ](?:rank|Rank|RANK)[ :=]? ?|\"rank\": ?|^-- Process )(?P<rank>\d{1,6})(?:[\]):, }]|$)")
_NAMED = re.compile(r"(?i)(?:^|[^a-z])(?:rank|worker|proc|process|task)[_.:=-]?(\d{1,6})(?!\d)")
_ATTEMPT = re.compile(r"attempt_\d+/(\d{1,6})(?:/|\.|$)")
_NUMBERED = re.compile(r"(\d{1,6})(?:\.(?:log|err|out|txt|stderr|stdout|gz))+$")

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_STAMP = re.compile(
    rb"""20\d\d[-/](?P<month>\d\d)[-/](?P<day>\d\d)[ T_](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?
       | \b[EWIF](?P<glog_month>\d{1,2})(?P<glog_day>\d\d)[ ](?P<glog_clock>\d\d:\d\d:\d\d)\.(?P<glog_part>\d{1,9})
       | \b(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[ ]{1,2}(?P<date>\d{1,2})[ ](?P<time>\d\d:\d\d:\d\d)
    """,
    re.VERBOSE,
)
_YEAR = 366 * 86400.0


class Label(NamedTuple):
    """A line without its labels, and what they say."""

    text: str
    rank: int | None
    """Of a label that names a process."""
    task: int | None
    """Of srun's label, which may name a process or a whole node."""
    lane: str
    """Lines of one process share it; empty where nothing tells processes apart."""


def split_label(line: str, tasks: bool) -> Label:
    """Take the labels off a line: `3: [rank7]: Traceback ...` is rank 7 of task 3.

    Args:
        line: as it stood, without colours.
        tasks: whether this log's lines begin with srun's numbers; else a number is part of the line.
    """
    rank: int | None = None
    task: int | None = None
    at = 0
    for _ in range(4):
        match = _LABEL.match(line, at)
        if match is None or (match["task"] and not tasks):
            break
        number = match["rank"] or match["local"] or match["on_node"] or match["mpi"]
        if number:
            rank = int(number)
        elif match["task"]:
            task = int(match["task"])
        at = match.end()
    lane = line[:at].strip() if rank is None and task is None else f"{task}/{rank}"
    return Label(line[at:], rank, task, "" if rank is None and task is None else lane)


def mentioned_rank(text: str) -> int | None:
    """The rank that a logger's format puts near the front of a line: `... [rank 3] ERROR ...`."""
    match = _MENTION.search(text[:120])
    return int(match["rank"]) if match else None


def numbered(lines: list[bytes]) -> bool:
    """Whether most of these lines begin with srun's task number."""
    full = [line for line in lines if line.strip()]
    return len(full) >= 3 and sum(bool(_TASK.match(line)) for line in full) >= 0.6 * len(full)


def file_rank(path: Path) -> int | None:
    """The rank that a log's name or folder tells: rank3.log, worker_3/stderr, attempt_0/3/stderr.log, 3.log."""
    text = path.as_posix()
    attempt = _ATTEMPT.search(text)
    if attempt:
        return int(attempt[1])
    for part in (path.name, path.parent.name):
        named = _NAMED.findall(part)
        if named:
            return int(named[-1])
    plain = _NUMBERED.fullmatch(path.name)
    return int(plain[1]) if plain else None


def last_time(data: bytes) -> float | None:
    """The last timestamp in these bytes: seconds within a year (logs often leave the year out), or None."""
    found = None
    for match in _STAMP.finditer(data):
        found = _seconds(match) or found
    return found


def _seconds(match: re.Match[bytes]) -> float | None:
    month = match["month"] or match["glog_month"]
    number = int(month) if month else _MONTHS.index(match["name"].decode()) + 1
    day = int(match["day"] or match["glog_day"] or match["date"])
    hours, minutes, seconds = ((match["clock"] or match["glog_clock"] or match["time"]).decode()).split(":")
    part = match["part"] or match["glog_part"]
    try:
        moment = datetime(2000, number, day, int(hours), int(minutes), int(seconds))
    except ValueError:
        return None
    return (moment - datetime(2000, 1, 1)).total_seconds() + (float(b"0." + part) if part else 0.0)


def time_span(times: list[float]) -> list[float]:
    """The same times across a new year: where they lie more than half a year apart, the early ones are the later."""
    if not times or max(times) - min(times) < _YEAR / 2:
        return times
    return [time + _YEAR if time < _YEAR / 2 else time for time in times]
