"""`vlmprof.attach`: the stages of any model made of Megatron modules, in your own training script or notebook.

    profile = vlmprof.attach(model, optimizer)
    for batch in profile.data(loader):
        train_step(batch)
        profile.step()
    profile.close()
    print(profile.table())

`vlmprof run` is built on it.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import torch

from vlmprof.records.assemble import NOTES, assemble
from vlmprof.records.journal import Journal, MemoryJournal
from vlmprof.records.run import Run
from vlmprof.records.schedule import PlannedStep, alternate
from vlmprof.stages.attribution import attribute
from vlmprof.stages.clock import Clock, WallClock
from vlmprof.stages.counting import Counting
from vlmprof.stages.hookpoints import HOOK_POINTS, find_places, missing_stages, unwrapped
from vlmprof.stages.hooks import Hooks, observe, staged
from vlmprof.stages.memory import MemoryCounter
from vlmprof.stages.recorder import Recorder
from vlmprof.stages.spans import SpanSampler
from vlmprof.stages.tree import Range

__all__ = ["Profile", "attach"]

Item = TypeVar("Item")


def attach(
    model: torch.nn.Module | list[torch.nn.Module],
    optimizer: Any = None,
    *,
    schedule: Iterable[PlannedStep] | None = None,
    journal: Journal | None = None,
    name: str = "attached",
) -> "Profile":
    """Profile the steps from here on; call `profile.step()` at each step's end.

    Args:
        model: the model or Megatron's list of model chunks, wrapped in DDP or not. Not changed: hooks are in place
            only while a `spanned` step runs.
        optimizer: Megatron's or any with `step` and `zero_grad`; its calls become the stage `optimizer`.
        schedule: what kind each coming step is. Default: three warm-up steps, then plain and spanned by turns.
        journal: where events go; default: memory.
        name: of the workload in the record.
    """
    models = model if isinstance(model, list) else [model]
    return Profile(models, optimizer, schedule or alternate(), journal or MemoryJournal(), name)


class Profile:
    """The steps of one training process. Not thread-safe: call it from the thread that trains."""

    def __init__(
        self,
        models: list[torch.nn.Module],
        optimizer: Any,
        schedule: Iterable[PlannedStep],
        journal: Journal,
        name: str,
        clock: Clock | None = None,
        counter: MemoryCounter | None = None,
    ) -> None:
        self.journal = journal
        self.clock: Clock = clock or WallClock()
        self.recorder = Recorder(self.clock)
        self.places = places = find_places(models, optimizer)
        self._hooks = Hooks(self.recorder, places)
        self._counting = Counting(models, optimizer, places, self.recorder, counter or MemoryCounter())
        self._sampler = SpanSampler()
        self._schedule = iter(schedule)
        self._indices = count()
        self._collecting = gc.isenabled()
        self.planned: PlannedStep | None = None
        """The step that is running; None once the schedule is through or the profile closed."""
        self.index = -1
        found = [place.point for place in places]
        if isinstance(journal, MemoryJournal):
            journal.tell("start", workload={"name": name}, realism="unknown", notes=NOTES)
        journal.tell(
            "model",
            parameters=count_parameters(models),
            missing=missing_stages(places),
            hook_points=[
                {
                    "stage": point.stage,
                    "point": f"{point.owner}.{point.member}".rstrip("."),
                    "found": found.count(point),
                }
                for point in HOOK_POINTS
            ],
        )
        self._begin()

    @property
    def observing(self) -> bool:
        """Whether the running step has hooks in place."""
        return self.planned is not None and self.planned.kind in ("spanned", "counted")

    def step(
        self,
        loss: float | None = None,
        grad_norm: float | None = None,
        work: dict[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        """End the running step and begin the next.

        Args:
            loss: of the step, if known.
            grad_norm: likewise.
            work: what was trained on: tokens, useful_tokens, padding_tokens, images, image_patches, lengths (of
                sequences, unpadded) and patch_counts (of pictures); without it there is no throughput in tokens.
            facts: more for the journal, of this rank: loss_sum, loss_tokens, own.
        """
        now = self.clock.mark()
        if self.planned is None:
            return
        planned, ranges, memory = self.planned, [], None
        if planned.kind == "spanned":
            events = self.recorder.end_step()
            facts |= self._sampler.facts(events, self.recorder.ranges, self.clock.milliseconds, planned.warmup)
            self._hooks.remove()
            for range_id, time in attribute(events, self.clock.milliseconds).items():
                range_ = self.recorder.ranges[range_id]
                ranges.append([range_.stage, range_.layer, range_.phase, time.self_ms, time.count])
        elif planned.kind == "counted":
            self._counting.stop()
            memory = self._counting.facts()
        self.journal.tell(
            "step",
            index=self.index,
            batch=planned.batch,
            kind=planned.kind,
            warmup=planned.warmup,
            ms=self.clock.milliseconds(self._began, now),
            loss=loss,
            grad_norm=grad_norm,
            work=work,
            ranges=ranges,
            memory=memory,
            **facts,
            source=self.clock.source,
        )
        self._begin()

    def _begin(self) -> None:
        self.planned = next(self._schedule, None)
        if self.planned is None:
            self.close()
            return
        self.index = next(self._indices)
        gc.collect()
        gc.disable()
        self.journal.tell("begin", index=self.index, kind=self.planned.kind)
        if self.planned.kind == "spanned":
            self._hooks.install()
            self.recorder.begin_step()
        elif self.planned.kind == "counted":
            self._counting.start()
        self._began = self.clock.mark()

    def close(self) -> None:
        """Leave the model as it was found. The step that is running is dropped."""
        if self.planned is not None and self.planned.kind == "spanned":
            self.recorder.end_step()
            self._hooks.remove()
        elif self.observing:
            self._counting.stop()
        self.planned = None
        if self._collecting:
            gc.enable()

    def tell_where(self, shapes: Callable[[int], dict[str, Any]] = lambda micro_batch: {}) -> None:
        """Tell the journal where the running step stands: call it when an exception ends the training.

        Args:
            shapes: from a micro-batch's number in the step to what it consisted of.
        """
        place = self.recorder.failed_in or self.recorder.innermost if self.observing else None
        in_model = place is not None and place.phase != "step"
        micro_batch = self.recorder.micro_batch if in_model else -1
        counted = self.planned is not None and self.planned.kind == "counted"
        self.journal.tell(
            "where",
            step=self.index,
            micro_batch=micro_batch if micro_batch >= 0 else None,
            shapes=shapes(micro_batch) if micro_batch >= 0 else None,
            memory=self._counting.facts_at_failure() if counted else None,
            stage=place.stage if place else None,
            layer=place.layer if place else None,
            phase=place.phase if place else None,
        )

    def stage(self, name: str) -> AbstractContextManager[None]:
        """A block of your own code as a stage of phase `step` (`data`, `grad_sync`, ...) in spanned steps."""
        if not self.observing:
            return nullcontext()
        return observe(self.recorder, self.recorder.id_of(Range(name, None, "step")))

    def data(self, source: Iterable[Item]) -> Iterator[Item]:
        """`source`, its waiting time being the stage `data`."""
        iterator = iter(source)
        while True:
            with self.stage("data"):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def staged(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`'s forward and backward as part of the stage `name`: a loss function as `head`, say."""
        return staged(self.recorder, function, name, part="staged") if self.observing else function

    def record(self) -> Run:
        """The run record so far."""
        from vlmprof.advice import advise

        if not isinstance(self.journal, MemoryJournal):
            raise TypeError("the record of a profile that writes a journal is assembled by its reader")
        events = self.journal.events
        ended = [*events, {"event": "done"}]
        return advise(assemble(ended))

    def table(self, width: int = 100) -> str:
        """The stage table as plain text."""
        from vlmprof.report.terminal import render_text

        return render_text(self.record(), breakdown=True, width=width)

    def save(self, path: str | Path) -> None:
        """Write the record whole to `path`."""
        from vlmprof.records.store import dump_json, write_whole

        write_whole(Path(path), dump_json(self.record()))


def count_parameters(models: list[torch.nn.Module]) -> dict[str, int]:
    """Parameters of the model: `total`, `trained`, and by top-level part; experts of all expert-parallel ranks."""
    state = sys.modules.get("megatron.core.parallel_state")
    expert_ranks = state.get_expert_model_parallel_world_size() if state and state.is_initialized() else 1
    counts: dict[str, int] = {"total": 0, "trained": 0}
    for model in models:
        for name, parameter in unwrapped(model).named_parameters():
            # Megatron marks expert parameters so, for they are reduced over other ranks than the rest.
            size = parameter.numel() * (1 if getattr(parameter, "allreduce", True) else expert_ranks)
            part = name.split(".", 1)[0]
            counts[part] = counts.get(part, 0) + size
            counts["total"] += size
            counts["trained"] += size if parameter.requires_grad else 0
    return counts
