"""How the experts are loaded: tokens per expert as each router says, in counted steps."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from vlmprof.stages.hookpoints import Place
from vlmprof.stages.recorder import in_backward

__all__ = ["RoutingCounter"]


class RoutingCounter:
    """Tokens per expert by layer: of the step so far, and of its last micro-batch (what a failure wants to know)."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.last: dict[int, list[int]] = {}
        self.arrived = 0
        """Tokens that this rank's own experts worked on."""
        self.dropped = 0
        """Choices of a token that found no room (expert capacity)."""

    def reset(self) -> None:
        self.tokens, self.last, self.dropped, self.arrived = {}, {}, 0, 0

    def wrap(self, place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
        """Count what a router gives back; other places pass through."""
        if place.point.owner == "moe" and place.stage == "decoder.experts":
            return self._counting_tokens(function)
        if place.stage != "decoder.router" or place.layer is None:
            return function
        layer, router = place.layer, place.owner

        @functools.wraps(function)
        def counting(*args: Any, **kwargs: Any) -> Any:
            output = function(*args, **kwargs)
            if in_backward() == -1:
                self._count(layer, router, output)
            return output

        return counting

    def _counting_tokens(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`experts(hidden [tokens, h], ...)`: what arrives at this rank's own experts."""

        @functools.wraps(function)
        def counting(hidden: Any, *args: Any, **kwargs: Any) -> Any:
            if in_backward() == -1 and isinstance(hidden, torch.Tensor):
                self.arrived += hidden.shape[0]
            return function(hidden, *args, **kwargs)

        return counting

    def _count(self, layer: int, router: Any, output: Any) -> None:
        """`output`: (probabilities, bool routing map [tokens, experts]), as Megatron's routers return since 0.11."""
        routing_map = output[1]
        if not isinstance(routing_map, torch.Tensor) or routing_map.dim() != 2:
            return
        with torch.no_grad(), _disable_current_modes():
            counts = routing_map.to(torch.bool).sum(0).tolist()
        self.last[layer] = counts
        before = self.tokens.get(layer, [0] * len(counts))
        self.tokens[layer] = [one + other for one, other in zip(before, counts, strict=True)]
        self.dropped += routing_map.shape[0] * int(getattr(router, "topk", 0)) - sum(counts)
