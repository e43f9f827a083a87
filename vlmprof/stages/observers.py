"""What looks at a step, by its kind. `start` before the step; `stop` after it gives back a function that tells what was
seen, to be called once the step has passed on the device, too."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from vlmprof.stages.attribution import attribute
from vlmprof.stages.clock import Clock, NoClock
from vlmprof.stages.hookpoints import Place
from vlmprof.stages.hooks import Hooks
from vlmprof.stages.memory import MemoryCounter
from vlmprof.stages.recorder import Recorder
from vlmprof.stages.spans import SpanSampler

__all__ = ["NOTHING", "Keep", "Observer", "make_observers"]

Facts = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Keep:
    """What else a run leaves, besides its journal."""

    folder: Path | None = None
    """Where traces and snapshots go; None: nowhere."""
    rank: int = 0
    nvtx: bool = False
    """NVTX ranges in plain steps, too."""
    memory_snapshot: bool = False


NOTHING = Keep()


class Observer(Protocol):
    def start(self) -> None: ...

    def stop(self) -> Facts:
        """The model as it was, also after an exception; the facts are the step's fields in the journal."""
        ...


class Spanning:
    """Times between the edges of ranges, by the recorder's own clock."""

    def __init__(self, recorder: Recorder, hooks: Hooks, clock: Clock) -> None:
        self._recorder, self._hooks, self._clock = recorder, hooks, clock
        self._sampler = SpanSampler()
        self._began = 0.0

    def start(self) -> None:
        self._hooks.install()
        self._began = time.time()
        self._recorder.begin_step()

    def stop(self) -> Facts:
        events, began = self._recorder.end_step(), self._began
        self._hooks.remove()
        return lambda: self._facts(events, began)

    def _facts(self, events: list[tuple[Any, int]], began: float) -> dict[str, Any]:
        spans = self._sampler.facts(events, self._recorder.ranges, self._clock.milliseconds, began)
        return {"ranges": self._ranges(events), **spans}

    def _ranges(self, events: list[tuple[Any, int]]) -> list[list[Any]]:
        rows = []
        for range_id, own in attribute(events, self._clock.milliseconds).items():
            range_ = self._recorder.ranges[range_id]
            rows.append([range_.stage, range_.layer, range_.phase, own.self_ms, own.count])
        self._clock.give_back(mark for mark, _ in events)
        return rows


class Named:
    """NVTX names alone, for a tool that looks on: nothing is timed here."""

    def __init__(self, recorder: Recorder, hooks: Hooks) -> None:
        self._recorder, self._hooks = recorder, hooks

    def start(self) -> None:
        self._hooks.install()
        self._recorder.begin_step(NoClock())

    def stop(self) -> Facts:
        self._recorder.end_step()
        self._hooks.remove()
        return dict


def make_observers(
    models: list[torch.nn.Module],
    optimizer: Any,
    places: list[Place],
    recorder: Recorder,
    clock: Clock,
    device: torch.device,
    counter: MemoryCounter | None,
    keep: Keep,
) -> dict[str, Observer]:
    """Step kind -> who looks at it."""
    hooks = Hooks(recorder, places)
    observers: dict[str, Observer] = {"spanned": Spanning(recorder, hooks, clock)}
    if keep.nvtx:
        observers["plain"] = Named(recorder, hooks)
    if device.type == "cuda":
        from vlmprof.stages.device_counting import DeviceCounting
        from vlmprof.stages.tracing import Tracing

        snapshot = keep.folder / f"memory-rank{keep.rank}.pickle" if keep.folder and keep.memory_snapshot else None
        observers["counted"] = DeviceCounting(models, optimizer, places, recorder, device, snapshot)
        observers["traced"] = Tracing(recorder, hooks, keep.folder, keep.rank)
    else:
        from vlmprof.stages.counting import Counting

        observers["counted"] = Counting(models, optimizer, places, recorder, counter or MemoryCounter())
    return observers
