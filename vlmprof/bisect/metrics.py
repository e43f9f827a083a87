"""A metric as the symptom: each commit held against the end without it, by the comparison room's own verdict.

What is exact (bytes, FLOPs, losses) takes one run of each commit, held against the record of the end without the
symptom. What varies from run to run takes both commits in turns on this machine, several runs each.
"""

from dataclasses import replace
from pathlib import Path

from vlmprof.compare import Thresholds, compare, load_thresholds, may_be_worse, place_of
from vlmprof.errors import UserError
from vlmprof.records.bisect import Held, Observation, Plan, Probe
from vlmprof.records.comparison import COMPARISON_SCHEMA, Comparison
from vlmprof.records.run import Run
from vlmprof.records.store import read_document, read_run

__all__ = ["LOSSES", "STEP", "Yardstick", "default_rounds", "half_of", "metric_names", "thresholds_file"]

LOSSES = "losses"
"""Not a metric of a comparison but a part of it: worse is, where they part by more than rounding."""
TIMES = ("step_ms", "device_busy_ms", "exposed_ms")
"""Metrics that one run of each commit cannot tell."""
ROUNDS = 10
"""Runs a side of these, as `vlmprof compare --ab` has it."""
STEP = "step_ms"
MOST = 0.5
"""No larger a threshold is needed, whatever the change."""
IGNORED = 0.99
"""Threshold of what is not hunted: it neither ends the runs in turns early nor keeps them going."""


def metric_names() -> tuple[str, ...]:
    """Every metric that can be hunted."""
    return (*load_thresholds().changes, LOSSES)


def default_rounds(symptom: str) -> int:
    """Runs a side, in turns; 0: one run of each commit."""
    return ROUNDS if symptom in TIMES else 0


def half_of(change: float) -> float:
    """The threshold for a change of that size: half of it tells the two sides apart soonest. One digit, so that the
    question stays the same when a little more or less is measured another time."""
    return min(float(f"{change / 2:.0e}"), MOST)


class Yardstick:
    """What the probes of a plan are held against, learned from the probes of its ends."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.threshold = plan.threshold
        """Relative change that counts; None: what `vlmprof compare` takes, until the end with the symptom is known."""
        self._good: Run | None = None

    @property
    def needs_good_end(self) -> bool:
        """Whether the end without the symptom is to be tried before any other."""
        return not self.plan.rounds

    def learn(self, probe: Probe) -> None:
        """Take over what the probe of an end tells: the record to hold others against, or how large the change is."""
        without, having = ("bad end", "good end") if self.plan.find_fix else ("good end", "bad end")
        if probe.role == without and probe.verdict == "good" and self.needs_good_end:
            self._good = read_run(Path(probe.observation.record))
        if probe.role == having and self.plan.threshold is None and probe.held and probe.held.change:
            self.threshold = max(half_of(abs(probe.held.change)), load_thresholds().changes[self.plan.symptom])

    def hold(self, seen: Observation) -> Held | None:
        """The metric at this commit against the end without the symptom; None where it left no record."""
        if not seen.record:
            return None
        try:
            return _held(self.plan.symptom, self._comparison(Path(seen.record)))
        except UserError as error:  # damaged, or other work than at that end
            return Held(verdict="undecided", text=str(error))

    def _comparison(self, record: Path) -> Comparison:
        if self.plan.rounds:
            return read_document(record, Comparison, COMPARISON_SCHEMA, "comparison")
        run, limits = read_run(record), _limits(self.plan.symptom, self.threshold)
        return compare([self._good or run], [run], thresholds=limits, labels=("good", "this commit"))


def _limits(metric: str, threshold: float | None) -> Thresholds:
    """The shipped thresholds, with the one that is hunted, and nothing else that could be told."""
    shipped = load_thresholds()
    changes = dict.fromkeys(shipped.changes, IGNORED)
    if metric in changes:
        changes[metric] = threshold or shipped.changes[metric]
    return replace(shipped, changes=changes, step_share=IGNORED if metric == STEP else 1 - IGNORED)


def thresholds_file(metric: str, threshold: float | None) -> str:
    """The same as a file for `vlmprof compare --thresholds`."""
    limits = _limits(metric, threshold)
    lines = [f"{name} = {value}" for name, value in limits.changes.items()]
    return "\n".join(["[thresholds]", *lines, "[test]", f"step_share = {limits.step_share:g}", ""])


def _held(metric: str, found: Comparison) -> Held:
    if metric == LOSSES:
        return _held_losses(found)
    row = next((row for row in found.metrics if row.name == metric), None)
    if row is None:
        return Held(verdict="undecided", text=f"the run tells no {metric}")
    change = f"{row.change:+.2%}: " if row.change is not None else ""
    once = "" if row.verdict != "undecided" or row.decided_by else "; --rounds N runs both commits in turns"
    place = place_of(metric, found.stages, found.memory) if row.verdict in ("worse", "better") else ""
    # runs in turns end as soon as it is sure to be no worse, though it may still be better
    verdict = row.verdict if row.verdict != "undecided" or may_be_worse(row) else "same"
    return Held(verdict=verdict, change=row.change, text=f"{row.title} {change}{row.reason}{once}", place=place)


def _held_losses(found: Comparison) -> Held:
    losses = found.losses
    if losses is None or losses.reading == "unknown":
        return Held(verdict="undecided", text="the losses cannot be compared")
    return Held(verdict="worse" if losses.reading == "diverged" else "same", text=losses.text)
