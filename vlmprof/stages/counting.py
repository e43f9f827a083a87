"""A counted step: memory by stage, routing and communication, put together for the journal."""

from collections.abc import Callable
from typing import Any

import psutil
import torch

from vlmprof.stages.clock import NoClock
from vlmprof.stages.hookpoints import Place
from vlmprof.stages.hooks import Hooks
from vlmprof.stages.memory import MemoryCounter
from vlmprof.stages.ownership import lasting_tensors, parameter_stages
from vlmprof.stages.recorder import Recorder
from vlmprof.stages.routing import RoutingCounter
from vlmprof.stages.timeline import Owner, by_stage, read_timeline, saved_activations

__all__ = ["Counting"]


class Counting:
    """`start` before a counted step, `stop` after it, then `facts`."""

    def __init__(
        self,
        models: list[torch.nn.Module],
        optimizer: Any,
        places: list[Place],
        recorder: Recorder,
        counter: MemoryCounter,
    ) -> None:
        self._models, self._optimizer = models, optimizer
        self._recorder, self._counter = recorder, counter
        self._routing = RoutingCounter()
        self._hooks = Hooks(recorder, places, self._routing.wrap)
        self._owners = parameter_stages(models, places)
        self._start: dict[Owner, int] = {}

    def start(self) -> None:
        """Hooks in place, all that exists assigned to its stage, the counter on."""
        counter = self._counter
        self._adopt()
        counter.begin_step()
        self._routing.reset()
        self._start = counter.held()
        counter.where, counter.micro_batch = self._where, lambda: self._recorder.micro_batch
        self._hooks.install()
        self._recorder.begin_step(NoClock())
        counter.__enter__()

    def stop(self) -> Callable[[], dict[str, Any]]:
        """The counter off and the model as it was; also after an exception."""
        self._counter.__exit__(None, None, None)
        self._recorder.end_step()
        self._hooks.remove()
        return lambda: {"memory": self._facts()}

    def _facts(self) -> dict[str, Any]:
        """Bytes."""
        counter = self._counter
        timeline = read_timeline(self._start, counter.events)
        saved = saved_activations(counter.saved)
        self._adopt()  # what the optimizer made in this step is its parameters' state from now on
        return {
            "peak": timeline.peak,
            "peak_where": timeline.peak_where,
            "held_at_peak": by_stage(timeline.held_at_peak),
            "held_after": by_stage(counter.held()),
            "stage_peaks": [[*where, size] for where, size in timeline.stage_peaks.items()],
            "saved": [[*where, size] for where, size in saved.items()],
            "sent": dict(counter.sent),
            "rss": psutil.Process().memory_info().rss,
            "tokens_per_expert": [[layer, counts] for layer, counts in sorted(self._routing.tokens.items())],
            "dropped": self._routing.dropped,
            "expert_tokens": self._routing.arrived,
        }

    def facts_at_failure(self, counted: bool) -> dict[str, Any] | None:
        """What is held now, and how the experts are loaded in this micro-batch; of a counted step only."""
        if not counted:
            return None
        counter = self._counter
        return {
            "live": counter.live,
            "held": by_stage(counter.held()),
            "saved": counter.saved_now(),
            "tokens_per_expert": [[layer, counts] for layer, counts in sorted(self._routing.last.items())],
        }

    def _adopt(self) -> None:
        self._counter.adopt(lasting_tensors(self._models, self._optimizer, self._owners))

    def _where(self) -> tuple[str, str]:
        innermost = self._recorder.innermost
        if innermost is None or innermost.stage == "step":
            return ("other", "step")
        return (innermost.stage, innermost.phase)
