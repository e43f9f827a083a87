"""Where a NaN or Inf comes from: the first stage whose output has one in forward, the last whose gradients have one."""

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vlmprof.records.stage_tree import STAGES
from vlmprof.stages.clock import WallClock
from vlmprof.stages.hookpoints import Place, unwrapped
from vlmprof.stages.hooks import Hooks
from vlmprof.stages.ownership import parameter_stages
from vlmprof.stages.recorder import Recorder

__all__ = ["NonFiniteError", "first_in_forward", "last_in_gradients"]

Where = tuple[str, int | None]
"""(stage, layer)"""


class NonFiniteError(ArithmeticError):
    """The loss or a gradient is NaN or Inf. `outcome` holds the fields of an outcome that are known.

    `shared`: every rank sees it (a gradient norm), so that it may be another rank's fault.
    """

    def __init__(self, message: str, shared: bool = False, **outcome: Any) -> None:
        super().__init__(message)
        self.shared = shared
        self.outcome = {"class": "nan", "message": message, **outcome}


def first_in_forward(places: list[Place], call: Callable[[], Any]) -> Where | None:
    """Run `call` (a forward of the model, which is given back unchanged) and say which stage first gave a value that
    is not finite. Stages that only hold such a stage end later, so they do not come first."""
    found: list[Where] = []

    def look(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def looking(*args: Any, **kwargs: Any) -> Any:
            output = function(*args, **kwargs)
            if not found and any(map(_bad, output if isinstance(output, tuple | list) else (output,))):
                found.append((place.stage, place.layer))
            return output

        return looking

    recorder = Recorder(WallClock())
    hooks = Hooks(recorder, [place for place in places if place.point.in_model], look)
    hooks.install()
    recorder.begin_step()
    try:
        with torch.no_grad():
            call()
    finally:
        recorder.end_step()
        hooks.remove()
    return found[0] if found else None


def _bad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all())


def last_in_gradients(models: list[torch.nn.Module], places: list[Place]) -> Where | None:
    """The stage nearest the loss whose gradients are not all finite: backward spreads them from there to the input."""
    stages = parameter_stages(models, places)
    bad: list[Where] = []
    for model in models:
        for name, parameter in unwrapped(model).named_parameters():
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is not None and _bad(gradient):
                layer = re.search(r"\.layers\.(\d+)\.", name)
                bad.append((stages.get(parameter, "other"), int(layer[1]) if layer else None))
    tops = ("encoder", "projector", "embedding", "decoder", "head")

    def depth(where: Where) -> tuple[int, int, int]:
        stage, layer = where
        top = stage.split(".")[0]
        last = stage == "decoder.norms" and layer is None  # the final norm
        return (tops.index(top) if top in tops else -1, 10**6 if last else (layer or 0), STAGES.index(stage))

    return max(bad, key=depth, default=None)
