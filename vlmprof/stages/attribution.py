"""From the marks of a step to self times: every moment belongs to the innermost open range, to no other, and to one.

    self(r) = sum of (t[i+1] - t[i]) over all i after which r is the innermost open range

so the self times of all ranges add up to the step exactly, and a recomputation inside a backward range is taken off
that range and stands under its own phase.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["LEAVE", "RangeTime", "attribute"]

LEAVE = -1


@dataclass
class RangeTime:
    """Of one range name in one step: milliseconds that were its own, and how often it was entered."""

    self_ms: float = 0.0
    count: int = 0


def attribute(events: Sequence[tuple[Any, int]], milliseconds: Callable[[Any, Any], float]) -> dict[int, RangeTime]:
    """Self time and entries by range id.

    Args:
        events: (mark, range id to enter or LEAVE), in order and balanced, the outermost range being the step.
        milliseconds: the clock's way from two marks to a time.
    """
    times: dict[int, RangeTime] = {}
    stack: list[RangeTime] = []
    previous: Any = None
    for mark, code in events:
        if stack and mark is not previous:  # edges at one moment share their mark
            stack[-1].self_ms += milliseconds(previous, mark)
        if code == LEAVE:
            stack.pop()
        else:
            time = times.setdefault(code, RangeTime())
            time.count += 1
            stack.append(time)
        previous = mark
    return times
