"""Run records as pandas tables: tidy, units in the column names, one key column `run` in all of them.

`load_run` reads one record, `load_runs` many. docs/dataframes.md says what each column is.
"""

import glob
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from vlmprof.errors import UserError
from vlmprof.records.figures import Figure, Measured
from vlmprof.records.run import Run
from vlmprof.records.store import read_run

__all__ = ["Frames", "frames_of", "load_run", "load_runs"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Frames:
    """The tables of one or more runs. What was not measured is NaN (or None in a column of words)."""

    runs: pd.DataFrame
    """One row a run: what it was, where it ran, how it ended, its figures over all steps."""
    steps: pd.DataFrame
    """One row a step of any kind."""
    stages: pd.DataFrame
    """One row a stage and phase: the record's summed-up times."""
    stage_steps: pd.DataFrame
    """One row a stage, phase and spanned step: the samples behind `stages`."""
    layers: pd.DataFrame
    """One row a range: a stage of one layer in one phase."""
    memory: pd.DataFrame
    """One row a stage, phase and kind of memory; stage `step` is the whole rank."""
    ranks: pd.DataFrame
    """One row a rank, where there are several."""


def load_run(path: str | Path) -> Frames:
    """The tables of one run folder or record.

    Raises:
        UserError: there is no record, it is damaged, or of a newer vlmprof.
    """
    path = Path(path)
    return frames_of([(_label(path), read_run(path))])


def load_runs(pattern: str | Path | Iterable[str | Path]) -> Frames:
    """The tables of several runs, below one another; column `run` tells them apart.

    Args:
        pattern: a glob over run folders or records (`**` for any depth), a folder of run folders, or paths.

    Raises:
        UserError: nothing matches, or a record is damaged or of a newer vlmprof.
    """
    paths = sorted(_matches(str(pattern))) if isinstance(pattern, str | Path) else [Path(one) for one in pattern]
    if not paths:
        raise UserError(f"no run record matches '{pattern}'")
    return frames_of((_label(path), read_run(path)) for path in paths)


def _matches(pattern: str) -> list[Path]:
    found = [Path(one) for one in glob.glob(pattern, recursive=True)]  # noqa: PTH207  pathlib's takes no absolute one
    if len(found) == 1 and found[0].is_dir() and not (found[0] / "run.json").is_file():
        found = list(found[0].iterdir())
    records = [path for path in found if path.suffix == ".json" or (path / "run.json").is_file()]
    folders = {path for path in records if path.is_dir()}
    return [path for path in records if path.parent not in folders]


def _label(path: Path) -> str:
    return str(path.parent if path.name == "run.json" else path)


def frames_of(runs: Iterable[tuple[str, Run]]) -> Frames:
    """The tables of records that were read already: pairs of the value for column `run` and the record."""
    rows: dict[str, list[Row]] = {table: [] for table in TABLES}
    for label, run in runs:
        for table, make in TABLES.items():
            rows[table] += [{"run": label, **row} for row in make(run)]
    frames = {table: _frame(table, rows[table]) for table in TABLES}
    return Frames(**frames)


def _frame(table: str, rows: list[Row]) -> pd.DataFrame:
    """Columns in the order of docs/dataframes.md, all of them, also where no row has a value."""
    known = ["run", *COLUMNS[table]]
    frame = pd.DataFrame(rows, columns=known)
    numbers = [name for name in known if frame[name].isna().all() and name not in WORDS]
    return frame.astype(dict.fromkeys(numbers, "float64"))


def _value(measured: Measured | None) -> float | None:
    return measured.value if isinstance(measured, Figure) else None


def _run_rows(run: Run) -> Iterator[Row]:
    environment, work, outcome = run.environment, run.effective_work, run.outcome
    packages = environment.packages if environment else {}
    megatron, torch = packages.get("megatron-core"), packages.get("torch")
    yield {
        "created": pd.to_datetime(run.created, utc=True, errors="coerce"),
        "workload": run.workload.name,
        "hash": run.workload.hash,
        "platform": environment.platform if environment else None,
        "precision": environment.precision if environment else None,
        "world_size": environment.ranks if environment else None,
        "megatron_core": megatron.version if megatron else None,
        "megatron_commit": megatron.commit if megatron else None,
        "torch": torch.version if torch else None,
        "data": run.data.realism,
        "padding_share": run.data.padding_share,
        "status": outcome.status,
        "failure_class": outcome.failure_class,
        "tokens": work.tokens if work else None,
        "useful_tokens": work.useful_tokens if work else None,
        "images": work.images if work else None,
        "image_patches": work.image_patches if work else None,
        "model_flops": work.model_flops if work else None,
        **{name: _value(run.throughput.get(name)) for name in THROUGHPUT},
        "memory_peak_bytes": _value(run.memory.peak) if run.memory else None,
        "coverage": run.coverage,
    }


def _step_rows(run: Run) -> Iterator[Row]:
    return (step.model_dump() for step in run.steps)


def _stage_rows(run: Run) -> Iterator[Row]:
    for row in run.stages:
        yield {
            "stage": row.name,
            "phase": row.phase,
            **{name: _value(getattr(row, name)) for name in STAGE_TIMES},
            "syncs": row.syncs,
            "ranges": row.ranges,
            "share": row.share,
            "source": row.total_ms.source if isinstance(row.total_ms, Figure) else None,
            **({f"rank_{name}_ms": getattr(row.ranks, name) for name in ("min", "median", "max")} if row.ranks else {}),
            "slowest_rank": row.ranks.slowest if row.ranks else None,
        }


def _stage_step_rows(run: Run) -> Iterator[Row]:
    observed = [step for step in run.steps if step.kind == "spanned" and not step.warmup]
    for row in run.stages:
        total, own = row.total_ms, row.self_ms
        if not isinstance(total, Figure) or not isinstance(own, Figure) or len(total.samples) != len(observed):
            continue
        for step, total_ms, self_ms in zip(observed, total.samples, own.samples, strict=False):
            place = {"stage": row.name, "phase": row.phase, "index": step.index, "batch": step.batch}
            yield {**place, "total_ms": total_ms, "self_ms": self_ms}


_RANGE = re.compile(r"(?P<head>[^.]+)\.(?P<layer>\d+)(?P<rest>\.[^/]+)?/(?P<phase>.+)")


def _layer_rows(run: Run) -> Iterator[Row]:
    for row in run.layers:
        match = _RANGE.fullmatch(row.name)
        if match is not None:
            stage = match["head"] + (match["rest"] or "")
            place = {"stage": stage, "layer": int(match["layer"]), "phase": match["phase"]}
            yield {**place, "self_ms": row.self_ms, "ranges": row.ranges}


def _memory_rows(run: Run) -> Iterator[Row]:
    whole = run.memory
    if whole is not None:
        for kind in type(whole).model_fields:
            measured = getattr(whole, kind)
            if isinstance(measured, Figure):
                yield {"stage": "step", "phase": "step", "kind": kind, **_bytes(measured)}
    for row in run.stages:
        for kind in type(row.memory).model_fields if row.memory else ():
            measured = getattr(row.memory, kind)
            if isinstance(measured, Figure):
                yield {"stage": row.name, "phase": row.phase, "kind": kind, **_bytes(measured)}


def _bytes(measured: Figure) -> Row:
    return {"bytes": measured.value, "source": measured.source}


def _rank_rows(run: Run) -> Iterator[Row]:
    return (rank.model_dump() for rank in run.ranks)


THROUGHPUT = ("step_ms", "tokens_per_second", "useful_tokens_per_second", "images_per_second", "patches_per_second")
STAGE_TIMES = ("total_ms", "self_ms", "busy_ms", "busy_self_ms", "exposed_ms", "launch_bound_ms")
TABLES = {
    "runs": _run_rows,
    "steps": _step_rows,
    "stages": _stage_rows,
    "stage_steps": _stage_step_rows,
    "layers": _layer_rows,
    "memory": _memory_rows,
    "ranks": _rank_rows,
}
COLUMNS: dict[str, tuple[str, ...]] = {
    "runs": (
        *("created", "workload", "hash", "platform", "precision", "world_size", "megatron_core", "megatron_commit"),
        *("torch", "data", "padding_share", "status", "failure_class", "tokens", "useful_tokens", "images"),
        *("image_patches", "model_flops", *THROUGHPUT, "memory_peak_bytes", "coverage"),
    ),
    "steps": ("index", "batch", "kind", "warmup", "ms", "loss", "grad_norm"),
    "stages": (
        *("stage", "phase", *STAGE_TIMES, "syncs", "ranges", "share", "source"),
        *("rank_min_ms", "rank_median_ms", "rank_max_ms", "slowest_rank"),
    ),
    "stage_steps": ("stage", "phase", "index", "batch", "total_ms", "self_ms"),
    "layers": ("stage", "layer", "phase", "self_ms", "ranges"),
    "memory": ("stage", "phase", "kind", "bytes", "source"),
    "ranks": (
        *("rank", "host", "step_ms", "data_ms", "encoder_ms", "grad_sync_ms", "patches", "useful_tokens"),
        *("expert_tokens", "peak_bytes", "rss_bytes"),
    ),
}
WORDS = {
    *("run", "created", "workload", "hash", "platform", "precision", "megatron_core", "megatron_commit", "torch"),
    *("data", "status", "failure_class", "stage", "phase", "kind", "warmup", "source", "host"),
}
