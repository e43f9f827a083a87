"""From the marks of a step to its ranges as they lay in time: for a trace of a few steps."""

from collections.abc import Callable, Sequence
from typing import Any

from vlmprof.stages.attribution import LEAVE
from vlmprof.stages.tree import Range

__all__ = ["SAMPLED_STEPS", "SpanSampler", "spans_of"]

SAMPLED_STEPS = 3
"""The first spanned steps, whose spans are kept; one of them may be a warm-up step."""
MOST_SPANS = 50_000
"""A step of more ranges is not kept: its journal line would be megabytes."""
Span = tuple[str, int | None, str, float, float, int]
"""(stage, layer, phase, begin, end, depth): milliseconds from the step's begin; the step itself has depth 0."""


def spans_of(
    events: Sequence[tuple[Any, int]], ranges: Sequence[Range], milliseconds: Callable[[Any, Any], float]
) -> list[Span]:
    """Every range of a step in the order of their begins, to a tenth of a microsecond.

    Args:
        events: (mark, range id to enter or LEAVE), in order and balanced, the outermost range being the step.
        ranges: by range id.
        milliseconds: the clock's way from two marks to a time.
    """
    if not events:
        return []
    began = events[0][0]
    found: list[Span] = []
    open_: list[int] = []
    now = 0.0
    for mark, code in events:
        now = max(now, round(milliseconds(began, mark), 4))  # marks of two streams may pass in another order
        if code == LEAVE:
            place = open_.pop()
            found[place] = (*found[place][:4], now, found[place][5])
        else:
            range_ = ranges[code]
            found.append((range_.stage, range_.layer, range_.phase, now, now, len(open_)))
            open_.append(len(found) - 1)
    return found


class SpanSampler:
    """Keeps the spans of the first few steps that it is asked about."""

    def __init__(self) -> None:
        self._left = SAMPLED_STEPS

    def facts(
        self,
        events: Sequence[tuple[Any, int]],
        ranges: Sequence[Range],
        milliseconds: Callable[[Any, Any], float],
        began: float,
    ) -> dict[str, Any]:
        """What a step's event says more: `spans`, and `spans_began`, when the step began on this host's clock, in
        seconds since the epoch; nothing for the steps that are not kept."""
        if not self._left or not events or len(events) > 2 * MOST_SPANS:
            return {}
        self._left -= 1
        return {"spans_began": began, "spans": spans_of(events, ranges, milliseconds)}
