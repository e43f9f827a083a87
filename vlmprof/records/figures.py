"""A number says how it was got: value, unit, source and samples; what could not be measured says why."""

import statistics
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Absent", "Figure", "Measured", "Record", "Source", "figure", "middle_half"]

Source = Literal["kernel", "cuda-event", "wall-clock", "allocator", "tensor-bytes", "analytic", "counted", "os"]


class Record(BaseModel):
    """Part of a document. Unknown fields are kept out of the way, so that an older vlmprof reads a newer minor form."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class Figure(Record):
    """A measured or computed number. `value` sums up `samples` (one a step) as the field that holds it says."""

    value: float
    unit: str
    source: Source
    samples: Annotated[tuple[float, ...], Field(strict=False)] = ()


class Absent(Record):
    """A number that could not be had, and why."""

    absent: str


Measured = Figure | Absent


def figure(samples: Sequence[float], unit: str, source: Source) -> Measured:
    """The median of `samples`, all of them kept; absent when there are none."""
    if not samples:
        return Absent(absent="no step of the kind that measures this was completed")
    return Figure(value=statistics.median(samples), unit=unit, source=source, samples=tuple(samples))


def middle_half(durations: Sequence[float]) -> list[int]:
    """Indices of the steps left when the fastest and the slowest quarter are set aside.

    Stage times are means over these (an interquartile mean by step): they still add up to the step, as medians would
    not, and a hiccup of the machine does not move them.
    """
    order = sorted(range(len(durations)), key=durations.__getitem__)
    quarter = len(order) // 4
    return sorted(order[quarter : len(order) - quarter])
