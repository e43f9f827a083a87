"""The few fields of a run record that a history needs, read at a quarter of the cost of the whole.

The names are those of `vlmprof.run/1`; samples, settings and layers are passed over without being built.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from vlmprof.errors import UserError
from vlmprof.records.figures import Record
from vlmprof.records.run import RUN_SCHEMA, FailureClass, Package
from vlmprof.records.store import collector_paused, read_document

__all__ = ["RATES", "Read", "Summary", "metrics_of", "read_summaries"]

RATES = ("tokens_per_second", "useful_tokens_per_second")
"""The metrics of which more is better."""


class Value(Record):
    value: float | None = None
    """Absent where the figure is."""


class StageValue(Record):
    name: str
    phase: str
    self_ms: Value
    busy_self_ms: Value | None = None


class MemoryValue(Record):
    peak: Value


class DeviceValue(Record):
    busy_ms: Value


class WorkloadName(Record):
    name: str
    hash: str = ""


class Place(Record):
    platform: str
    packages: dict[str, Package] = {}


class Ending(Record):
    status: str
    failure_class: Annotated[FailureClass | None, Field(alias="class")] = None


class Summary(Record):
    """A run record, shortened."""

    schema_: Annotated[str, Field(alias="schema")]
    created: str
    workload: WorkloadName
    environment: Place | None = None
    throughput: dict[str, Value] = {}
    memory: MemoryValue | None = None
    device: DeviceValue | None = None
    stages: tuple[StageValue, ...] = ()
    outcome: Ending


def metrics_of(run: Summary) -> dict[str, float]:
    """Metric -> value of one run; what was not measured is left out.

    `step_ms` (median over plain steps), `tokens_per_second`, `useful_tokens_per_second` (likewise), `memory_peak`
    (bytes, median over counted steps), `device_busy_ms`, and of each stage `<stage>/<phase>` (self ms: mean over the
    middle half of the spanned steps) and `<stage>/<phase> busy` (ms of kernels, where they were traced).
    """
    measured: dict[str, Value | None] = {name: run.throughput.get(name) for name in ("step_ms", *RATES)}
    measured["memory_peak"] = run.memory.peak if run.memory else None
    measured["device_busy_ms"] = run.device.busy_ms if run.device else None
    for row in run.stages:
        if row.name != "step":
            measured[f"{row.name}/{row.phase}"] = row.self_ms
            measured[f"{row.name}/{row.phase} busy"] = row.busy_self_ms
    return {name: one.value for name, one in measured.items() if one is not None and one.value is not None}


class Read(NamedTuple):
    """What a history keeps of a record: the summary without its figures, and these as metrics."""

    file: Path
    summary: Summary
    metrics: dict[str, float]


def read_summaries(folder: Path) -> list[Read]:
    """Every run record below `folder`, at any depth: files named run.json, and other JSON files that begin as one.

    Raises:
        UserError: there is no such folder, it holds no record, or a record is damaged, of a newer vlmprof, or holds a
            figure that is no number.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder '{folder}'")
    with collector_paused():
        found = [_read(file) for file in _records(folder)]
    if not found:
        raise UserError(f"'{folder}' holds no run record: vlmprof run leaves them in vlmprof-runs/")
    return found


HEAD = 256
"""Bytes in which a record that was written by vlmprof names its schema."""


def _records(folder: Path) -> Iterator[Path]:
    """A trace beside a record may be large: only its beginning is read."""
    for file in sorted(folder.rglob("*.json")):
        if file.name == "run.json":
            yield file
            continue
        try:
            with file.open("rb") as opened:
                if b'"vlmprof.run/' in opened.read(HEAD):
                    yield file
        except OSError as error:
            raise UserError(f"'{file}' cannot be read: {error.strerror}") from None


def _read(file: Path) -> Read:
    summary = read_document(file, Summary, RUN_SCHEMA, "run record")
    metrics = metrics_of(summary)
    for name, value in metrics.items():
        if not math.isfinite(value) or (value <= 0 and "/" not in name):
            raise UserError(f"'{file}': {name} is {value}, which no run measures: the record was damaged or edited")
    return Read(file, summary.model_copy(update={"stages": (), "throughput": {}}), metrics)
