"""From the ranges of one step's event to times by stage and phase."""

from vlmprof.records.journal import Event
from vlmprof.records.stage_tree import ancestors

__all__ = ["Key", "self_times", "totals_of"]

Key = tuple[str, str]
"""(stage, phase)"""


def self_times(step: Event) -> dict[Key, tuple[float, float]]:
    """(stage, phase) -> (self ms, entries), summed over layers."""
    times: dict[Key, tuple[float, float]] = {}
    for stage, _, phase, self_ms, count in step["ranges"]:
        # The step's own time is what no stage claims: its child `other`.
        key = ("other", "step") if stage == "step" else (stage, phase)
        before = times.get(key, (0.0, 0.0))
        times[key] = (before[0] + self_ms, before[1] + count)
    return times


def totals_of(times: dict[Key, tuple[float, float]]) -> dict[Key, float]:
    """Total = self + self of everything below, phase by phase: a re-run inside backward stays `recompute`."""
    totals: dict[Key, float] = {}
    for (stage, phase), (self_ms, _) in times.items():
        for name in (stage, *ancestors(stage)):
            totals[name, phase] = totals.get((name, phase), 0.0) + self_ms
    return totals
