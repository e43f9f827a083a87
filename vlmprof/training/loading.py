"""Micro-batches of one step after the other, by PyTorch's loader: with a GPU, processes of its own read ahead."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from vlmprof.lifeline import die_with_parent
from vlmprof.workload.batches import MicroBatch

__all__ = ["Loader"]

PROCESSES = 4
"""That read pictures while a GPU trains. Without one they would take the processor from the step that is measured."""


class MicroBatches(Dataset[MicroBatch]):
    """The micro-batches of a run in the order of training. `read` reads the `number`-th of the `step`-th step."""

    def __init__(self, steps: int, each: int, read: Callable[[int, int], MicroBatch]) -> None:
        self._steps, self._each, self._read = steps, each, read

    def __len__(self) -> int:
        return self._steps * self._each

    def __getitem__(self, index: int) -> MicroBatch:
        return self._read(*divmod(index, self._each))


class Loader:
    """`next_step()` gives the micro-batches of one step after the other, on `device`.

    Args:
        steps: of the run.
        each: micro-batches a step.
        read: see `MicroBatches`; called in other processes where there are any.
        pin: into memory that a GPU copies from on its own; not beside a capture of CUDA graphs, which that would break.
    """

    def __init__(
        self,
        steps: int,
        each: int,
        read: Callable[[int, int], MicroBatch],
        device: torch.device,
        processes: int | None = None,
        pin: bool = True,
    ) -> None:
        on_gpu = device.type == "cuda"
        self._each, self._device = each, device
        self._batches = iter(
            DataLoader(
                MicroBatches(steps, each, read),
                batch_size=None,
                collate_fn=as_it_is,
                num_workers=(PROCESSES if on_gpu else 0) if processes is None else processes,
                pin_memory=on_gpu and pin,
                worker_init_fn=as_ours,
            )
        )

    def next_step(self) -> Iterator[MicroBatch]:
        for batch in islice(self._batches, self._each):
            yield batch if self._device.type == "cpu" else batch.to(self._device)


def as_ours(_: int) -> None:
    """A process that reads ends when the one that trains does."""
    die_with_parent()


def as_it_is(batch: Any) -> Any:
    """No collation: a micro-batch is laid out where it is read."""
    return batch
