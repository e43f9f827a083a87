"""Bytes by stage, counted tensor by tensor: a dispatch mode that follows storages from birth to death.

A storage belongs to the stage and phase that were running when it was made; parameters, gradients and optimizer state
belong to the stage whose module they serve. What happens is only written down here; `timeline` makes figures of it.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from vlmprof.sizes import show_bytes
from vlmprof.stages.timeline import Owner

__all__ = ["MemoryCounter"]

BUILDING: Owner = ("building", "step", "tensors")


class MemoryCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered. Storages stay followed between entries, so what one step leaves is known in the next.

    Args:
        limit: bytes above which an allocation raises `torch.OutOfMemoryError`, as an allocator's would; 0: none.
    """

    def __init__(self, limit: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit = limit
        self.live = 0
        """Bytes of all followed storages."""
        self.where: Callable[[], tuple[str, str]] = lambda: BUILDING[:2]
        """(stage, phase) running now: new storages are theirs."""
        self.events: list[tuple[Owner, int, tuple[str, str]]] = []
        """(owner, bytes gained or lost, where it happened)"""
        self.saved: dict[tuple[int, str, str], int] = {}
        """(micro-batch, stage, phase) -> bytes it was the first to save for backward."""
        self.sent: dict[str, int] = {}
        """Stage -> bytes handed to collectives of more than one rank."""
        self.micro_batch: Callable[[], int] = lambda: -1
        self.step = 0
        self._known: dict[int, _Storage] = {}
        self._saved_hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> "MemoryCounter":
        counter, plain = self, self._resize

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            done = plain(storage, size)
            counter._resized(storage)
            return done

        # Recomputation that discards outputs empties storages behind autograd's back: no operator tells.
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
        self._saved_hooks.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._saved_hooks.__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._follow(result)
        elif result is not None:
            for value in tree_iter(result):
                if isinstance(value, Tensor):
                    self._follow(value)
        if func.namespace == "c10d":
            self._communicated(args)
        return result

    def adopt(self, tensors: Iterable[tuple[Tensor, str, str, int]]) -> None:
        """Say whose the lasting tensors are: (tensor, stage, category, bytes) of parameters, gradients and optimizer
        state. One storage may serve many, as Megatron's gradient buffers do; what is nobody's there is `other`'s."""
        shares: dict[int, dict[Owner, int]] = {}
        storages: dict[int, torch.UntypedStorage] = {}
        for tensor, stage, category, size in tensors:
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage
            owned = shares.setdefault(storage._cdata, {})
            owner: Owner = (stage, "step", category)
            owned[owner] = owned.get(owner, 0) + size
        for key, owned in shares.items():
            size = storages[key].nbytes()
            rest = size - sum(owned.values())
            if rest:
                category = next(iter(owned))[2]
                owned["other", "step", category] = owned.get(("other", "step", category), 0) + rest
            known = self._known.get(key)
            if known is None:
                self._add(storages[key], owned)
            elif known.shares != owned:
                self._move(known, owned)

    def begin_step(self) -> None:
        """Forget what was written down so far; what lives stays known."""
        self.step += 1
        self.events.clear()
        self.saved.clear()
        self.sent.clear()

    def held(self) -> dict[Owner, int]:
        """Bytes that live now, by owner."""
        totals: dict[Owner, int] = {}
        for known in self._known.values():
            for owner, size in known.shares.items():
                totals[owner] = totals.get(owner, 0) + size
        return totals

    def saved_now(self) -> dict[str, int]:
        """Stage -> bytes saved for backward that live now."""
        totals: dict[str, int] = {}
        for known in self._known.values():
            if known.saved_in is not None and known.saved_in[0] == self.step:
                totals[known.saved_by] = totals.get(known.saved_by, 0) + known.size
        return totals

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is None:
            self._add(storage, {(*self.where(), "tensors"): storage.nbytes()})
        elif known.size != storage.nbytes():
            self._resized(storage)

    def _add(self, storage: torch.UntypedStorage, shares: dict[Owner, int]) -> None:
        size, key = storage.nbytes(), storage._cdata
        if self.limit and self.live + size > self.limit:
            raise torch.OutOfMemoryError(
                f"Tried to allocate {show_bytes(size)}, but {show_bytes(self.live)} of the "
                f"{show_bytes(self.limit)} of --memory-limit are in use"
            )
        known = self._known[key] = _Storage(weakref.ref(storage, lambda _: self._died(key)))
        self._move(known, shares)

    def _died(self, key: int) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._move(known, {})

    def _resized(self, storage: torch.UntypedStorage) -> None:
        known = self._known.get(storage._cdata)
        if known is not None and known.size != storage.nbytes():
            self._move(known, {next(iter(known.shares)): storage.nbytes()})

    def _move(self, known: "_Storage", shares: dict[Owner, int]) -> None:
        """Give a storage its new shares, and write down what each owner gains or loses."""
        where = self.where()
        for owner, size in known.shares.items():
            self.events.append((owner, -size, where))
        for owner, size in shares.items():
            self.events.append((owner, size, where))
        gained = sum(shares.values())
        self.live += gained - known.size
        known.shares, known.size = shares, gained

    def _pack(self, tensor: Tensor) -> Tensor:
        """A tensor is saved for backward: charge its storage to the first stage that saves it, unless it is lasting."""
        self._follow(tensor)
        known = self._known[tensor.untyped_storage()._cdata]
        category = next(iter(known.shares))[2]
        micro_batch = (self.step, self.micro_batch())
        # What is cached and saved again by each micro-batch (rotary angles) counts in each.
        if known.saved_in != micro_batch and category == "tensors" and not isinstance(tensor, torch.nn.Parameter):
            stage, phase = self.where()
            known.saved_in, known.saved_by = micro_batch, stage
            key = (micro_batch[1], stage, phase)
            self.saved[key] = self.saved.get(key, 0) + known.size
        return tensor

    def _communicated(self, args: Any) -> None:
        """A collective was called: charge the bytes of its input tensors to the stage that runs."""
        groups = [value for value in args if isinstance(value, torch.ScriptObject)]
        if groups and torch.distributed.ProcessGroup.unbox(groups[0]).size() > 1:
            inputs = args[1] if len(args) > 1 and not isinstance(args[1], torch.ScriptObject) else args[0]
            size = sum(t.numel() * t.element_size() for t in tree_iter(inputs) if isinstance(t, Tensor))
            stage = self.where()[0]
            self.sent[stage] = self.sent.get(stage, 0) + size


class _Storage:
    """What is known of one living storage. The weak reference tells its death."""

    __slots__ = ("reference", "saved_by", "saved_in", "shares", "size")

    def __init__(self, reference: "weakref.ref[torch.UntypedStorage]") -> None:
        self.reference = reference
        self.shares: dict[Owner, int] = {}
        """Owner -> bytes"""
        self.size = 0
        self.saved_in: tuple[int, int] | None = None
        """(step, micro-batch) that last saved it for backward, and the stage that was the first of it to do so."""
        self.saved_by = ""
