"""From what the memory counter wrote down to figures: the peak, who held what at it, the peak within each stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["CATEGORIES", "Owner", "Timeline", "by_stage", "read_timeline", "saved_activations"]

Owner = tuple[str, str, str]
"""(stage, phase, category)"""
Where = tuple[str, str]
"""(stage, phase)"""
CATEGORIES = ("parameters", "gradients", "optimizer_state", "tensors")


@dataclass
class Timeline:
    """Of one counted step; bytes."""

    peak: int
    peak_where: Where
    held_at_peak: dict[Owner, int]
    stage_peaks: dict[Where, int] = field(default_factory=dict)
    """The most that lived while this stage and phase ran."""


def read_timeline(start: Mapping[Owner, int], events: Sequence[tuple[Owner, int, Where]]) -> Timeline:
    """Replay the events of a step on what was held at its start.

    The first of equal peaks counts. Two passes: the first finds the peak, the second what was held there.
    """
    live = sum(start.values())
    found = Timeline(live, ("step", "step"), {})
    position = 0
    for number, (_, size, where) in enumerate(events, 1):
        live += size
        if live > found.peak:
            found.peak, found.peak_where, position = live, where, number
        if live > found.stage_peaks.get(where, 0):
            found.stage_peaks[where] = live
    held = dict(start)
    for owner, size, _ in events[:position]:
        held[owner] = held.get(owner, 0) + size
    found.held_at_peak = {owner: size for owner, size in held.items() if size}
    return found


def by_stage(held: Mapping[Owner, int]) -> dict[str, dict[str, int]]:
    """Stage -> category -> bytes."""
    table: dict[str, dict[str, int]] = {}
    for (stage, _, category), size in held.items():
        if size:
            row = table.setdefault(stage, {})
            row[category] = row.get(category, 0) + size
    return table


def saved_activations(saved: Mapping[tuple[int, str, str], int]) -> dict[Where, int]:
    """Of the micro-batch that saved most in forward: (stage, phase) -> bytes."""
    totals: dict[int, int] = {}
    for (micro_batch, _, phase), size in saved.items():
        if phase != "recompute":
            totals[micro_batch] = totals.get(micro_batch, 0) + size
    if not totals:
        return {}
    largest = max(totals, key=lambda micro_batch: totals[micro_batch])
    return {(stage, phase): size for (number, stage, phase), size in saved.items() if number == largest}
