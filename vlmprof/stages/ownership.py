"""Whose a parameter is: the stage of the innermost hooked module that holds it; and its gradient and state."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vlmprof.stages.hookpoints import Place, unwrapped

__all__ = ["lasting_tensors", "parameter_stages"]


def parameter_stages(models: list[torch.nn.Module], places: list[Place]) -> dict[torch.nn.Parameter, str]:
    """Parameter -> stage. A parameter used twice (tied embeddings) belongs to its first stage."""
    stage_of = {id(place.owner): place.stage for place in places if place.attribute == "forward"}
    owners: dict[torch.nn.Parameter, str] = {}

    def visit(module: torch.nn.Module, stage: str) -> None:
        stage = stage_of.get(id(module), stage)
        for parameter in module.parameters(recurse=False):
            owners.setdefault(parameter, stage)
        for child in module.children():
            visit(child, stage)

    for model in models:
        visit(unwrapped(model), "other")
    return owners


def lasting_tensors(
    models: list[torch.nn.Module], optimizer: Any, owners: dict[torch.nn.Parameter, str]
) -> Iterator[tuple[Tensor, str, str, int]]:
    """(tensor, stage, category, its bytes) of every parameter, gradient and optimizer state that exists now.

    Several parameters may share one storage (Megatron's gradient buffers): the bytes are the tensor's own.
    """
    seen: set[tuple[int, Any]] = set()
    for tensor, stage, category in _lasting(owners, optimizer):
        place = (tensor.untyped_storage()._cdata, tensor.storage_offset())
        if place not in seen:  # a gradient goes by two names: main_grad, and grad while the optimizer runs
            seen.add(place)
            yield tensor, stage, category, tensor.numel() * tensor.element_size()


def _lasting(owners: dict[torch.nn.Parameter, str], optimizer: Any) -> Iterator[tuple[Tensor, str, str]]:
    stage_of: dict[Any, str] = dict(owners)
    for parameter, stage in owners.items():
        yield parameter, stage, "parameters"
        for gradient in (getattr(parameter, "main_grad", None), parameter.grad):
            if isinstance(gradient, Tensor):
                yield gradient, stage, "gradients"
        master = getattr(parameter, "main_param", None)
        if isinstance(master, Tensor):  # the fp32 copy of a bf16 parameter
            stage_of[master] = stage
            yield master, stage, "optimizer_state"
    for inner in _torch_optimizers(optimizer):
        for held, state in inner.state.items():
            for value in state.values():
                if isinstance(value, Tensor):
                    yield value, stage_of.get(held, "other"), "optimizer_state"


def _torch_optimizers(optimizer: Any) -> Iterator[torch.optim.Optimizer]:
    """The torch optimizers inside Megatron's (chained, mixed-precision) ones."""
    if isinstance(optimizer, torch.optim.Optimizer):
        yield optimizer
        return
    chained = getattr(optimizer, "chained_optimizers", None)
    if chained is not None:
        for one in chained:
            yield from _torch_optimizers(one)
        return
    inner = getattr(optimizer, "optimizer", None)
    if inner is not None:
        yield from _torch_optimizers(inner)
