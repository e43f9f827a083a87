"""What a training log says, gathered as it streams by: iterations in order, memory by rank, settings, oddities."""

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import median, mode

from vlmprof.interop.log_forms import MARKS, SETTINGS, Entry, entries
from vlmprof.interop.log_lines import LogLines

__all__ = ["KEPT_ITERATIONS", "Iteration", "RankMemory", "TrainingLog", "read_log"]

KEPT_ITERATIONS = 100_000
"""Of a longer log the last ones are kept: a record of millions of steps would fit no memory and help nobody."""
TOLD_VALUES = 8
"""Of one setting that a log contradicts itself about; some scripts print a sequence length a step."""
SAME_SECONDS = 0.0051
"""Bridge rounds `Step Time` to hundredths of a second."""
RANK_LABEL = re.compile(r"\s*(?:[\w.-]+/\d+\s+)?\[?(?:default|rank|Rank )?(\d+)\]?:(?!\d)")
"""Whose line it is, as srun (`3: `), torchrun (`[default3]:`, `[rank3]:`) and NeMo-Run (`name/0 [default3]:`) say."""
EVIDENCE_CHARACTERS = 400


@dataclass(slots=True)
class Iteration:
    index: int
    ms: float
    loss: float | None = None
    """Finite; what is not makes the iteration `broken`."""
    grad_norm: float | None = None
    tflops: float | None = None
    batch_size: float | None = None
    skipped: int = 0
    broken: str = ""
    """In what way it failed: a loss or a count of iterations that is not a number."""
    line: str = ""
    """Of a broken iteration."""


@dataclass(slots=True)
class RankMemory:
    """Bytes, as the allocator of one rank reported them."""

    peak: float = 0.0
    held: float | None = None
    reserved: float | None = None


@dataclass(slots=True)
class TrainingLog:
    """Everything known of a log; `take` adds to it, line by line."""

    families: dict[str, None] = field(default_factory=dict)
    """Whose forms were met, in order."""
    iterations: deque[Iteration] = field(default_factory=lambda: deque(maxlen=KEPT_ITERATIONS))
    dropped: int = 0
    """Iterations from before those that are kept."""
    memory: dict[int | None, RankMemory] = field(default_factory=dict)
    """By rank; None for lines that name none."""
    settings: dict[str, dict[str, None]] = field(default_factory=dict)
    """Name -> its values, in order."""
    untimed: int = 0
    """Iteration lines without a usable time."""
    repeats: int = 0
    resumed: list[tuple[int, int]] = field(default_factory=list)
    """(iteration gone back to, last one before)"""
    damage: list[str] = field(default_factory=list)
    _rate: tuple[float, float] | None = None
    """Seconds and TFLOP/s that still wait for their iteration."""
    _last_of_label: dict[str, int] = field(default_factory=dict)

    def take(self, text: str, whole: bool) -> None:
        """Add what a line tells."""
        found = entries(text, whole)
        for entry in found:
            if entry.form.kind == "iteration":
                self._take_iteration(entry, text)
            elif entry.form.kind == "rate":
                self._take_rate(entry.figures)
            self._take_memory(entry.figures)
        if not found and whole:
            for name, mark, pattern in SETTINGS:
                if mark.decode() in text and (match := pattern.search(text)):
                    values = self.settings.setdefault(name, {})
                    if len(values) < TOLD_VALUES:
                        values[match[1]] = None

    def _take_iteration(self, entry: Entry, line: str) -> None:
        iteration = _iteration(entry)
        if iteration is None:
            self.untimed += 1
            return
        self.families[entry.form.family] = None
        label = RANK_LABEL.match(line)
        known = self._place(iteration, label[1] if label else "")
        if known is not None:
            self.repeats += 1
            _fold(known, iteration)
            return
        if self._rate and abs(self._rate[0] - iteration.ms / 1e3) <= SAME_SECONDS and iteration.tflops is None:
            iteration.tflops = self._rate[1]
        self._rate = None
        if len(self.iterations) == self.iterations.maxlen:
            self.dropped += 1
        self.iterations.append(iteration)

    def _place(self, iteration: Iteration, label: str) -> Iteration | None:
        """The same iteration where a rank repeats it. A number that goes back otherwise is a resumed run: what it is
        about to do anew is taken off."""
        last = self.iterations[-1].index if self.iterations else -1
        before = self._last_of_label.get(label, -1)
        self._last_of_label[label] = iteration.index
        if iteration.index > last:
            return None
        if iteration.index == last or (label and before < iteration.index):
            same = takewhile(lambda one: one.index >= iteration.index, reversed(self.iterations))
            known = next((one for one in same if one.index == iteration.index), None)
            if known is not None:
                return known
        self.resumed.append((iteration.index, last))
        while self.iterations and self.iterations[-1].index >= iteration.index:
            self.iterations.pop()
        self._last_of_label = {label: iteration.index}
        return None

    def _take_rate(self, figures: dict[str, float]) -> None:
        """Rank 0 prints the rate, the last rank the iteration: mostly in this order, but either may come first."""
        seconds, tflops = figures.get("ms", math.nan) / 1e3, figures.get("tflops", math.nan)
        if not (math.isfinite(seconds) and math.isfinite(tflops)):
            return
        last = self.iterations[-1] if self.iterations else None
        if last is not None and last.tflops is None and abs(seconds - last.ms / 1e3) <= SAME_SECONDS:
            last.tflops = tflops
        else:
            self._rate = (seconds, tflops)

    def _take_memory(self, figures: dict[str, float]) -> None:
        # Accelerators that torch.cuda does not count report 0: that is no measurement.
        told = {name: figures[name] for name in ("peak", "held", "reserved") if 0 < figures.get(name, 0) < math.inf}
        if not told:
            return
        rank = self.memory.setdefault(int(figures["rank"]) if "rank" in figures else None, RankMemory())
        rank.peak = max(rank.peak, told.get("peak", 0.0))
        rank.held = told.get("held", rank.held)
        rank.reserved = max(told.get("reserved", 0.0), rank.reserved or 0.0) or None

    @property
    def averaged(self) -> bool:
        """Megatron's time is the mean since the line before, NeMo's that of one iteration."""
        return "NeMo" not in self.families

    @property
    def interval(self) -> int:
        """Iterations from line to line (Megatron's log_interval)."""
        steps = [later.index - earlier.index for earlier, later in pairwise(self.iterations)]
        if steps:
            return mode(steps)
        return max(int(self.setting("log_interval") or 1), 1)

    def setting(self, name: str) -> str | None:
        """A setting's value, where the log does not contradict itself."""
        values = list(self.settings.get(name, ()))
        return values[0] if len(values) == 1 else None

    def covered(self) -> Iterator[int]:
        """For each line, the iterations since the line before; the first starts at 0, or where training was resumed."""
        previous = None
        for one in self.iterations:
            gap = one.index - previous if previous is not None else min(self.interval, one.index)
            previous = one.index
            yield max(gap, 1)

    def slow_start(self, times: float) -> int:
        """How many lines at the start took more than `times` the median."""
        if self.dropped or not self.iterations:
            return 0
        limit = times * median(one.ms for one in self.iterations)
        return sum(1 for _ in takewhile(lambda one: one.ms > limit, self.iterations))


