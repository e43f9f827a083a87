"""The recorder: one stack of open ranges per step, the marks at their edges, and their NVTX twins, always balanced.

Forward ranges are entered and left by wrappers. Backward ranges begin and end by gradient hooks, and an end may never
be told (no gradient reaches the stage's input): such a range is closed by whatever shows that it is over: a range
that cannot lie inside it, a forward range, or the end of the backward pass.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable

from vlmprof.stages.attribution import LEAVE
from vlmprof.stages.clock import Clock
from vlmprof.stages.ranges import NvtxRanges, Sink
from vlmprof.stages.tree import Range

__all__ = ["Recorder", "in_backward"]

in_backward = torch._C._current_graph_task_id
"""Id of the backward pass that this thread is in; -1 outside one. What torch.utils.checkpoint asks, too."""


class Recorder:
    """Records the ranges of one step at a time. Ids are indices into `ranges`."""

    def __init__(self, clock: Clock) -> None:
        self.ranges: list[Range] = []
        self.events: list[tuple[Any, int]] = []
        self.micro_batch = -1
        """Of the model's last forward in this step; -1 before it."""
        self.failed_in: Range | None = None
        """The innermost open range when an exception first passed through."""
        self._clock, self._nvtx = clock, NvtxRanges()
        self._use(clock, self._nvtx)
        self._ids: dict[Range, int] = {}
        self._stack: list[int] = []
        self._holds: dict[tuple[int, int], bool] = {}
        self._within: dict[int, frozenset[int]] = {}
        """Forward range -> those that were open when it was first entered."""
        self._outside = self.id_of(Range("other", None, "backward"))
        self._step = self.id_of(Range("step", None, "step"))
        self._marked_node, self._marked_begins = -1, [-1]
        """Number of the newest autograd node that tells begins, and whose."""
        self._backward_base: int | None = None
        """Depth of the stack just inside the open backward pass."""

    def id_of(self, range_: Range) -> int:
        """The id of a range, registering its name at the first call."""
        known = self._ids.get(range_)
        if known is None:
            known = self._ids[range_] = len(self.ranges)
            self.ranges.append(range_)
            self._sink.register(range_)
        return known

    def _use(self, clock: Clock, sink: Sink) -> None:
        """Bound once a step: these run at every range edge inside it."""
        self._sink = sink
        self._mark, self._push, self._pop, self._names = clock.mark, sink.push, sink.pop, sink.names
        for range_ in self.ranges[len(sink.names) :]:
            sink.register(range_)

    @property
    def depth(self) -> int:
        return len(self._stack)

    @property
    def innermost(self) -> Range | None:
        return self.ranges[self._stack[-1]] if self._stack else None

    def begin_step(self, clock: Clock | None = None, sink: Sink | None = None) -> None:
        """Open the step's range. Its edges are marked by `clock` and shown to `sink`: the recorder's own clock and NVTX
        unless given."""
        self._use(clock or self._clock, sink or self._nvtx)
        self.events = []
        self.micro_batch = -1
        self.enter(self._step)

    def end_step(self) -> list[tuple[Any, int]]:
        """Close everything that is open and hand over the step's events."""
        self.unwind(0)
        events, self.events = self.events, []
        return events

    def enter(self, range_id: int) -> None:
        self._push(self._names[range_id])
        self._stack.append(range_id)
        self.events.append((self._mark(), range_id))

    def forward_begins(self, range_id: int) -> None:
        """Enter a range from a wrapper. Outside a backward pass none of its ranges can still be open."""
        if self._backward_base is not None and in_backward() == -1:
            self.close_backward()
        if range_id not in self._within:
            self._within[range_id] = frozenset(self._stack)
        self.enter(range_id)

    def unwind(self, depth: int) -> None:
        """Close the innermost ranges until `depth` are open."""
        stack = self._stack
        mark = self._mark() if len(stack) > depth else None
        while len(stack) > depth:
            self.events.append((mark, LEAVE))
            stack.pop()
            self._pop()
        if self._backward_base is not None and self._backward_base > depth:
            self._backward_base = None

    def note_failure(self) -> None:
        """Remember where an exception passes through, the first time."""
        if self.failed_in is None and self._stack:
            self.failed_in = self.ranges[self._stack[-1]]

    def follows_a_stage(self, next_node: int) -> bool:
        """Whether the newest autograd node is the marked last node of a stage, so that the begin of that stage's
        backward is the end of whatever comes next in forward."""
        return self._marked_node == next_node - 1

    def mark_begin(self, node: Any, range_id: int) -> None:
        """Have `range_id` begin when an autograd node runs. A stage that ends with its last child shares that child's
        node and comes to it later, but must begin first: so a node has one list, walked from its end."""
        number = node._sequence_nr()
        if number == self._marked_node:
            if range_id not in self._marked_begins:
                self._marked_begins.append(range_id)
            return
        begins = [range_id]
        node.register_prehook(partial(self._begin_all, begins))
        if number > self._marked_node:
            self._marked_node, self._marked_begins = number, begins

    def _begin_all(self, begins: list[int], _: Any) -> None:
        for range_id in reversed(begins):
            self.backward_begins(range_id)

    def backward_begins(self, range_id: int) -> None:
        """A stage's output got its gradient: close the backward ranges that cannot hold this one, then open it."""
        if self._backward_base is None:
            self.enter(self._outside)
            self._backward_base = len(self._stack)
            Variable._execution_engine.queue_callback(self.close_backward)
        depth = len(self._stack)
        while depth > self._backward_base:
            above = self._stack[depth - 1]
            if above == range_id:  # another output of a stage that is open already
                self.unwind(depth)
                return
            if self._may_hold(above, range_id):
                break
            depth -= 1
        self.unwind(depth)
        self.enter(range_id)

    def backward_ends(self, range_id: int) -> None:
        """A stage's input got its gradient: close the stage, and with it whatever was left open inside."""
        for depth in range(len(self._stack), self._backward_base or 0, -1):
            if self._stack[depth - 1] == range_id:
                self.unwind(depth - 1)
                return
            if self.ranges[self._stack[depth - 1]].phase != "backward":
                return

    def close_backward(self) -> None:
        """The backward pass is over: close what nothing else has closed."""
        if self._backward_base is not None:
            self.unwind(self._backward_base - 1)

    def _may_hold(self, above: int, below: int) -> bool:
        """Whether an open range stays open when a backward range begins. A forward re-run always does: its own
        wrapper closes it. Of two places of one stage, the one does in whose forward the other lay."""
        fits = self._holds.get((above, below))
        if fits is None:
            outer, inner = self.ranges[above], self.ranges[below]
            if outer.name == inner.name:
                fits = self._forward_of(outer) in self._within.get(self._forward_of(inner), frozenset())
            else:
                fits = outer.phase != "backward" or outer.holds(inner)
            self._holds[above, below] = fits
        return fits

    def _forward_of(self, range_: Range) -> int:
        return self.id_of(replace(range_, phase="forward"))
