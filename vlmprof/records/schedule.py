"""Which kind each step of a run is, and which batch it trains on."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from vlmprof.records.run import StepKind

__all__ = ["PlannedStep", "alternate", "plan_kinds"]


COUNTED = 5
"""Counted steps of a run at most, spread over it: bytes vary little, and each costs twice a plain step."""


@dataclass(frozen=True)
class PlannedStep:
    kind: StepKind
    batch: int
    warmup: bool = False


def alternate(warmup: int = 3) -> Iterator[PlannedStep]:
    """Without end, for somebody else's loop: every step has a batch of its own."""
    for batch in count():
        kind: StepKind = "plain" if batch < warmup or (batch - warmup) % 2 == 0 else "spanned"
        yield PlannedStep(kind, batch, batch < warmup)


def plan_kinds(steps: int, warmup: int, others: tuple[StepKind, ...]) -> list[PlannedStep]:
    """`steps` plain steps, and one of every other kind on each of their batches (`counted`: on some); who goes first
    changes by turns, so that neither gains from what the other left warm."""
    # The first step of all is counted, where any is: what is allocated once and kept must be seen when it is.
    plan = [PlannedStep("counted", 0, warmup=True)] if "counted" in others else []
    plan += [PlannedStep("plain", batch, warmup=True) for batch in range(warmup)]
    if warmup and "spanned" in others:
        plan.append(PlannedStep("spanned", warmup - 1, warmup=True))
    counted = {round(number * (steps - 1) / max(COUNTED - 1, 1)) for number in range(min(COUNTED, steps))}
    for number in range(steps):
        kinds: list[StepKind] = ["plain", *(kind for kind in others if kind != "counted" or number in counted)]
        turn = number % len(kinds)
        plan += [PlannedStep(kind, warmup + number) for kind in kinds[turn:] + kinds[:turn]]
    return plan
