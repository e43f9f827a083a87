"""A run from a workload to a record: folder, worker, watching, collecting."""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vlmprof.advice import advise
from vlmprof.errors import Exit, MachineError, UserError
from vlmprof.launch.children import child
from vlmprof.launch.folders import default_folder, make_folder, resolve_megatron
from vlmprof.records.assemble import NOTES, assemble
from vlmprof.records.job import Job
from vlmprof.records.journal import Event, FileJournal, read_journal
from vlmprof.records.run import Outcome, Run, StepKind
from vlmprof.records.schedule import plan_kinds
from vlmprof.records.store import dump_json, write_whole
from vlmprof.workload.spec import Workload

__all__ = ["RunOptions", "run_workload", "run_workloads"]

POLL_SECONDS = 0.05
Watcher = Callable[[Event], None]


@dataclass(frozen=True)
class RunOptions:
    steps: int = 10
    warmup: int = 3
    nproc: int = 1
    stage_breakdown: bool = False
    megatron: str = ""
    timeout: float = 600.0
    """Seconds without a new step (or any other sign) after which the run counts as hung."""
    out: Path | None = None
    skip_bad_samples: bool = False
    memory_limit: int = 0
    """Bytes; 0 means none."""
    command: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[StepKind, ...]:
        """Step kinds besides plain."""
        if self.memory_limit:
            return ("counted",)
        return ("spanned", "counted") if self.stage_breakdown else ()

    @property
    def total_steps(self) -> int:
        """Steps of all kinds, warm-up included."""
        return len(plan_kinds(self.steps, self.warmup, self.kinds))


def run_workload(workload: Workload, options: RunOptions, watch: Watcher = lambda event: None) -> tuple[Run, Path]:
    """Train `workload` in a child process; returns the record and the folder that it was written to.

    `watch` is called with each event of the worker as it arrives. Whatever ends the run, a whole `run.json` is left.

    Raises:
        UserError: the input is bad, or the worker cannot honour it; nothing is left behind then.
        MachineError: this machine lacks something.
    """
    if options.nproc > 1:
        raise UserError("--nproc above 1 is not built yet: leave it out")
    megatron = resolve_megatron(options.megatron)
    folder = options.out or default_folder(workload.name, workload.hash8)
    existed = folder.is_dir()
    make_folder(folder)
    job = Job(
        workload=workload,
        steps=options.steps,
        warmup=options.warmup,
        kinds=options.kinds,
        megatron=megatron,
        skip_bad_samples=options.skip_bad_samples,
        memory_limit=options.memory_limit,
    )
    write_whole(folder / "job.json", dump_json(job))
    _tell_start(folder, workload, options)
    ending = _supervise(folder, megatron, options.timeout, watch)
    events = [event for name in ("launcher", "rank0") for event in read_journal(folder / f"{name}.jsonl")[0]]
    refused = next((event for event in events if event["event"] == "refused"), None)
    if refused:
        _remove(folder, keep=existed)
        kind = MachineError if refused["exit_code"] == Exit.ENVIRONMENT else UserError
        raise kind(refused["message"])
    record = advise(assemble(events, ending))
    write_whole(folder / "run.json", dump_json(record))
    return record, folder


def run_workloads(
    workloads: list[Workload], options: RunOptions, watch: Watcher = lambda event: None
) -> list[tuple[Run, Path]]:
    """Run several workloads in turn, each in a folder of its own below `options.out`; stops after one that fails."""
    if len(workloads) == 1:
        return [run_workload(workloads[0], options, watch)]
    done: list[tuple[Run, Path]] = []
    for workload in workloads:
        label = Path(workload.data.path).name or workload.data.kind
        out = options.out / label if options.out else None
        done.append(run_workload(workload, replace(options, out=out), watch))
        if done[-1][0].outcome.status != "ok":
            break
    return done


def _tell_start(folder: Path, workload: Workload, options: RunOptions) -> None:
    with FileJournal(folder / "launcher.jsonl") as journal:
        journal.tell(
            "start",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=list(options.command),
            workload={
                "name": workload.name,
                "hash": workload.hash8,
                "settings": workload.model_dump(mode="json"),
                "deviations": list(workload.model.deviations),
            },
            realism={"path": "real"}.get(workload.data.kind, workload.data.kind),
            notes=NOTES,
            memory_limit=options.memory_limit or None,
        )


def _supervise(folder: Path, megatron: str, timeout: float, watch: Watcher) -> Outcome | None:
    """Run the worker to its end. Returns the outcome where the worker could not tell it itself."""
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    if megatron:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [megatron, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "vlmprof.training.worker", str(folder / "job.json")]
    tail = _Tail(folder / "rank0.jsonl")
    with _stop_on_sigterm(), child(command, folder / "rank0.log", environment) as process:
        last_sign = time.monotonic()
        try:
            while process.poll() is None:
                for event in tail.new():
                    last_sign = time.monotonic()
                    watch(event)
                if time.monotonic() - last_sign > timeout:
                    return Outcome(
                        status="failed",
                        failure_class="hang",
                        message=f"no new step for {timeout:g} seconds",
                        step=tail.step,
                        rank=0,
                        evidence=_last_lines(folder / "rank0.log"),
                    )
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            return Outcome(status="interrupted", step=tail.step, message="interrupted by the user")
        for event in tail.new():
            watch(event)
        if tail.ended:
            return None
        return _died(process.returncode, tail.step, folder / "rank0.log")


def _died(code: int, step: int | None, log: Path) -> Outcome:
    """The outcome of a worker that ended without telling why."""
    if code < 0:
        name = signal.Signals(-code).name
        return Outcome(
            status="failed", failure_class="killed", message=f"the worker was ended by {name}", step=step, rank=0
        )
    return Outcome(
        status="failed",
        failure_class="crash",
        message=f"the worker ended with code {code}",
        step=step,
        rank=0,
        evidence=_last_lines(log),
    )


def _last_lines(log: Path, count: int = 5) -> tuple[str, ...]:
    if not log.exists():
        return ()
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 8192))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return tuple(line for line in lines if line.strip())[-count:]


class _Tail:
    """Follows a journal that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.step: int | None = None
        self.ended = False

    def new(self) -> list[Event]:
        fresh, self._position = read_journal(self._path, self._position)
        for event in fresh:
            if event["event"] == "begin":
                self.step = event["index"]
            self.ended |= event["event"] in ("done", "failure", "refused")
        return fresh


@contextlib.contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: in order, with a record."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _remove(folder: Path, keep: bool) -> None:
    """Take back what was written; the folder itself too, and its parent when it is left empty, unless it was there."""
    if keep:
        for item in folder.iterdir():
            item.unlink()
        return
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
