"""The stage tree and its phases: the names that records, ranges and reports share."""

from typing import Literal

__all__ = ["PHASES", "STAGES", "Phase", "ancestors", "range_name"]

Phase = Literal["forward", "backward", "recompute", "step"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "recompute", "step")

STAGES: tuple[str, ...] = (
    "step",
    "data",
    "encoder",
    "encoder.attention",
    "encoder.mlp",
    "projector",
    "embedding",
    "decoder",
    "decoder.attention",
    "decoder.router",
    "decoder.dispatcher",
    "decoder.dispatcher.dispatch",
    "decoder.dispatcher.combine",
    "decoder.experts",
    "decoder.shared_experts",
    "decoder.mlp",
    "decoder.norms",
    "head",
    "grad_sync",
    "optimizer",
    "pipeline_wait",
    "other",
)
"""Depth first, as shown; a dot says 'child of'. Everything without a dot is a child of `step`."""


def ancestors(stage: str) -> tuple[str, ...]:
    """The stages above `stage`, nearest first, without `step`: a.b.c -> (a.b, a)."""
    parts = stage.split(".")
    return tuple(".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))


def range_name(stage: str, layer: int | None, phase: str) -> str:
    """E.g. `decoder.3.router/forward`, `projector/backward`."""
    head, _, rest = stage.partition(".")
    path = stage if layer is None else f"{head}.{layer}" + (f".{rest}" if rest else "")
    return f"{path}/{phase}"
