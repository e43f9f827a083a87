"""Clocks: what a mark at a range edge records, and how two marks become milliseconds."""

import time
from collections.abc import Iterable
from typing import Any, Protocol

import torch

__all__ = ["Clock", "CudaClock", "NoClock", "WallClock", "clock_for"]


class Clock(Protocol):
    """A source of marks. `mark` must be cheap: it runs at every range edge inside the step."""

    source: str
    """How its figures are labelled: `wall-clock`, `cuda-event`."""

    def mark(self) -> Any:
        """A mark of this moment."""
        ...

    def milliseconds(self, earlier: Any, later: Any) -> float:
        """Time between two marks that have `passed`."""
        ...

    def passed(self, mark: Any) -> bool:
        """Whether a mark can be read without waiting."""
        ...

    def settle(self) -> None:
        """Wait until every mark has passed."""
        ...

    def give_back(self, marks: Iterable[Any]) -> None:
        """These marks have been read and may be used again."""
        ...


class WallClock:
    """The host's monotonic clock, in nanoseconds."""

    source = "wall-clock"
    mark = staticmethod(time.perf_counter_ns)

    @staticmethod
    def milliseconds(earlier: int, later: int) -> float:
        return (later - earlier) / 1e6

    @staticmethod
    def passed(mark: int) -> bool:
        return True

    @staticmethod
    def settle() -> None:
        pass

    @staticmethod
    def give_back(marks: Iterable[int]) -> None:
        pass


class CudaClock:
    """CUDA events on the stream where the work runs: nothing waits for them while the step runs. They are pooled,
    since making one costs as much as recording it."""

    source = "cuda-event"

    def __init__(self, device: torch.device) -> None:
        self._free: list[torch.cuda.Event] = []
        self._device = device.index if device.index is not None else torch.cuda.current_device()
        self._streams: dict[int, torch.cuda.Stream] = {}

    def mark(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        # What `record()` would look up itself, at three times the cost.
        handle = torch._C._cuda_getCurrentRawStream(self._device)
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = torch.cuda.current_stream(self._device)
        event.record(stream)
        return event

    @staticmethod
    def milliseconds(earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        return float(earlier.elapsed_time(later))

    @staticmethod
    def passed(mark: torch.cuda.Event) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def give_back(self, marks: Iterable[torch.cuda.Event]) -> None:
        self._free += {id(mark): mark for mark in marks}.values()  # neighbouring edges share one


class NoClock(WallClock):
    """For steps whose ranges are not timed here: traced and counted ones, and NVTX alone."""

    mark = staticmethod(lambda: 0)


def clock_for(device: torch.device) -> Clock:
    """Device events on CUDA, the host's clock elsewhere."""
    return CudaClock(device) if device.type == "cuda" else WallClock()
