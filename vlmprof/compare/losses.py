"""Where two loss curves part, and whether rounding explains it."""

import math
from collections.abc import Sequence

from vlmprof.records.comparison import Losses
from vlmprof.records.run import Run, Step

__all__ = ["compare_losses", "rounding_limit"]

FIRST_STEP = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 5e-3, "fp8": 2e-2}
"""Relative difference of two losses of a first step that rounding is granted: sums in another order, about 16 spacings
of fp32; of the shorter forms one or two, since most sums are held in fp32."""
GROWTH = {"fp32": 1.2}
"""How training amplifies it from step to step. Measured: `tiny` in fp32 with its experts' output disturbed by 2^-22
differs by 1e-7 at step 5, 2e-7 at step 20, 1e-6 at step 30 and 2e-3 at step 55."""
MOST = {"fp32": 0.02}
"""A difference that no chain of rounding errors is granted, whatever the number of steps."""
SHORT_GROWTH, SHORT_MOST = 1.5, 0.15
"""The same of the shorter forms. Measured: eight equal runs of `h200-reference` in bf16 on one H200, whose kernels add
up in no fixed order, lie 9e-5 apart at step 1, 2e-3 at step 6, 8e-2 at step 11 and 3e-2 at step 15."""


def rounding_limit(precision: str, steps: int) -> float:
    """The largest relative difference of losses that rounding may have after so many earlier steps."""
    first = FIRST_STEP.get(precision, FIRST_STEP["bf16"])
    return min(first * GROWTH.get(precision, SHORT_GROWTH) ** min(steps, 200), MOST.get(precision, SHORT_MOST))


def compare_losses(a: Run, b: Run) -> Losses | None:
    """The curves of two runs over the steps whose batches are the same; None where a side has no losses.

    A run trains on through steps of all kinds, so curves go together only as long as both trained on the same batches
    in the same order: what comes after is not compared.
    """
    pairs = _pairs(a.steps, b.steps)
    if not pairs:
        return None
    precision = a.environment.precision if a.environment else ""
    first, largest, beyond = None, 0.0, None
    for number, (one, other) in enumerate(pairs):
        difference = _relative(one.loss, other.loss)
        if difference == 0:
            continue
        first = one.index if first is None else first
        largest = max(largest, difference)
        if beyond is None and difference > rounding_limit(precision, number):
            beyond = one.index
    facts = {"steps": len(pairs), "first_difference": first, "largest": largest}
    return Losses.model_validate(facts | _reading(len(pairs), first, largest, beyond, precision))


def _pairs(a: Sequence[Step], b: Sequence[Step]) -> list[tuple[Step, Step]]:
    found = []
    for one, other in zip(a, b, strict=False):
        if one.batch != other.batch:
            break
        if one.loss is not None and other.loss is not None:
            found.append((one, other))
    return found


def _relative(one: float | None, other: float | None) -> float:
    if one is None or other is None or one == other:
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf if math.isfinite(one) != math.isfinite(other) else 0.0
    return abs(one - other) / max(abs(one), abs(other))


def _reading(steps: int, first: int | None, largest: float, beyond: int | None, precision: str) -> dict[str, str]:
    if first is None:
        return {"reading": "identical", "text": f"the losses of {steps} steps are the same to the last digit"}
    if beyond is None:
        return {
            "reading": "rounding",
            "text": f"the losses differ from step {first} on, by {largest:.1g} at most over {steps} steps: as far as "
            f"rounding in {precision or 'an unknown precision'} goes",
        }
    return {
        "reading": "diverged",
        "text": f"the losses part at step {first} and differ by {largest:.1g} over {steps} steps, more than rounding "
        f"explains from step {beyond} on: the sides do not train the same",
    }
