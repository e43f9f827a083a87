"""The worker process: `python -m vlmprof.training.worker JOB.json`. Tells its journal everything, then ends."""

import contextlib
import faulthandler
import os
import re
import signal
import socket
import sys
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmprof.errors import Exit, MachineError, UserError
from vlmprof.lifeline import die_with_parent
from vlmprof.records.environment import git_commit, host_facts, package_versions, relevant_variables
from vlmprof.records.job import Job
from vlmprof.records.journal import FileJournal, Journal
from vlmprof.records.run import FailureClass
from vlmprof.records.stage_frames import Frame, place_of_frames

__all__ = ["main"]


def main(job_file: str) -> int:
    """Do the job; the exit code is 0, or one of `Exit` after a `refused` or `failure` event."""
    die_with_parent()
    folder, rank = Path(job_file).parent, int(os.environ.get("RANK", "0"))
    job = Job.model_validate_json(Path(job_file).read_text(encoding="utf-8"))
    _log_to(folder / f"rank{rank}.log")
    with FileJournal(folder / f"rank{rank}.jsonl") as journal:
        journal.tell("worker", pid=os.getpid(), host=socket.gethostname(), rank=rank)
        return work(job, journal, folder)


def work(job: Job, journal: Journal, folder: Path | None = None) -> int:
    """Do the job in this process and tell `journal` how it went; the exit code. Traces go to `folder`."""
    try:
        _work(job, journal, folder)
    except UserError as error:
        journal.tell("refused", message=str(error), exit_code=int(error.exit_code))
        return int(error.exit_code)
    except Exception as error:
        traceback.print_exc()
        journal.tell("failure", outcome=_describe(error), shared=getattr(error, "shared", False))
        return int(Exit.RUN_FAILED)
    journal.tell("done")
    return int(Exit.FINE)


def _log_to(path: Path) -> None:
    """Everything this process prints goes to `path`, C libraries included; DUMP_SIGNAL adds its Python stacks."""
    log = path.open("ab", buffering=0)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, file=log, all_threads=True)  # whichever thread the signal meets
    faulthandler.enable(file=log)


def _work(job: Job, journal: Journal, folder: Path | None) -> None:
    warnings.filterwarnings("ignore")  # Megatron's advice about TE and Apex; what matters is in the record
    import torch

    torch.set_num_threads(job.threads)
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    with contextlib.ExitStack() as stack:
        applied: list[str] = []
        if device.type == "cpu":
            from vlmprof.training.bridge import cpu_bridge

            applied = stack.enter_context(cpu_bridge())
        else:
            torch.cuda.set_device(device)
        _check_device(job, device)
        megatron = _import_megatron(job)
        from vlmprof.records.schedule import plan_kinds
        from vlmprof.training.parallel import megatron_world
        from vlmprof.workload.samples import open_source

        workload = job.workload
        dtype = _precision(workload.knobs.precision, device)
        source = open_source(workload, job.skip_bad_samples)
        journal.tell("environment", environment=_environment(device, dtype, job.threads, megatron, applied))
        stack.enter_context(megatron_world(workload, device))
        from vlmprof.stages.observers import Keep
        from vlmprof.training.loop import train

        kinds = job.kinds
        if device.type == "cuda" and "spanned" in kinds and not job.nvtx:  # one profiler at a time
            kinds = (*kinds, "traced")
        schedule = plan_kinds(job.steps, job.warmup, kinds)
        graphed = workload.knobs.cuda_graph != "none"
        if job.memory_limit:
            schedule = [p if graphed and p.warmup else replace(p, kind="counted") for p in schedule]
        if graphed:  # graphs are captured in plain steps, before anything looks on
            schedule.sort(key=lambda planned: not (planned.warmup and planned.kind == "plain"))
        journal.tell("schedule", steps=len(schedule))
        keep = Keep(folder, int(os.environ.get("RANK", "0")), job.nvtx, job.memory_snapshot)
        train(workload, source, schedule, dtype, device, journal, memory_limit=job.memory_limit, keep=keep)


def _check_device(job: Job, device: Any) -> None:
    """Raises:
    MachineError: the job needs a CUDA device, and there is none.
    """
    import torch

    if device.type == "cpu" and job.memory_snapshot:
        raise MachineError("--memory-snapshot needs a CUDA device, and there is none: leave it out")
    graphs = job.workload.knobs.cuda_graph
    if device.type == "cpu" and graphs != "none":
        raise MachineError(f"knobs.cuda_graph={graphs} needs a CUDA device, and there is none: use none")
    if graphs != "none" and job.warmup < 2:
        raise UserError(f"knobs.cuda_graph={graphs} is captured after warm-up steps: use --warmup 2 or more")
    if device.type == "cuda" and job.memory_limit:
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(job.memory_limit / total, 1.0), device)


