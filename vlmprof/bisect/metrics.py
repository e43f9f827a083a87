"""A metric as the symptom: each commit held against the end without it, by the comparison room's own verdict.

What is exact (bytes, FLOPs, losses) takes one run of each commit, held against the record of the end without the
symptom. What varies from run to run takes both commits in turns on this machine, several runs each.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from vlmprof.compare import compare, load_thresholds, may_be_worse, place_of
from vlmprof.compare.samples import STEP
from vlmprof.errors import UserError
from vlmprof.records.bisect import Held, Observation, Plan, Probe
from vlmprof.records.comparison import COMPARISON_SCHEMA, Comparison
from vlmprof.records.run import Run
from vlmprof.records.store import read_document, read_run

__all__ = [
    "LOSSES",
    "MOST",
    "Yardstick",
    "default_rounds",
    "half_of",
    "metric_names",
    "thresholds_file",
]

LOSSES = "losses"
"""Not a metric of a comparison but a part of it: worse is, where they part by more than rounding."""
TIMES = (STEP, "device_busy_ms", "exposed_ms")
"""Metrics that one run of each commit cannot tell."""
ROUNDS = 10
"""Runs a side of these, as `vlmprof compare --ab` has it."""
FINEST = 1e-4
"""Relative change of what is exact that is worth a search."""
MOST = 0.95
"""Largest threshold of runs in turns, however much the whole change is."""
ALLOWED = ("trained-parameters", "model-flops")
"""Differences of the work that the commit itself may make, every probe being of one workload."""


def metric_names() -> tuple[str, ...]:
    """Every metric that can be hunted."""
    return (*load_thresholds().changes, LOSSES)


def default_rounds(symptom: str) -> int:
    """Runs a side, in turns; 0: one run of each commit."""
    return ROUNDS if symptom in TIMES else 0


def half_of(change: float) -> float:
    """The threshold for a change of that size: half of it tells the two sides apart soonest."""
    return float(f"{change / 2:.1e}")


class Yardstick:
    """What the probes of a plan are held against, learned from the probes of its ends."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.threshold = plan.threshold
        """Relative change that counts; None: the least one, until the end with the symptom is known."""
        self._good: Run | None = None

    @property
    def role(self) -> Literal["good end", "bad end"]:
        """Of the end without the symptom, which is tried before any other."""
        return "bad end" if self.plan.find_fix else "good end"

    def is_anchor(self, commit: str, role: str) -> bool:
        """Whether that is the side that all others run in turns with: held against itself it would tell nothing."""
        return bool(self.plan.rounds) and (commit, role) == (self.plan.without, self.role)

    def learn(self, probe: Probe) -> None:
        """Take over what the probe of an end tells: the record to hold others against, or how large the change is."""
        if probe.role == self.role:
            if probe.verdict == "good" and not self.plan.rounds:
                self._good = read_run(Path(probe.observation.record))
        elif probe.role in ("good end", "bad end") and self.plan.threshold is None and probe.held and probe.held.change:
            self.threshold = max(half_of(abs(probe.held.change)), _least(self.plan))

    def hold(self, seen: Observation) -> Held | None:
        """The metric at this commit against the end without the symptom; None where it left no record."""
        if not seen.record:
            return None
        try:
            return _held(self.plan, self._comparison(Path(seen.record)))
        except UserError as error:  # damaged, or other work than at that end
            return Held(verdict="undecided", text=str(error))

    def _comparison(self, record: Path) -> Comparison:
        if self.plan.rounds:
            return read_document(record, Comparison, COMPARISON_SCHEMA, "comparison")
        run, limits, metric = read_run(record), load_thresholds(), self.plan.symptom
        if metric != LOSSES:
            changes = {**limits.changes, metric: self.threshold or _least(self.plan)}
            limits = replace(limits, changes=changes, only=(metric,))
        labels = "the end without the symptom", "this commit"
        return compare([self._good or run], [run], thresholds=limits, labels=labels, allow=ALLOWED)


def _least(plan: Plan) -> float:
    """The least change that counts: of what varies, what `vlmprof compare` takes."""
    return load_thresholds().changes[plan.symptom] if plan.rounds else FINEST


def thresholds_file(plan: Plan, threshold: float | None) -> str:
    """For `vlmprof compare --thresholds`: the metric that is hunted, and no other that could end the runs early."""
    if plan.symptom == LOSSES:
        return ""
    share = min(threshold or _least(plan), MOST)
    return f'[thresholds]\n{plan.symptom} = {share}\n[test]\nonly = ["{plan.symptom}"]\n'


def _held(plan: Plan, found: Comparison) -> Held:
    metric = plan.symptom
    if metric == LOSSES:
        return _held_losses(found)
    row = next((row for row in found.metrics if row.name == metric), None)
    if row is None:
        return Held(verdict="undecided", text=f"the run tells no {metric}")
    change = f"{row.change:+.2%}: " if row.change is not None else ""
    turns = row.verdict == "undecided" and not plan.rounds and not plan.command
    once = "; --rounds N runs both commits in turns" if turns else ""
    place = place_of(metric, found.stages, found.memory) if row.verdict in ("worse", "better") else ""
    # runs in turns end as soon as it is sure to be no worse, though it may still be better
    verdict = row.verdict if row.verdict != "undecided" or may_be_worse(row) else "same"
    return Held(verdict=verdict, change=row.change, text=f"{row.title} {change}{row.reason}{once}", place=place)


def _held_losses(found: Comparison) -> Held:
    losses = found.losses
    if losses is None or losses.reading == "unknown":
        return Held(verdict="undecided", text="the losses cannot be compared")
    return Held(verdict="worse" if losses.reading == "diverged" else "same", text=losses.text)
