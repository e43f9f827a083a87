"""Micro-batches of one step after the other. With a GPU, those of the next step are read while this one trains."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from vlmprof.workload.batches import MicroBatch
from vlmprof.workload.packing import Step

__all__ = ["Loader"]

THREADS = 4
Make = Callable[[Step], list[Callable[[], MicroBatch]]]


class Loader:
    """`of(number)` are the micro-batches of the `number`-th step of `steps`, on `device`.

    Args:
        make: from a step to functions that each read one micro-batch of this rank into host memory.
    """

    def __init__(self, steps: list[Step], make: Make, device: torch.device) -> None:
        self._steps, self._make, self._device = steps, make, device
        # Without a GPU a thread would take the processor from the very step that is measured.
        self._pool = ThreadPoolExecutor(THREADS, "loader") if device.type == "cuda" else None
        self._read: dict[int, list[Future[MicroBatch]]] = {}

    def of(self, number: int) -> Iterator[MicroBatch]:
        if self._pool is None:
            yield from (make() for make in self._make(self._steps[number]))
            return
        for ahead in (number, number + 1):
            if ahead < len(self._steps) and ahead not in self._read:
                self._read[ahead] = [self._pool.submit(make) for make in self._make(self._steps[ahead])]
        for future in self._read.pop(number):
            yield future.result().to(self._device)

    def settle(self) -> None:
        """Wait until nothing is being read: pinning memory beside a capture of CUDA graphs would break it."""
        wait([future for futures in self._read.values() for future in futures])

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(Exception):
            self.close()
