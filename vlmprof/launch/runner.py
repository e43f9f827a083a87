"""A run from a workload to a record: folder, worker, watching, collecting."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from vlmprof.advice import advise
from vlmprof.errors import Exit, MachineError, UserError
from vlmprof.launch.folders import default_folder, make_folder, release, reserve, resolve_megatron, take_back
from vlmprof.launch.roots import Ending, outcome_of
from vlmprof.launch.signature import with_diagnosis
from vlmprof.launch.watch import Watcher, supervise
from vlmprof.records.assemble import NOTES, assemble
from vlmprof.records.job import Job
from vlmprof.records.journal import Event, FileJournal, read_journal
from vlmprof.records.run import Run, StepKind
from vlmprof.records.schedule import plan_kinds
from vlmprof.records.store import dump_json, write_whole
from vlmprof.workload.check import check_ranks
from vlmprof.workload.spec import Workload

__all__ = ["RunOptions", "check_refusals", "collect", "prepare", "run_workload", "run_workloads", "worker_environment"]


TRACES = ("trace-rank*.json.gz", "memory-rank*.pickle")
"""What workers leave besides their journals and logs."""
COUNTED_ONLY = "--memory-limit makes every step a counted one: no step was timed"


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
    memory_snapshot: bool = False
    nvtx: bool = False
    command: tuple[str, ...] = ()
    python: str = ""
    """Interpreter of another environment for the workers; empty: ours."""
    yardstick: str = ""
    """Folder that holds nothing but this vlmprof, for an interpreter that may have none, or another one."""

    @property
    def kinds(self) -> tuple[StepKind, ...]:
        """Step kinds besides plain."""
        if self.memory_limit:
            return ("counted",)
        if self.stage_breakdown:
            return ("spanned", "counted")
        return ("counted",) if self.memory_snapshot else ()

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
    check_ranks(workload, options.nproc)
    megatron = resolve_megatron(options.megatron)
    folder = options.out or default_folder(workload.name, workload.hash8)
    made = make_folder(folder)
    try:
        prepare(folder, workload, options, megatron)
        command = _command(folder / "job.json", options.nproc, options.python or sys.executable)
    except MachineError:
        take_back(folder, made)
        raise
    environment = worker_environment(os.pathsep.join(filter(None, [options.yardstick, megatron])), options.nproc)
    ending = supervise(folder, command, environment, range(options.nproc), options.timeout, watch)
    ranks = {rank: read_journal(folder / f"rank{rank}.jsonl")[0] for rank in range(options.nproc)}
    try:
        check_refusals(ranks)
    except UserError:
        take_back(folder, made)
        raise
    return collect(folder, ranks, ending), folder


def check_refusals(ranks: Mapping[int, list[Event]]) -> None:
    """Raises:
    UserError, MachineError: what a worker told before it began to train.
    """
    refused = next((e for events in ranks.values() for e in events if e["event"] == "refused"), None)
    if refused:
        kind = MachineError if refused["exit_code"] == Exit.ENVIRONMENT else UserError
        raise kind(refused["message"])


def prepare(folder: Path, workload: Workload, options: RunOptions, megatron: str) -> None:
    """Write the job that the workers do and the launcher's own journal.

    Raises:
        MachineError: the disk is full.
    """
    try:
        _tell_start(folder, workload, options)
        reserve(folder)
    except OSError as error:
        raise MachineError(f"output folder '{folder}' cannot be written: {error.strerror}") from None
    job = Job(
        workload=workload,
        steps=options.steps,
        warmup=options.warmup,
        kinds=options.kinds,
        megatron=megatron,
        skip_bad_samples=options.skip_bad_samples,
        memory_limit=options.memory_limit,
        memory_snapshot=options.memory_snapshot,
        nvtx=options.nvtx,
    )
    write_whole(folder / "job.json", dump_json(job))


def collect(folder: Path, ranks: Mapping[int, list[Event]], ending: Ending) -> Run:
    """The record of what is in `folder`, written there."""
    ending.disk_full = release(folder)
    logs = [folder / f"rank{rank}.log" for rank in ranks]
    outcome = with_diagnosis(outcome_of(ranks, ending), [*logs, folder / "torchrun.log"])
    launcher, _ = read_journal(folder / "launcher.jsonl")
    traces = sorted(path.name for pattern in TRACES for path in folder.glob(pattern))
    launcher = [{**event, "traces": traces} if event["event"] == "start" else event for event in launcher]
    others = {rank: events for rank, events in ranks.items() if rank}
    record = advise(assemble([*launcher, *ranks.get(0, [])], outcome, others))
    write_whole(folder / "run.json", dump_json(record))
    return record


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
            notes=(*NOTES, *((COUNTED_ONLY,) if options.memory_limit else ())),
            memory_limit=options.memory_limit or None,
        )


def worker_environment(leading: str, ranks: int) -> dict[str, str]:
    """Environment of the workers: what is under test, `leading`, comes first on PYTHONPATH."""
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        environment.pop(name, None)  # half of somebody's launcher
    if leading:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [leading, os.environ.get("PYTHONPATH", "")]))
    if ranks > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")  # torchrun would set it, and say so at length
    return environment


def _command(job_file: Path, ranks: int, python: str) -> list[str]:
    """The worker itself for one rank, torchrun's module for several.

    Raises:
        MachineError: `MASTER_PORT` names a port that is in use.
    """
    worker = ["-m", "vlmprof.training.worker", str(job_file)]
    if ranks == 1:
        return [python, *worker]
    port = os.environ.get("MASTER_PORT", "")
    where = ["--standalone"]
    if port:
        _check_port(port)
        where = ["--master-addr", os.environ.get("MASTER_ADDR", "127.0.0.1"), "--master-port", port]
    return [python, "-m", "torch.distributed.run", *where, "--nproc-per-node", str(ranks), *worker]


def _check_port(port: str) -> None:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", int(port)))
        except (OSError, ValueError, OverflowError):
            raise MachineError(
                f"port {port} (MASTER_PORT) cannot be used: unset MASTER_PORT or choose another"
            ) from None
