"""The stage tree and the names of ranges. No torch here: the report reads it too."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["PHASES", "STAGES", "Phase", "Range", "ancestors"]

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


@dataclass(frozen=True)
class Range:
    """What a range is named after: one stage, its layer where it has one, and a phase."""

    stage: str
    layer: int | None
    phase: Phase
    part: str = ""
    """Which of the stage's places this is, since they may nest: not part of the name."""

    @property
    def name(self) -> str:
        """E.g. `decoder.3.router/forward`, `projector/backward`."""
        path = self.stage
        if self.layer is not None:
            head, _, rest = self.stage.partition(".")
            path = f"{head}.{self.layer}" + (f".{rest}" if rest else "")
        return f"{path}/{self.phase}"

    def holds(self, other: "Range") -> bool:
        """Whether `other` may lie directly or deeper inside this range: same part of the model, same layer."""
        if self.stage != other.stage and self.stage not in ancestors(other.stage):
            return False
        return self.layer is None or self.layer == other.layer
