"""Which kind each step of a run is, and which batch it trains on."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from vlmprof.records.run import StepKind

__all__ = ["PlannedStep", "alternate", "plan_kinds"]


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
    """`steps` plain steps, and one of every other kind on each of their batches; who goes first changes by turns, so
    that neither gains from what the other left warm."""
    plan = [PlannedStep("plain", batch, warmup=True) for batch in range(warmup)]
    if warmup:
        plan += [PlannedStep(kind, warmup - 1, warmup=True) for kind in others]
    for number in range(steps):
        kinds: list[StepKind] = ["plain", *others]
        turn = number % len(kinds)
        plan += [PlannedStep(kind, warmup + number) for kind in kinds[turn:] + kinds[:turn]]
    return plan
