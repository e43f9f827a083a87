"""Where the ranges of a step show besides the record: NVTX, PyTorch's profiler, the allocator's history.

A sink has one name a range id, and `push(names[id])` and `pop()`, called at every range edge.
"""

from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

import torch

from vlmprof.stages.tree import Range

__all__ = ["MemoryTags", "NvtxRanges", "ProfilerRanges", "Sink"]

DOMAIN = "vlmprof"


class Sink(Protocol):
    names: list[Any]
    """By range id."""

    def register(self, range_: Range) -> None:
        """Give the next range id its name."""
        ...

    def push(self, name: Any) -> None: ...

    def pop(self) -> None: ...


class NvtxRanges:
    """NVTX ranges in the domain `vlmprof`. Without a tool attached they cost well under a microsecond.

    Names are registered once and kept alive as long as this object: a name that is collected while a tool still refers
    to it crashes that tool under CUDA graphs. NVTX nests by thread, and on a GPU backward runs in a thread of its own:
    a range that another thread closes stays open until its own thread comes by again.
    """

    def __init__(self) -> None:
        import nvtx

        self._domain = nvtx.get_domain(DOMAIN)
        self._push, self._pop = self._domain.push_range, self._domain.pop_range
        self.names: list[Any] = []
        self._threads: list[int] = []
        self._owed: dict[int, int] = {}

    def register(self, range_: Range) -> None:
        self.names.append(self._domain.get_event_attributes(message=range_.name))

    def push(self, name: Any) -> None:
        thread = get_ident()
        if self._owed:
            self._settle(thread)
        self._threads.append(thread)
        self._push(name)

    def pop(self) -> None:
        thread = self._threads.pop()
        if thread == get_ident():
            if self._owed:
                self._settle(thread)
            self._pop()
        else:
            self._owed[thread] = self._owed.get(thread, 0) + 1

    def _settle(self, thread: int) -> None:
        for _ in range(self._owed.pop(thread, 0)):
            self._pop()


class ProfilerRanges:
    """What `torch.profiler.record_function` does, a range: for traced steps."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._enter: Any = torch.ops.profiler._record_function_enter_new.default
        self._leave: Any = torch.ops.profiler._record_function_exit._RecordFunction
        self._open: list[Any] = []

    def register(self, range_: Range) -> None:
        self.names.append(range_.name)

    def push(self, name: str) -> None:
        self._open.append(self._enter(name, None))

    def pop(self) -> None:
        self._leave(self._open.pop())


class MemoryTags:
    """Has the CUDA allocator write the innermost stage beside each allocation and release."""

    SEPARATOR = "|"

    def __init__(self) -> None:
        self.names: list[str] = []
        self._open: list[str] = []
        self._tell: Callable[[str], None] | None = getattr(torch._C, "_cuda_setMemoryMetadata", None)
        """Since torch 2.10; without it nobody knows whose an allocation is."""
        self.micro_batch: Callable[[], int] = lambda: -1

    def register(self, range_: Range) -> None:
        stage = "other" if range_.stage == "step" else range_.stage
        self.names.append(f"{stage}{self.SEPARATOR}{range_.phase}{self.SEPARATOR}")

    def push(self, name: str) -> None:
        tag = f"{name}{self.micro_batch()}"
        self._open.append(tag)
        if self._tell:
            self._tell(tag)

    def pop(self) -> None:
        self._open.pop()
        if self._tell:
            self._tell(self._open[-1] if self._open else "")

    @property
    def known(self) -> bool:
        """Whether this torch writes tags down."""
        return self._tell is not None

    @classmethod
    def read(cls, tag: str) -> tuple[str, str, int] | None:
        """(stage, phase, micro-batch) of a tag; None of anybody else's."""
        stage, _, rest = tag.partition(cls.SEPARATOR)
        phase, _, number = rest.partition(cls.SEPARATOR)
        return (stage, phase, int(number)) if number.lstrip("-").isdecimal() else None