def read_log(path: Path) -> TrainingLog:
    """Everything that a log tells, in memory for its iterations and one block of text.

    Raises:
        UserError: the file cannot be read.
    """
    log = TrainingLog()
    lines = LogLines(path, MARKS)
    for line in lines:
        log.take(line.text, line.whole)
        if not line.whole:
            log.damage.append("the last line has no end: figures that may be cut off were left out")
    if lines.damage:
        log.damage.append(lines.damage)
    return log


def _iteration(entry: Entry) -> Iteration | None:
    """None where the time is missing, or is no time."""
    figures = entry.figures
    ms, index = figures.get("ms", math.nan), figures["iteration"]
    if "epoch" in figures:  # a progress bar counts anew in each epoch
        index = index + figures["epoch"] * figures["total"] if "total" in figures else figures.get("global_step", index)
    if not (math.isfinite(ms) and ms > 0 and math.isfinite(index)):
        return None
    loss, bad = figures.get("loss"), figures.get("nan_iterations", 0.0)
    broken = ""
    if loss is not None and not math.isfinite(loss):
        broken = f"the loss is {loss}"
    elif bad > 0:
        broken = f"Megatron counts {bad:.0f} nan iterations"
    return Iteration(
        index=int(index),
        ms=ms,
        loss=_finite(loss),
        grad_norm=_finite(figures.get("grad_norm")),
        tflops=_finite(figures.get("tflops")),
        batch_size=_finite(figures.get("batch_size")),
        skipped=int(_finite(figures.get("skipped")) or 0),
        broken=broken,
        line=entry.text[:EVIDENCE_CHARACTERS] if broken else "",
    )


def _fold(known: Iteration, again: Iteration) -> None:
    """The later line counts; what only the earlier one told stays. A progress bar's first line is one step behind."""
    known.ms = again.ms
    for name in ("loss", "grad_norm", "tflops", "batch_size"):
        if getattr(again, name) is not None:
            setattr(known, name, getattr(again, name))
    if again.broken:
        known.broken, known.line = again.broken, again.line
    known.skipped = max(known.skipped, again.skipped)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
