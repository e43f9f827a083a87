"""Wraps what `hookpoints` found, from outside, while a step is observed; afterwards the model is as it was.

Backward marks rest on one fact: autograd runs nodes in descending order of their creation, as soon as they can run. So
the backward of a stage is the run of nodes that its forward created, and it lies between two places:

- its begin: a hook on the autograd node of the stage's output;
- its end: where the node runs that was created just before the stage. Often that is the last node of another stage,
  whose own begin then tells both. Else a plain view of each input, made first thing inside, carries a hook. (A custom
  identity function there breaks in-place operations on it, and a hook on the input itself fires only when the input's
  producer runs.)
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from vlmprof.stages.hookpoints import Place
from vlmprof.stages.recorder import Recorder, in_backward
from vlmprof.stages.tree import Range

__all__ = ["Hooks", "observe", "staged", "timed"]

Function = Callable[..., Any]
next_node = torch._C._autograd._get_sequence_nr
"""The sequence number that the next autograd node of this thread will get."""


class Hooks:
    """The wrappers of a set of places. `install` and `remove` may be called for every step."""

    def __init__(
        self,
        recorder: Recorder,
        places: Iterable[Place],
        also: Callable[[Place, Function], Function] = lambda place, function: function,
    ) -> None:
        self.recorder = recorder
        self.places = list(places)
        self.also = also
        """Wraps a place's function once more, innermost: to look at what it returns."""
        self._undo: list[tuple[Any, str, Any]] = []
        self._made: dict[int, tuple[Function, Function]] = {}
        """By place: what it was when it was last wrapped, and the wrapper, good as long as it is the same."""

    def install(self) -> None:
        for number, place in enumerate(self.places):
            original = getattr(place.owner, place.attribute)
            made = self._made.get(number)
            if made is None or made[0] != original:
                made = self._made[number] = original, self._wrap(self.also(place, original), place)
            # An attribute of the instance itself is put back; one of the class shows again when ours is deleted.
            own = vars(place.owner).get(place.attribute) if hasattr(place.owner, "__dict__") else None
            self._undo.append((place.owner, place.attribute, own))
            object.__setattr__(place.owner, place.attribute, made[1])

    def remove(self) -> None:
        while self._undo:
            owner, attribute, own = self._undo.pop()
            if own is None:
                object.__delattr__(owner, attribute)
            else:
                object.__setattr__(owner, attribute, own)

    def _wrap(self, function: Function, place: Place) -> Function:
        point = place.point
        if not point.in_model:
            return timed(self.recorder, function, Range(place.stage, None, "step"))
        if point.rerun_only:
            return _rerun(self.recorder, function, Range(place.stage, place.layer, "recompute"))
        wrapped = staged(self.recorder, function, place.stage, place.layer, point.part, point.marks_backward)
        return _counting(self.recorder, wrapped) if point.counts_micro_batches else wrapped


def timed(recorder: Recorder, function: Function, range_: Range) -> Function:
    """`function` inside a range, balanced also when an exception passes."""
    range_id = recorder.id_of(range_)

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with observe(recorder, range_id):
            return function(*args, **kwargs)

    return inside


@contextmanager
def observe(recorder: Recorder, range_id: int) -> Iterator[None]:
    """A range around a block of code."""
    recorder.forward_begins(range_id)
    depth = recorder.depth - 1
    try:
        yield
    except BaseException:
        recorder.note_failure()
        raise
    finally:
        recorder.unwind(depth)


def _rerun(recorder: Recorder, function: Function, range_: Range) -> Function:
    inside = timed(recorder, function, range_)

    @functools.wraps(function)
    def when_rerun(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if in_backward() == -1 else inside(*args, **kwargs)

    return when_rerun


def _counting(recorder: Recorder, function: Function) -> Function:
    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        recorder.micro_batch += 1
        return function(*args, **kwargs)

    return counted


def staged(
    recorder: Recorder,
    function: Function,
    stage: str,
    layer: int | None = None,
    part: str = "",
    marks_backward: bool = True,
) -> Function:
    """A stage of the model: its forward or re-run as a range, and marks that make its backward one."""
    forward = recorder.id_of(Range(stage, layer, "forward", part))
    rerun = recorder.id_of(Range(stage, layer, "recompute", part))
    backward = recorder.id_of(Range(stage, layer, "backward", part))

    def end(_: Any) -> None:
        recorder.backward_ends(backward)

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        recorder.forward_begins(forward if in_backward() == -1 else rerun)
        depth = recorder.depth - 1
        try:
            if not marks_backward or not torch.is_grad_enabled():
                return function(*args, **kwargs)
            if not recorder.follows_a_stage(next_node()):
                args = tuple([_marked(value, end) if isinstance(value, Tensor) else value for value in args])
                for name, value in kwargs.items():
                    if isinstance(value, Tensor):
                        kwargs[name] = _marked(value, end)
            first_own = next_node()
            output = function(*args, **kwargs)
            for value in output if isinstance(output, (tuple, list)) else (output,):
                node = value.grad_fn if isinstance(value, Tensor) else None
                # What is handed through untouched was not computed here.
                if node is not None and node._sequence_nr() >= first_own:
                    recorder.mark_begin(node, backward)
            return output
        except BaseException:
            recorder.note_failure()
            raise
        finally:
            recorder.unwind(depth)

    return inside


def _marked(value: Tensor, end: Callable[[Any], None]) -> Tensor:
    """`value`, or a view of it whose autograd node tells that the stage's backward is over."""
    # `is_leaf` first: it is ten times as fast, and every parameter is one.
    if not value.requires_grad or (value.is_leaf and isinstance(value, torch.nn.Parameter)):
        return value
    view = value[...]
    view.grad_fn.register_prehook(end)  # type: ignore[union-attr]  # a view of what requires grad has one
    return view
