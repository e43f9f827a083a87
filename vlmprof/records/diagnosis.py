"""The diagnosis, `vlmprof.diagnosis/1`: what a failed run's logs say went wrong, where, and what to do."""

from typing import Annotated

from pydantic import Field

from vlmprof.records.figures import Record
from vlmprof.records.run import FailureClass

__all__ = ["DIAGNOSIS_SCHEMA", "Collective", "Diagnosis"]

DIAGNOSIS_SCHEMA = "vlmprof.diagnosis/1"


class Collective(Record):
    """The collective that a hang stood in, as far as the logs tell."""

    op: str | None = None
    """As the log names it, e.g. ALLREDUCE."""
    sequence: int | None = None
    """Number of the collective on its process group."""
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: int | None = None
    group: str | None = None
    """The process group, where the log names one."""
    group_size: int | None = None
    """Ranks in it, where input and output sizes tell."""
    waiting: tuple[int, ...] = ()
    """Ranks that said they waited."""
    missing: tuple[int, ...] = ()
    """Ranks that did not arrive."""
    told_by: str | None = None
    """How that is known."""


class Diagnosis(Record):
    schema_: Annotated[str, Field(alias="schema")] = DIAGNOSIS_SCHEMA
    failure_class: Annotated[FailureClass | None, Field(alias="class")] = None
    """None: unknown."""
    signature: str | None = None
    """The same on every run and machine: `ExceptionType: normalised message @ module/path.py:function`."""
    message: str | None = None
    """The line where it began, as it stood."""
    rank: int | None = None
    """Where it began: of a hang, the first rank that said it waited; see `collective` for those that did not come."""
    log: str | None = None
    line: int | None = None
    """From 1."""
    reading: str | None = None
    """What it means, in plain words and with its numbers."""
    advice: tuple[str, ...] = ()
    figures: dict[str, float] = {}
    """Numbers of the message; names that end in _bytes, _ms or _seconds say their unit."""
    collective: Collective | None = None
    collateral: int = 0
    """Lines that are consequences."""
    evidence: tuple[str, ...] = ()
    """The most telling lines; also, and above all, where the failure is unknown."""
