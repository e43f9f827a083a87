"""What a rule is: figures of a record, or None, and the sentence that they fill."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from vlmprof.records.run import Run
from vlmprof.sizes import show_bytes

__all__ = ["Figures", "Rule", "Shown"]

Figures = dict[str, float | str]


class Rule(NamedTuple):
    name: str
    level: Literal["info", "warning"]
    figures: Callable[[Run], Figures | None]
    text: str
    """With `{name}` for each figure; shares are formatted by `:.0%`."""


class Shown:
    """A figure in a text: `{x:.0%}` as usual, `{x:bytes}` with a binary unit."""

    def __init__(self, value: float | str) -> None:
        self.value = value

    def __format__(self, form: str) -> str:
        return show_bytes(float(self.value)) if form == "bytes" else format(self.value, form)
