"""What a range is named after, and what may lie inside it."""

from dataclasses import dataclass

from vlmprof.records.stage_tree import Phase, ancestors, range_name

__all__ = ["Range"]


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
        return range_name(self.stage, self.layer, self.phase)

    def holds(self, other: "Range") -> bool:
        """Whether `other` may lie directly or deeper inside this range: same part of the model, same layer."""
        if self.stage != other.stage and self.stage not in ancestors(other.stage):
            return False
        return self.layer is None or self.layer == other.layer
