"""A counted step on a CUDA device, for the journal: the allocator's history by stage, and the experts' load."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from vlmprof.stages.allocator import Block, own_blocks, read_history
from vlmprof.stages.clock import NoClock
from vlmprof.stages.hookpoints import Place
from vlmprof.stages.hooks import Hooks
from vlmprof.stages.ownership import lasting_tensors, parameter_stages
from vlmprof.stages.ranges import MemoryTags
from vlmprof.stages.recorder import Recorder
from vlmprof.stages.routing import RoutingCounter
from vlmprof.stages.timeline import Owner, by_stage, read_timeline, saved_activations

__all__ = ["DeviceCounting"]


class DeviceCounting:
    """`start` before a counted step, `stop` after it.

    Args:
        snapshot: file for PyTorch's own memory snapshot of the last counted step (with Python stacks); None: none.
    """

    def __init__(
        self,
        models: list[torch.nn.Module],
        optimizer: Any,
        places: list[Place],
        recorder: Recorder,
        device: torch.device,
        snapshot: Path | None = None,
    ) -> None:
        self._models, self._optimizer, self._recorder = models, optimizer, recorder
        self._snapshot = snapshot
        self._routing = RoutingCounter()
        self._hooks = Hooks(recorder, places, self._routing.wrap)
        self._owners = parameter_stages(models, places)
        self._tags = MemoryTags()
        self._tags.micro_batch = lambda: recorder.micro_batch
        self._device = device.index if device.index is not None else torch.cuda.current_device()
        self._known: dict[int, Block] = {}
        self._start: dict[int, list[Block]] = {}
        self._reserved = 0

    def start(self) -> None:
        """All that lives assigned to its stage, hooks in place, the allocator's history on."""
        torch.cuda.synchronize()
        self._start = self._blocks()
        self._reserved = torch.cuda.memory_reserved(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._routing.reset()
        torch.cuda.memory._record_memory_history(
            "all", context="all" if self._snapshot else None, stacks="python", clear_history=True
        )
        self._hooks.install()
        self._recorder.begin_step(NoClock(), self._tags)

    def stop(self) -> Callable[[], dict[str, Any]]:
        """The history off and the model as it was; also after an exception."""
        self._recorder.end_step()
        self._hooks.remove()
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats(self._device)
        if self._snapshot:
            torch.cuda.memory._dump_snapshot(str(self._snapshot))  # type: ignore[no-untyped-call]
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(None)
        return lambda: self._facts(snapshot, stats)

    def _facts(self, snapshot: Mapping[str, Any], stats: Mapping[str, int]) -> dict[str, Any]:
        history = read_history(snapshot["device_traces"][self._device], self._start, self._reserved)
        self._known = {at: blocks[0] for at, blocks in history.live.items() if len(blocks) == 1}
        timeline = read_timeline(_held(self._start), history.events)
        after = self._blocks()  # what the optimizer made in this step is its parameters' state from now on
        free, total = torch.cuda.mem_get_info(self._device)
        at_peak = history.at_peak
        memory = {
            "source": "allocator",
            "peak": stats["allocated_bytes.all.peak"],
            "peak_where": timeline.peak_where,
            "held_at_peak": by_stage(timeline.held_at_peak),
            "held_after": by_stage(_held(after)),
            # Without tags all of this would be charged to nobody.
            "stage_peaks": [[*where, size] for where, size in timeline.stage_peaks.items()] if self._tags.known else [],
            "saved": [[*where, size] for where, size in saved_activations(history.saved).items()],
            "sent": None,
            "rss": psutil.Process().memory_info().rss,
            "tokens_per_expert": [[layer, counts] for layer, counts in sorted(self._routing.tokens.items())],
            "dropped": self._routing.dropped,
            "expert_tokens": self._routing.arrived,
            "device": {
                "reserved": stats["reserved_bytes.all.peak"],
                "fragmented": max(at_peak.reserved - at_peak.allocated, 0),
                "graph_pools": _graph_pools(snapshot, self._device),
                "outside": max(total - free - stats["reserved_bytes.all.current"], 0),
                "retries": stats["num_alloc_retries"],
            },
        }
        return {"memory": memory}

    def facts_at_failure(self, counted: bool) -> dict[str, Any]:
        """Who held what when an allocation failed, as far as it is known: in a counted step all of it."""
        snapshot = torch.cuda.memory._snapshot()
        if counted:
            entries = snapshot["device_traces"][self._device]
            history = read_history(entries, self._start, self._reserved, until_oom=True)
        else:
            history = read_history((), self._blocks(), torch.cuda.memory_reserved(self._device))
        live = [block for blocks in history.live.values() for block in blocks]
        saved: dict[str, int] = {}
        for block in live:
            if block.owner[1] == "forward" and block.micro_batch == self._recorder.micro_batch:
                saved[block.owner[0]] = saved.get(block.owner[0], 0) + block.size
        return {
            "live": sum(block.size for block in live),
            "held": by_stage(_held(history.live)),
            "saved": saved,
            "tokens_per_expert": [[layer, counts] for layer, counts in sorted(self._routing.last.items())],
        }

    def _blocks(self) -> dict[int, list[Block]]:
        lasting = (
            (tensor.data_ptr(), (stage, "step", category), size)
            for tensor, stage, category, size in lasting_tensors(self._models, self._optimizer, self._owners)
            if tensor.is_cuda
        )
        return own_blocks(torch.cuda.memory._snapshot(), self._device, lasting, self._known)


def _held(blocks: Mapping[int, Iterable[Block]]) -> dict[Owner, int]:
    held: dict[Owner, int] = {}
    for block in (block for many in blocks.values() for block in many):
        held[block.owner] = held.get(block.owner, 0) + block.size
    return held


def _graph_pools(snapshot: Mapping[str, Any], device: int) -> int:
    """Bytes of segments that belong to private pools: those of CUDA graphs."""
    return sum(
        segment["total_size"]
        for segment in snapshot["segments"]
        if segment["device"] == device and tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    )
