"""One rank of a job that the user's own torchrun or srun started: this process watches its own worker, and rank 0's
writes the one record from the journals that it can see (all of them on one node or a shared filesystem)."""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from vlmprof.errors import Exit, UserError
from vlmprof.launch.folders import make_folder, resolve_megatron, take_back
from vlmprof.launch.runner import RunOptions, check_refusals, collect, prepare, worker_environment
from vlmprof.launch.watch import Watcher, supervise
from vlmprof.records.journal import Event, read_journal
from vlmprof.records.run import Run
from vlmprof.workload.check import check_ranks
from vlmprof.workload.spec import Workload

__all__ = ["Joined", "joined_rank", "run_joined"]

WAIT_SECONDS = 60.0
LAST_WORDS_SECONDS = 10.0
DEFAULT_PORT = 29500


@dataclass(frozen=True)
class Joined:
    rank: int
    local_rank: int
    world: int
    job: str
    """Names the job: the same on all its ranks."""

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """What torch.distributed's env:// needs, from whichever launcher it is. Unless that said where ranks meet:
        on this machine, at torch's usual port moved by the job's number."""
        number = before.get("SLURM_JOB_ID", "0")
        port = DEFAULT_PORT + (int(number) % 1000 if number.isdecimal() else 0)
        return {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            **before,
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world),
        }


def joined_rank(environment: Mapping[str, str] | None = None) -> Joined | None:
    """Which rank this process is, or None when nobody's launcher started it.

    Raises:
        UserError: srun on several nodes without MASTER_ADDR, or a rank that is no number.
    """
    env = os.environ if environment is None else environment
    if "RANK" in env and "WORLD_SIZE" in env:
        run_id = env.get("TORCHELASTIC_RUN_ID", "")
        job = run_id if run_id not in ("", "none") else _parent_start()
        return Joined(_number(env, "RANK"), _number(env, "LOCAL_RANK", 0), _number(env, "WORLD_SIZE"), job)
    # A batch script has SLURM_PROCID, too; only what srun starts has a step of its own.
    if "SLURM_PROCID" in env and env.get("SLURM_STEP_ID", "batch").isdecimal() and _number(env, "SLURM_NTASKS", 1) > 1:
        if _number(env, "SLURM_NNODES", 1) > 1 and "MASTER_ADDR" not in env:
            raise UserError(
                "srun started ranks on several nodes: export MASTER_ADDR=$(scontrol show hostnames "
                '"$SLURM_JOB_NODELIST" | head -n 1) before srun'
            )
        job = f"slurm{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '0')}"
        return Joined(_number(env, "SLURM_PROCID"), _number(env, "SLURM_LOCALID", 0), _number(env, "SLURM_NTASKS"), job)
    return None


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise UserError(f"{name}='{text}' is no rank or count: unset it, or start the ranks with torchrun or srun")
    return int(text)


def _parent_start() -> str:
    """When the launcher of this node's ranks began: the same for all of them."""
    return datetime.fromtimestamp(psutil.Process(os.getppid()).create_time(), UTC).strftime("%Y%m%dT%H%M%S")


def run_joined(
    workload: Workload, options: RunOptions, joined: Joined, watch: Watcher = lambda event: None
) -> tuple[Run, Path] | Exit:
    """Do this rank's part. Rank 0 returns the record and its folder, the others an exit code.

    Raises:
        UserError, MachineError: as `run_workload`; on every rank.
    """
    if options.nproc > 1:
        raise UserError(
            "--nproc starts ranks on one machine, but torchrun or srun has started them already: leave it out"
        )
    check_ranks(workload, joined.world)
    megatron = resolve_megatron(options.megatron)
    folder = options.out or Path("vlmprof-runs") / f"{joined.job}-{workload.name}-{workload.hash8}"
    job_file = folder / "job.json"
    made: list[Path] = []
    if joined.rank == 0:
        made = make_folder(folder)
        prepare(folder, workload, options, megatron)
    elif (folder / "run.json").exists():
        raise UserError(f"output folder '{folder}' is not empty: name another one with --out")
    elif joined.local_rank == 0 and not _appears(job_file):
        folder.mkdir(parents=True, exist_ok=True)  # another node without a filesystem in common
        prepare(folder, workload, options, megatron)
    elif not _appears(job_file):
        raise UserError(f"rank 0 wrote no '{job_file}' within {WAIT_SECONDS:g} seconds: it was refused, or name --out")
    command = [sys.executable, "-m", "vlmprof.training.worker", str(job_file)]
    environment = joined.environment(worker_environment(megatron, joined.world))
    ending = supervise(folder, command, environment, [joined.rank], options.timeout, watch)
    own, _ = read_journal(folder / f"rank{joined.rank}.jsonl")
    try:
        check_refusals({joined.rank: own})
    except UserError:
        if joined.rank == 0:
            take_back(folder, made)
        raise
    if ending.interrupted and joined.rank:
        return Exit.INTERRUPTED
    if joined.rank:
        return Exit.FINE if any(event["event"] == "done" for event in own) else Exit.RUN_FAILED
    return collect(folder, _journals(folder, joined.world), ending), folder


def _appears(path: Path) -> bool:
    """Whether a file comes within WAIT_SECONDS."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _journals(folder: Path, world: int) -> dict[int, list[Event]]:
    """The journals of all ranks that can be seen from here, once each has had its last word or the time is over."""
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while True:
        found = {rank: read_journal(folder / f"rank{rank}.jsonl")[0] for rank in range(world)}
        ended = all(any(e["event"] in ("done", "failure") for e in events) for events in found.values())
        if ended or time.monotonic() > deadline:
            return {rank: events for rank, events in found.items() if events or rank == 0}
        time.sleep(0.1)
