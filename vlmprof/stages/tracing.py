"""A traced step: PyTorch's profiler with the stages as ranges, so that each kernel is known by who launched it."""

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import RecordScope
from torch.autograd import profiler

from vlmprof.stages.attribution import LEAVE
from vlmprof.stages.clock import NoClock
from vlmprof.stages.hooks import Hooks
from vlmprof.stages.kernels import read_kernels
from vlmprof.stages.ranges import ProfilerRanges
from vlmprof.stages.recorder import Recorder

__all__ = ["Tracing"]


class Tracing:
    """`start` before a traced step, `stop` after it.

    Args:
        folder: where the trace of the last traced step is kept, gzipped; None keeps none.
        rank: stands in its file's name.
    """

    def __init__(self, recorder: Recorder, hooks: Hooks, folder: Path | None, rank: int) -> None:
        self._recorder, self._hooks = recorder, hooks
        self._ranges = ProfilerRanges()
        self._kept = folder / f"trace-rank{rank}.json.gz" if folder else None
        self._profiler: Any = None

    def start(self) -> None:
        torch.cuda.synchronize()
        self._profiler = profiler.profile(use_device="cuda" if torch.cuda.is_available() else None, use_kineto=True)
        with _stages_only():
            self._profiler.__enter__()
        self._hooks.install()
        self._recorder.begin_step(NoClock(), self._ranges)

    def stop(self) -> Callable[[], dict[str, Any]]:
        """The profiler off and the model as it was; also after an exception."""
        ranges = [self._recorder.ranges[code] for _, code in self._recorder.end_step() if code != LEAVE]
        entered = sorted({(range_.stage, range_.part) for range_ in ranges})
        self._hooks.remove()
        taken, self._profiler = self._profiler, None
        if taken is not None:
            taken.__exit__(None, None, None)  # waits for the device
        return lambda: {"kernels": {**self._kernels(taken), "entered": entered}}

    def _kernels(self, taken: Any) -> dict[str, Any]:
        """The fields of `StepKernels`."""
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "trace.json"
            taken.export_chrome_trace(str(path))
            content = path.read_bytes()
        if self._kept:
            self._kept.write_bytes(gzip.compress(content, compresslevel=1))
        events = [event for event in json.loads(content)["traceEvents"] if event.get("ph") == "X"]
        known = {range_.name: (range_.stage, str(range_.phase)) for range_ in self._recorder.ranges}
        return asdict(read_kernels(events, known))


@contextmanager
def _stages_only() -> Iterator[None]:
    """Have the profiler record our ranges, launches and kernels, but no operators: thousands a step, each would cost
    the host a microsecond or two, and so make the device wait for it."""
    module: Any = profiler  # its function takes the scopes, its class does not
    enable = module._enable_profiler

    def only_ours(config: Any, activities: Any, *scopes: Any) -> None:
        enable(config, activities, {RecordScope.USER_SCOPE})

    module._enable_profiler = only_ours
    try:
        yield
    finally:
        module._enable_profiler = enable
