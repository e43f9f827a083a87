"""One log, read as a stream: every sign seen in it, with rank, time and frame.

Only lines that may hold a sign are read, and those after the beginning of a traceback; the rest is passed over in whole
blocks.
"""

import re
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

from vlmprof.failures.labels import Label, file_rank, last_time, mentioned_rank, numbered, split_label
from vlmprof.failures.lines import LONGEST, around_sign, hits_of, line_end
from vlmprof.failures.logs import Block, read_blocks
from vlmprof.failures.progress import has_progress, last_iteration, survivors
from vlmprof.failures.sighting import Sighting
from vlmprof.failures.signs import HARMLESS, UNCAUGHT, Held, Sign, signs_of
from vlmprof.failures.tracebacks import CHAINED, Raised, Traceback, opens_traceback, raised, user_frame

__all__ = ["Scan", "scan"]

_BACK = 8192
"""Bytes before a line in which its time is looked for."""
_KEPT = 20
"""Sightings of one sign on one rank; the first is what counts."""
_KEPT_IN_ALL = 5000
_TRACEBACKS = 20_000
"""Tracebacks read of one log before its end comes near: a log full of handled ones does not cost hours."""
_REPEATS = 500
"""Times that a line is read, numbers aside, before its end comes near; from then on it is only counted."""
_SHAPES = 5000
"""Such lines that are remembered."""
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_PATIENCE = 2000
"""Lines read after a traceback's beginning, of all processes, for its end to come."""
_AFTER = 4
"""Lines of the same process after an exception that may say that it was handled, or chain another one."""
_LONE = 50
"""An exception's line without its traceback counts from this precedence on: it may have been handled."""
_TELLING = re.compile(r"(?i)\b(?:error|fatal|fail(?:ed|ure)|exception|abort(?:ed|ing)?|panic|critical|killed)\b")


@dataclass(slots=True)
class _Lane:
    """What one process is in the middle of printing."""

    traceback: Traceback | None = None
    handled: bool = False
    """The line before the traceback says that its exception was handled."""
    rank: int | None = None
    """The rank that line names."""
    read: int = 0
    """Lines of the log read since."""
    ended: Sighting | None = None
    after: int = 0
    chained: bool = False


