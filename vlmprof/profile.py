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
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import torch

from vlmprof.records.assemble import NOTES, assemble
from vlmprof.records.journal import Journal, MemoryJournal
from vlmprof.records.run import Run
from vlmprof.records.schedule import PlannedStep, alternate
from vlmprof.stages.clock import Clock, clock_for
from vlmprof.stages.hookpoints import HOOK_POINTS, find_places, missing_stages, unwrapped
from vlmprof.stages.hooks import observe, staged
from vlmprof.stages.memory import MemoryCounter
from vlmprof.stages.observers import NOTHING, Keep, Observer, make_observers
from vlmprof.stages.recorder import Recorder
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


@dataclass
class _Ended:
    """A step that has ended on the host, and is told once it has passed on the device."""

    began: Any
    ended: Any
    last: Any
    """Of its marks: once it has passed, all can be read."""
    seen: Callable[[], dict[str, Any]]
    facts: dict[str, Any]


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
        keep: Keep = NOTHING,
    ) -> None:
        self.journal = journal
        device = next(models[0].parameters()).device
        self.clock: Clock = clock or clock_for(device)
        self.recorder = Recorder(self.clock)
        self.places = places = find_places(models, optimizer)
        self._observers = make_observers(models, optimizer, places, self.recorder, self.clock, device, counter, keep)
        self._schedule = iter(schedule)
        self._indices = count()
        self._collecting = gc.isenabled()
        self._waiting: list[_Ended] = []
        self._capture = keep.nvtx and device.type == "cuda"
        """Whether a tool that waits for cudaProfilerStart is still to be told."""
        self._captured = False
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
            in_layers=sorted({(place.stage, place.point.part) for place in places if place.in_layer}),
            hook_points=[
                {
                    "stage": point.stage,
                    "point": point.part,
                    "found": found.count(point),
                }
                for point in HOOK_POINTS
            ],
        )
        self._begin()

    @property
    def _observer(self) -> Observer | None:
        """Of the running step."""
        return self._observers.get(self.planned.kind) if self.planned is not None else None

    @property
    def observing(self) -> bool:
        """Whether the running step has hooks in place."""
        return self._observer is not None

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
        planned, observer = self.planned, self._observer
        facts = {
            "index": self.index,
            "batch": planned.batch,
            "kind": planned.kind,
            "warmup": planned.warmup,
            "loss": loss,
            "grad_norm": grad_norm,
            "work": work,
            "ranges": [],
            "memory": None,
            **facts,
            "source": self.clock.source,
        }
        seen = observer.stop() if observer else dict
        self._waiting.append(_Ended(self._began, now, self.clock.mark() if observer else now, seen, facts))
        self._tell()
        self._begin()

    def _tell(self) -> None:
        """Tell of the steps that have passed. On a GPU the last one may still run, and nothing waits for it here."""
        while self._waiting and self.clock.passed(self._waiting[0].last):
            step = self._waiting.pop(0)
            ms = self.clock.milliseconds(step.began, step.ended)
            self.journal.tell("step", **{**step.facts, "ms": ms, **step.seen()})
            self.clock.give_back((step.began, step.ended, step.last))

    def _begin(self) -> None:
        self.planned = next(self._schedule, None)
        if self.planned is None:
            self.clock.settle()  # a fault of the last step shows here, and is raised
            self._tell()
            self.close()
            return
        self.index = next(self._indices)
        gc.collect()
        gc.disable()
        self.journal.tell("begin", index=self.index, kind=self.planned.kind)
        observer = self._observer
        if observer:
            observer.start()
        if self._capture and not self.planned.warmup:
            self._capture, self._captured = False, True
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        self._began = self.clock.mark()

    def close(self) -> None:
        """Leave the model as it was found. The step that is running is dropped."""
        observer, self.planned = self._observer, None
        try:
            if observer:
                observer.stop()
            self.clock.settle()
            self._tell()
            if self._captured:
                self._captured = False
                torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
        except (RuntimeError, OSError):  # after a failure that is told elsewhere: its last steps cannot be read
            self._waiting.clear()
        finally:
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
        self.journal.tell(
            "where",
            step=self.index,
            micro_batch=micro_batch if micro_batch >= 0 else None,
            shapes=shapes(micro_batch) if micro_batch >= 0 else None,
            memory=self._held_at_failure(),
            stage=place.stage if place else None,
            layer=place.layer if place else None,
            phase=place.phase if place else None,
        )

    def _held_at_failure(self) -> dict[str, Any] | None:
        counting: Any = self._observers.get("counted")
        if counting is None or self.planned is None:
            return None
        try:
            facts: dict[str, Any] | None = counting.facts_at_failure(self.planned.kind == "counted")
        except RuntimeError:  # a device that has failed tells nothing more
            return None
        return facts

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