def _import_megatron(job: Job) -> dict[str, str]:
    """Import megatron.core and prove where it came from.

    Raises:
        UserError: it is missing, broken, or not the one that `--megatron` names.
    """
    try:
        import megatron.core
    except ImportError as error:
        raise UserError(f"megatron-core cannot be imported ({error}): pip install megatron-core") from None
    path = Path(str(megatron.core.__file__)).resolve().parent
    if job.megatron and not path.is_relative_to(Path(job.megatron).resolve()):
        raise UserError(f"--megatron {job.megatron} was given, but megatron.core was imported from {path}")
    version = str(getattr(megatron.core, "__version__", "unknown"))
    return {"version": version, "path": str(path), "commit": git_commit(path)}


def _precision(asked: str, device: Any) -> Any:
    import torch

    if asked == "auto":
        asked = "bf16" if device.type == "cuda" else "fp32"
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[asked]


def _environment(device: Any, dtype: Any, threads: int, megatron: dict[str, str], bridge: list[str]) -> dict[str, Any]:
    import torch

    from vlmprof.workload.model import has_transformer_engine

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    packages: dict[str, Any] = {package: {"version": version} for package, version in package_versions().items()}
    if device.type == "cuda" and not has_transformer_engine(device):
        packages.pop("transformer-engine", None)  # installed, but it does not load: layers are Megatron's local ones
    packages["torch"] = {"version": torch.__version__, "path": str(Path(torch.__file__).parent)}
    packages["megatron-core"] = megatron
    short = platform_name(name) if device.type == "cuda" else "cpu"
    return {
        "platform": f"{short}-x{ranks}",
        "device": name,
        "precision": "bf16" if dtype == torch.bfloat16 else "fp32",
        "ranks": ranks,
        "threads": threads,
        "packages": packages,
        "host": host_facts(),
        "variables": relevant_variables(),
        "bridge": bridge,
    }


CLASSES: tuple[tuple[str, FailureClass], ...] = (
    (r"OutOfMemoryError:", "oom"),
    (r"MemoryError:|can't allocate memory", "host-oom"),
    (r"No space left on device|Address already in use|EADDRINUSE", "setup"),
)
"""(regular expression over `Type: message`, class): what the exception itself is sure of."""


def _matches(error: BaseException, pattern: str) -> bool:
    return re.search(pattern, f"{type(error).__name__}: {error}") is not None


DEVICES = (r"GB300", r"GB200", r"B300", r"B200", r"H200", r"H100(?! PCIe)", r"A100")
"""What platforms of known peak are called by, in the device's name; the others go by the whole of it."""


def platform_name(device: str) -> str:
    """`h200` of `NVIDIA H200`, `a100` of `NVIDIA A100-SXM4-80GB`, `geforce-rtx-4090` of `NVIDIA GeForce RTX 4090`."""
    known = next((match[0] for pattern in DEVICES if (match := re.search(pattern, device))), None)
    return (known or re.sub(r"[^A-Za-z0-9]+", "-", device.replace("NVIDIA", "")).strip("-")).lower()


def _describe(error: BaseException) -> dict[str, Any]:
    """What is known of a failure here; the launcher classifies it."""
    if isinstance(getattr(error, "outcome", None), dict):
        return dict(error.outcome)  # type: ignore[attr-defined]  # a NonFiniteError: it knows better than its stack
    frames = traceback.extract_tb(error.__traceback__)
    ours = Path(__file__).parent
    around = (str(ours.parent / "stages"), str(ours / "bridge.py"))  # ours, around what failed
    told = [frame for frame in frames if not frame.filename.startswith(around) and "/torch/_" not in frame.filename]
    last = told[-1] if told else None
    stack = [Frame(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(frames)]
    stage, phase = place_of_frames(stack)
    return {
        **({"stage": stage, "phase": phase} if stage else {}),
        "class": next((name for kinds, name in CLASSES if _matches(error, kinds)), "crash"),
        "message": f"{type(error).__name__}: {error}"[:2000],
        "evidence": [f"{last.filename}:{last.lineno} in {last.name}"] if last else [],
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m vlmprof.training.worker JOB.json")
    sys.exit(main(sys.argv[1]))
