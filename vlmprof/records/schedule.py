"""Which kind each step of a run is, and which batch it trains on."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from vlmprof.records.run import StepKind

__all__ = ["PlannedStep", "alternate", "plan_kinds"]


MOST: dict[StepKind, int] = {"counted": 5, "traced": 3}
"""Steps of a kind in a run at most, spread over it: bytes and kernels vary little, and these cost more than a step."""


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
    """`steps` plain steps, and one of every other kind on each of their batches (of `MOST`: on some); who goes first
    changes by turns, so that neither gains from what the other left warm."""
    # The first step of all is counted, where any is: what is allocated once and kept must be seen when it is.
    plan = [PlannedStep("counted", 0, warmup=True)] if "counted" in others else []
    plan += [PlannedStep("plain", batch, warmup=True) for batch in range(warmup)]
    plan += [PlannedStep(kind, warmup - 1, warmup=True) for kind in others if warmup and kind != "counted"]
    chosen = {kind: spread(steps, most) for kind, most in MOST.items()}
    for number in range(steps):
        kinds: list[StepKind] = ["plain", *(kind for kind in others if number in chosen.get(kind, range(steps)))]
        turn = number % len(kinds)
        plan += [PlannedStep(kind, warmup + number) for kind in kinds[turn:] + kinds[:turn]]
    return plan


def spread(steps: int, most: int) -> set[int]:
    """At most `most` of `range(steps)`, evenly, both ends among them; all of them where there are no more."""
    count = min(most, steps)
    return {round(number * (steps - 1) / max(count - 1, 1)) for number in range(count)}