class Scan:
    """What one log holds. `take` its blocks in order, then `finish`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rank = file_rank(path)
        self.sightings: list[Sighting] = []
        self.counts: Counter[str] = Counter()
        """Lines by sign."""
        self.ranks: set[int] = set() if self.rank is None else {self.rank}
        self.first_failed: int | None = None
        """The rank that the launcher saw fail first."""
        self.telling: deque[tuple[int, str]] = deque(maxlen=6)
        """Lines that sound like a failure but hold no sign."""
        self.tail = b""
        self._sparing = False
        """Tracebacks are passed over for now, and so are the exceptions that end them."""
        self._tasks: bool | None = None
        self._tasks_are_nodes = False
        self._training = False
        self._time: float | None = None
        self._kept: Counter[tuple[str, str]] = Counter()
        self._lanes: dict[str, _Lane] = {}
        self._tracebacks = 0
        self._shapes: dict[bytes, tuple[int, str]] = {}
        self._fresh: list[tuple[int, Sighting]] = []
        self._spoken: int | None = None
        self._first_next = False

    def rank_of(self, sighting: Sighting) -> int | None:
        """The rank that a sighting is about: one it names, that of its label, of its file, of its text."""
        fields, label = sighting.fields, sighting.label
        task = None if self._tasks_are_nodes else label.task
        choices = (
            _rank(fields.get("task")),
            label.rank,
            self.rank,
            task,
            _rank(fields.get("rank")),
        )
        found = next((rank for rank in choices if rank is not None), None)
        return mentioned_rank(sighting.text) if found is None else found

    def take(self, block: Block) -> None:
        """Read the lines of a block that matter."""
        data = block.data
        hits = sorted(hits_of(data))
        hit_set = set(hits)
        at, line, counted = 0, block.first_line, 0
        while at < len(data):
            if not self._lanes:
                index = bisect_left(hits, at)
                if index == len(hits):
                    break
                at = hits[index]
            end = line_end(data, at)
            line += data.count(b"\n", counted, at)
            counted = at
            if self._lanes or block.near_end or not self._repeated(data[at : min(end, at + LONGEST)]):
                self._line(block, at, end, line, at in hit_set)
            at = end + 1
        self._settle(data)
        self._training = self._training or has_progress(data, len(data))
        self.tail = data[-_BACK:] if len(data) >= _BACK else (self.tail + data)[-_BACK:]

    def finish(self) -> None:
        """The log has ended: a traceback whose exception is missing was cut off."""
        for lane in self._lanes.values():
            traceback = lane.traceback
            if traceback is not None and traceback.frames and not traceback.innermost_first:
                cut = Sighting(
                    UNCAUGHT, UNCAUGHT.precedence, traceback.last_line, traceback.last, traceback.label, {}, None
                )
                cut.frame, cut.survived = user_frame(traceback), lane.handled
                self._keep(cut, b"", 0, 0)
        self.sightings = [sighting for sighting in self.sightings if not sighting.survived]

    def _line(self, block: Block, at: int, end: int, line: int, hit: bool) -> None:
        data = block.data
        whole = data[at : min(end, at + LONGEST)].decode("utf-8", "replace").rstrip()
        label = split_label(whole, self._labelled(data, at))
        if label.rank is not None:
            self._tasks_are_nodes |= label.task is not None and label.task != label.rank
            self.ranks.add(label.rank)
        if self._continues(label, whole, data, at, end, line) or not hit:
            return
        self._sparing = self._tracebacks >= _TRACEBACKS and not block.near_end
        if opens_traceback(label.text):
            if not self._sparing:
                self._open(label, data, at, line)
            return
        if end - at > LONGEST:
            whole, label = around_sign(data[at:end], label)
        self._signs(label, whole, data, at, end, line)

    def _repeated(self, line: bytes) -> bool:
        """Count a line that has been read often enough: millions of the same line need not be parsed."""
        shape = self._shapes.get(line.translate(_ZEROS))
        if shape is None or shape[0] < _REPEATS:
            return False
        self.counts[shape[1]] += 1
        return True

    def _remember(self, line: bytes, sign: Sign | None) -> None:
        shape = line[:LONGEST].translate(_ZEROS)
        if shape in self._shapes or len(self._shapes) < _SHAPES:
            times, _ = self._shapes.get(shape, (0, ""))
            self._shapes[shape] = (times + 1, "" if sign is None else sign.name)

    def _labelled(self, data: bytes, at: int) -> bool:
        """Whether lines begin with srun's task number; decided around the first line that looks so."""
        if self._tasks is None and data[at : at + 8].lstrip(b" ")[:1].isdigit():
            self._tasks = numbered(data[max(0, at - 1000) : at + 1000].split(b"\n")[1:-1]) or None
        return bool(self._tasks)

    # --------------------------------------------------------------------------------------------- tracebacks

    def _open(self, label: Label, data: bytes, at: int, line: int) -> None:
        self._tracebacks += 1
        before = self._lanes.pop(label.lane, None)
        start = data.rfind(b"\n", 0, max(at - 1, 0)) + 1
        above = data[start:at][:LONGEST].decode("utf-8", "replace").strip()
        lane = _Lane(Traceback(label, line), HARMLESS.search(above) is not None, mentioned_rank(above))
        if before is not None and before.chained:
            lane.ended, lane.chained = before.ended, True
        self._lanes[label.lane] = lane

    def _continues(self, label: Label, whole: str, data: bytes, at: int, end: int, line: int) -> bool:
        """Give the line to what its process was printing; whether it belongs there."""
        for name in [name for name, lane in self._lanes.items() if lane.read > _PATIENCE]:
            del self._lanes[name]
        for lane in self._lanes.values():
            lane.read += 1
        found = self._lanes.get(label.lane)
        if found is None:
            return False
        if found.traceback is None:
            return self._follows(found, label)
        if opens_traceback(label.text):
            return False
        traceback = found.traceback
        if traceback.belongs(label.text, line):
            return True
        raised_here = None if traceback.innermost_first else traceback.end(label.text)
        if raised_here is not None:
            self._ended(found, raised_here, Sighting(UNCAUGHT, 0, line, whole, label, {}, raised_here), data, at, end)
            return True
        if traceback.innermost_first or traceback.given_up:
            self._attach(label.lane, traceback)
        return False

    def _attach(self, lane: str, traceback: Traceback) -> None:
        """Give a faulthandler's frames to the crash that it reports."""
        del self._lanes[lane]
        crash = self.sightings[-1] if self.sightings else None
        if traceback.innermost_first and crash is not None and crash.frame is None and crash.label.lane == lane:
            crash.frame = user_frame(traceback)

    def _follows(self, lane: _Lane, label: Label) -> bool:
        if lane.ended is not None and not lane.ended.sign.lasting and HARMLESS.search(label.text):
            lane.ended.survived = True
        if CHAINED.search(label.text):
            lane.chained = True
            lane.after = _AFTER
        lane.after -= bool(label.text.strip())
        if lane.after <= 0 or lane.read > _PATIENCE:
            self._lanes.pop(label.lane, None)
        return False

    def _ended(self, lane: _Lane, found: Raised, sighting: Sighting, data: bytes, at: int, end: int) -> None:
        """A traceback's last line: which sign it holds, and whether it or the one it is chained to is what counts."""
        traceback = lane.traceback
        frame = None if traceback is None else user_frame(traceback)
        held = self._choose(sighting.label.text.strip(), found, frame, data, at) or Held(UNCAUGHT, {})
        sighting.sign, sighting.fields, sighting.frame = held.sign, held.fields, frame
        if lane.rank is not None:
            sighting.fields.setdefault("rank", str(lane.rank))
        sighting.precedence, sighting.survived = held.sign.precedence, lane.handled
        earlier = lane.ended if lane.chained else None
        if earlier is not None and earlier.sign is UNCAUGHT and held.sign.kind == "root":
            earlier.survived = True
        if held.sign is not UNCAUGHT or earlier is None or earlier.sign is UNCAUGHT or earlier.sign.kind != "root":
            self._keep(sighting, data, at, end)
        self._lanes[sighting.label.lane] = _Lane(ended=sighting, after=_AFTER)

    # -------------------------------------------------------------------------------------------------- signs

    def _signs(self, label: Label, whole: str, data: bytes, at: int, end: int, line: int) -> None:
        text = label.text.strip()
        found = raised(text)
        if found is not None and (self._sparing or not found.type.endswith(("Error", "Exception"))):
            found = None
        held = self._choose(text, found, None, data, at)
        sign = None if held is None else held.sign
        self._remember(data[at:end], sign)
        handled = sign is not None and sign.kind in ("root", "exit") and not sign.lasting and HARMLESS.search(text)
        if held is None or sign is None or handled:
            if _TELLING.search(text):
                self.telling.append((line, whole))
            return
        precedence = max(sign.precedence, _LONE) if sign.uncaught else sign.precedence
        self._keep(Sighting(sign, precedence, line, whole, label, held.fields, found), data, at, end)

    def _choose(self, text: str, found: Raised | None, frame: str | None, data: bytes, at: int) -> Held | None:
        """The first sign of the table that the line holds and whose other columns agree."""
        for held in signs_of(text):
            sign = held.sign
            if (
                (sign.kind == "context" and frame is not None)
                or (sign.uncaught and found is None)
                or (sign.frame is not None and not sign.frame.search(frame or ""))
                or (sign.before_training and (self._training or has_progress(data, at)))
            ):
                continue
            return held
        return None

    def _keep(self, sighting: Sighting, data: bytes, at: int, end: int) -> None:
        sign, lane = sighting.sign, sighting.label.lane
        self.counts[sign.name] += 1
        self._launcher(sighting)
        if self._kept[sign.name, lane] >= _KEPT or len(self.sightings) >= _KEPT_IN_ALL:
            return
        self._kept[sign.name, lane] += 1
        back = data[max(0, at - _BACK) : end]
        sighting.time = last_time(back) or last_time(self.tail) or self._time
        sighting.iteration = last_iteration(data[:at][-8 * _BACK :]) or last_iteration(self.tail)
        self._time = sighting.time
        self.sightings.append(sighting)
        if sign.kind in ("root", "exit") and not sign.lasting:
            self._fresh.append((end, sighting))

    def _launcher(self, sighting: Sighting) -> None:
        """In the launcher's report a rank's number comes lines before its exit code or traceback, all indented."""
        task = sighting.fields.get("task")
        indented = sighting.label.text.startswith("  ")
        if sighting.sign.name == "first-failure":
            self._first_next = True
        elif sighting.sign.kind == "wrapper" and task is not None:
            self._spoken = int(task)
            self.ranks.add(self._spoken)
            if self._first_next:
                self.first_failed, self._first_next = self._spoken, False
        elif indented and task is None and self._spoken is not None:
            sighting.fields["task"] = str(self._spoken)

    def _settle(self, data: bytes) -> None:
        """Drop what training survived, and watch the rest in the next block."""
        for sighting in survivors(data, self._fresh) if self._fresh else ():
            sighting.survived = True
        if any(sighting.survived for sighting in self.sightings):
            for sighting in self.sightings:
                self._kept[sighting.sign.name, sighting.label.lane] -= sighting.survived
            self.sightings = [sighting for sighting in self.sightings if not sighting.survived]
        self._fresh = [(0, sighting) for _, sighting in self._fresh if not sighting.survived]


def scan(path: Path) -> Scan:
    """Read a log.

    Raises:
        UserError: it cannot be read.
    """
    result = Scan(path)
    for block in read_blocks(path):
        result.take(block)
    result.finish()
    return result


def _rank(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 7 else None
