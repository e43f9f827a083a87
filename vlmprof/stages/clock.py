"""Clocks: what a mark at a range edge records, and how two marks become milliseconds."""

import time
from typing import Any, Protocol

__all__ = ["Clock", "WallClock"]


class Clock(Protocol):
    """A source of marks. `mark` must be cheap: it runs at every range edge inside the step."""

    source: str
    """How its figures are labelled: `wall-clock`, `cuda-event`."""

    def mark(self) -> Any:
        """A mark of this moment."""
        ...

    def milliseconds(self, earlier: Any, later: Any) -> float:
        """Time between two marks; may wait for a device, so it is asked only after the step."""
        ...


class WallClock:
    """The host's monotonic clock, in nanoseconds."""

    source = "wall-clock"
    mark = staticmethod(time.perf_counter_ns)

    @staticmethod
    def milliseconds(earlier: int, later: int) -> float:
        return (later - earlier) / 1e6
