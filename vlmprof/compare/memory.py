"""Which stages' memory moved: bytes over the counted steps' shared batches, means, so that they add up to the peak."""

import statistics
from collections.abc import Sequence

from vlmprof.compare.values import batches_of, shared_batches
from vlmprof.records.comparison import MemoryChange
from vlmprof.records.figures import Figure, Measured
from vlmprof.records.run import Run

__all__ = ["memory_changes", "peak_change"]

CATEGORIES = ("held_at_peak", "saved_activations", "parameters", "gradients", "optimizer_state")
LEAST = 1024.0
"""Bytes: a smaller change is not worth a row."""


def peak_change(a: Sequence[Run], b: Sequence[Run]) -> float | None:
    """Change of the mean peak over the shared counted batches, bytes; None where a side was not counted."""
    shared = shared_batches([*a, *b], "counted")
    sides = [[_mean(run, run.memory.peak, shared) for run in side if run.memory] for side in (a, b)]
    first, second = ([value for value in side if value is not None] for side in sides)
    return statistics.fmean(second) - statistics.fmean(first) if first and second else None


def memory_changes(a: Sequence[Run], b: Sequence[Run]) -> list[MemoryChange]:
    """A row for each stage and category that moved, the largest first, `held_at_peak` before what it is made of."""
    shared = shared_batches([*a, *b], "counted")
    sides = [_table(side, shared) for side in (a, b)]
    keys = dict.fromkeys([*sides[0], *sides[1]])
    totals: dict[str, float] = {}
    for key in keys:
        change = sides[1].get(key, 0.0) - sides[0].get(key, 0.0)
        if key[0] != "saved_activations" or key[2] == "forward":
            totals[key[0]] = totals.get(key[0], 0.0) + change
    rows = []
    for category, stage, phase in keys:
        before, after = sides[0].get((category, stage, phase), 0.0), sides[1].get((category, stage, phase), 0.0)
        total = totals.get(category, 0.0)
        if abs(after - before) >= LEAST:
            rows.append(
                MemoryChange(
                    stage=stage,
                    category=category,
                    phase=phase,
                    a_bytes=before,
                    b_bytes=after,
                    change_bytes=after - before,
                    share_of_change=(after - before) / total if abs(total) >= LEAST else None,
                )
            )
    return sorted(rows, key=lambda row: (CATEGORIES.index(row.category), -abs(row.change_bytes)))


def _table(runs: Sequence[Run], shared: Sequence[int]) -> dict[tuple[str, str, str], float]:
    """(category, stage, phase) -> bytes, mean over runs; the phase only where it matters (saved activations)."""
    found: dict[tuple[str, str, str], list[float]] = {}
    counted = [run for run in runs if run.memory is not None]
    for run in counted:
        for row in run.stages:
            for category in CATEGORIES if row.memory else ():
                value = _mean(run, getattr(row.memory, category), shared)
                if value is not None:
                    phase = row.phase if category == "saved_activations" else ""
                    found.setdefault((category, row.name, phase), []).append(value)
    return {key: sum(values) / len(counted) for key, values in found.items()}


def _mean(run: Run, measured: Measured | None, shared: Sequence[int]) -> float | None:
    """Over the samples of the shared batches."""
    if not isinstance(measured, Figure):
        return None
    batches, samples = batches_of(run, "counted"), measured.samples
    if not shared or len(batches) != len(samples):
        return measured.value
    by_batch = dict(zip(batches, samples, strict=True))
    return statistics.fmean(by_batch[batch] for batch in shared)
