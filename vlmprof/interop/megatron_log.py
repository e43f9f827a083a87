"""A Megatron-LM, Megatron Bridge or NeMo training log becomes a run record without stages."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from vlmprof.advice import advise
from vlmprof.errors import UserError
from vlmprof.interop.log_forms import UNDERSTOOD
from vlmprof.interop.training_log import KEPT_ITERATIONS, Iteration, RankMemory, TrainingLog, read_log
from vlmprof.launch.folders import default_folder, make_folder
from vlmprof.records.figures import Absent, Figure, Measured, figure
from vlmprof.records.memory import Memory
from vlmprof.records.run import DataRecord, Environment, Outcome, Run, Step, WorkloadRecord
from vlmprof.records.store import dump_json, write_whole
from vlmprof.sizes import show_bytes

__all__ = ["import_megatron_log", "read_megatron_log"]

WARMUP_ITERATIONS = 3
SLOW_TIMES = 3.0
"""Iterations at the start that take more than so many times the median are warm-up, too."""
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
UNCOUNTED = {
    "useful_tokens_per_second": "a training log does not say which tokens bear loss",
    "images_per_second": "a training log does not count images",
    "patches_per_second": "a training log does not count image patches",
}


def import_megatron_log(
    path: Path, out: Path | None = None, warmup: int | None = None, command: Sequence[str] = ()
) -> tuple[Run, Path]:
    """Read a log and write its record; returns the record and the folder, which holds `run.json`.

    `out` is a new or an empty folder; by default `vlmprof-runs/<UTC time>-imported-<name of the log>`. `warmup` is the
    number of iterations at the log's start to set aside; by default the first 3, or more where the start is slow.

    Raises:
        UserError: the log cannot be read or has no iteration line, or `out` cannot be used; nothing is left then.
        MachineError: the disk is full.
    """
    if out is not None and out.exists():
        make_folder(out)  # refuses a bad one before gigabytes are read
    record = read_megatron_log(path, warmup, command)
    folder = out or default_folder("imported", re.sub(r"[^A-Za-z0-9_.-]+", "-", _stem(path)))
    make_folder(folder)
    write_whole(folder / "run.json", dump_json(record))
    return record, folder


def read_megatron_log(path: Path, warmup: int | None = None, command: Sequence[str] = ()) -> Run:
    """The record of a log, plain or gzip; every iteration line is a plain step.

    Raises:
        UserError: the log cannot be read, or has no iteration line with a time.
    """
    log = read_log(path)
    if not log.iterations:
        raise UserError(_nothing_found(path, log))
    count, reason = _warmup(log, warmup)
    measured = list(log.iterations)[count:]
    return advise(
        Run(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=tuple(command),
            workload=WorkloadRecord(name=_stem(path)),
            environment=_environment(log),
            data=DataRecord(realism="unknown"),
            steps=tuple(_step(one, number < count) for number, one in enumerate(log.iterations)),
            throughput=_throughput(log, measured),
            memory=_memory(log),
            notes=tuple(_notes(path, log, reason)),
            outcome=_outcome(log),
        )
    )


def _stem(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    return Path(name).stem or name or "log"


def _nothing_found(path: Path, log: TrainingLog) -> str:
    damage = f" ({log.damage[-1]})" if log.damage else ""
    if log.untimed:
        return (
            f"'{path}' has {log.untimed} iteration lines, but none of them says how long it took{damage}: "
            f"understood are {UNDERSTOOD}"
        )
    return (
        f"'{path}' has no iteration line{damage}: understood are {UNDERSTOOD} "
        "(with one file a rank, the last rank's file has them)"
    )


def _warmup(log: TrainingLog, wanted: int | None) -> tuple[int, str]:
    """How many lines are set aside, and the note that says so."""
    iterations, lines = (WARMUP_ITERATIONS if wanted is None else wanted), 0
    before = log.dropped
    for covers in log.covered():
        if before + (0 if log.averaged else covers - 1) >= iterations:
            break
        before += covers
        lines += 1
    slow = log.slow_start(SLOW_TIMES) if wanted is None else 0
    why = f"those at the start that took more than {SLOW_TIMES:g} times the median" if slow > lines else ""
    lines = max(lines, slow)
    if not lines:
        return 0, "no iteration is set aside as warm-up"
    first, last = log.iterations[0].index, log.iterations[lines - 1].index
    which = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    by = why or ("--warmup" if wanted is not None else f"the first {WARMUP_ITERATIONS} of a log; change it: --warmup N")
    return lines, f"set aside as warm-up: {which} ({by})"


def _step(one: Iteration, warmup: bool) -> Step:
    return Step(
        index=one.index,
        batch=one.index,
        kind="plain",
        warmup=warmup,
        ms=one.ms,
        loss=one.loss,
        grad_norm=one.grad_norm,
    )


def _throughput(log: TrainingLog, measured: Sequence[Iteration]) -> dict[str, Measured]:
    """Medians over the iterations that are not warm-up; TFLOP/s are those of one GPU, as the training script counts."""
    if not measured:
        nothing = Absent(absent="every iteration of the log is warm-up: --warmup 0 counts them all")
        return dict.fromkeys(("step_ms", "tokens_per_second", "tflops_per_second_per_gpu", *UNCOUNTED), nothing)
    rates = [one.tflops for one in measured if one.tflops is not None]
    return {
        "step_ms": figure([one.ms for one in measured], "ms", "wall-clock"),
        "tokens_per_second": _tokens(log, measured),
        "tflops_per_second_per_gpu": figure(rates, "TFLOP/s/GPU", "wall-clock")
        if rates
        else Absent(absent="the log prints no TFLOP/s (Megatron-LM does with --log-throughput)"),
        **{name: Absent(absent=reason) for name, reason in UNCOUNTED.items()},
    }


def _tokens(log: TrainingLog, measured: Sequence[Iteration]) -> Measured:
    lengths = list(log.settings.get("seq_length", ()))
    if len(lengths) != 1:
        told = f"the log names several sequence lengths: {', '.join(lengths)}" if lengths else ""
        return Absent(absent=told or "the log does not say the sequence length (seq_length, --seq-length)")
    everywhere = float(log.setting("batch_size") or 0)
    batches = [one.batch_size or everywhere for one in measured]
    if not all(batches):
        return Absent(absent="the log does not say the global batch size of every iteration")
    tokens = [size * float(lengths[0]) for size in batches]
    return figure([count / one.ms * 1e3 for count, one in zip(tokens, measured, strict=True)], "tokens/s", "wall-clock")


def _memory(log: TrainingLog) -> Memory | None:
    """Of the rank with the highest peak; None where no rank reported."""
    rank = _worst_rank(log)
    if rank is None:
        return None
    parts = Absent(absent="a training log gives the allocator's totals only")
    return Memory(
        peak=Figure(value=rank.peak, unit="bytes", source="allocator", samples=(rank.peak,)),
        parameters=parts,
        gradients=parts,
        optimizer_state=parts,
        saved_activations=parts,
        held_after=Figure(value=rank.held, unit="bytes", source="allocator", samples=(rank.held,))
        if rank.held is not None
        else Absent(absent="the log does not say what was allocated between iterations"),
        host_rss=Absent(absent="a training log does not tell the host's memory"),
    )


def _worst_rank(log: TrainingLog) -> RankMemory | None:
    worst = max(log.memory.values(), key=lambda rank: rank.peak, default=None)
    return worst if worst is not None and worst.peak else None


def _environment(log: TrainingLog) -> Environment:
    """As far as the log tells; ranks and threads are 0 where it does not."""
    told = log.setting("precision") or ""
    return Environment(
        platform="unknown",
        device="unknown",
        precision="fp8" if log.setting("fp8") else PRECISIONS.get(told, "unknown"),
        ranks=int(log.setting("world_size") or 0),
        threads=0,
        packages={},
        host={},
    )


def _outcome(log: TrainingLog) -> Outcome:
    broken = next((one for one in log.iterations if one.broken), None)
    if broken is None:
        return Outcome(status="ok")
    return Outcome(
        status="failed",
        failure_class="nan",
        message=f"{broken.broken} at iteration {broken.index}",
        step=broken.index,
        evidence=(broken.line,),
    )


def _notes(path: Path, log: TrainingLog, warmup: str) -> list[str]:
    """What a reader of the record must know of how it came about, a sentence each."""
    notes = [f"imported from '{path}' ({' and '.join(log.families)}): times are the training script's own", warmup]
    if log.interval > 1 and log.averaged:
        notes.append(f"a line covers {log.interval} iterations: each step's time is the mean over them")
    elif log.interval > 1:
        notes.append(f"the log tells one of {log.interval} iterations")
    if log.dropped:
        notes.append(f"the log has {log.dropped + len(log.iterations)} iterations; the last {KEPT_ITERATIONS} are kept")
    notes += [
        f"training was resumed at iteration {to} after iteration {after}: the later values stand"
        for to, after in log.resumed[:SHOWN_RESUMPTIONS]
    ]
    if len(log.resumed) > SHOWN_RESUMPTIONS:
        notes.append(f"and was resumed {len(log.resumed) - SHOWN_RESUMPTIONS} times more")
    if log.repeats:
        notes.append(f"{log.repeats} lines repeat an iteration (several ranks or a progress bar): the last one counts")
    if log.untimed:
        notes.append(f"{log.untimed} iteration lines without a usable time were left out")
    skipped = sum(one.skipped for one in log.iterations)
    if skipped:
        notes.append(f"{skipped} iterations skipped the optimizer (loss scaling): they do less work than the others")
    if _worst_rank(log) is not None:
        notes.append(_memory_note(log))
    if not log.setting("world_size"):
        notes.append("the log does not say how many ranks trained")
    return notes + log.damage


SHOWN_RESUMPTIONS = 5


def _memory_note(log: TrainingLog) -> str:
    rank, memory = max(log.memory.items(), key=lambda one: one[1].peak)
    reserved = f", {show_bytes(memory.reserved)} reserved" if memory.reserved else ""
    whose = f"rank {rank}" if rank is not None else "the log does not say of which rank"
    others = f", the highest of {len(log.memory)} that report" if len(log.memory) > 1 else ""
    return f"peak memory {show_bytes(memory.peak)} allocated{reserved}: {whose}{others}"
