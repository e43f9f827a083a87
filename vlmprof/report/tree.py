"""Tree lines in front of a stage's name."""

from collections.abc import Iterable

__all__ = ["branch", "depth_and_name"]


def branch(stage: str, seen: Iterable[str]) -> str:
    """The stage's last name behind its tree lines."""
    if stage == "step":
        return "step"
    parts = stage.split(".")
    lines = ""
    for depth in range(len(parts)):
        path = ".".join(parts[: depth + 1])
        parent = path.rpartition(".")[0]
        siblings = [other for other in seen if other != "step" and other.rpartition(".")[0] == parent]
        last = bool(siblings) and siblings[-1] == path
        if depth == len(parts) - 1:
            lines += "└─ " if last else "├─ "
        else:
            lines += "   " if last else "│  "
    return lines + parts[-1]


def depth_and_name(stage: str) -> tuple[int, str]:
    """How deep below the step's children a stage lies, and its last name: decoder.router is (2, router)."""
    if stage == "step":
        return 0, stage
    parts = stage.split(".")
    return len(parts), parts[-1]
