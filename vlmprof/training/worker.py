"""The worker process: `python -m vlmprof.training.worker JOB.json`. Tells its journal everything, then ends."""

import contextlib
import os
import sys
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmprof.errors import Exit, UserError
from vlmprof.lifeline import die_with_parent
from vlmprof.records.environment import git_commit, host_facts, package_versions, relevant_variables
from vlmprof.records.job import Job
from vlmprof.records.journal import FileJournal

__all__ = ["main"]


def main(job_file: str) -> int:
    """Do the job; the exit code is 0, or one of `Exit` after a `refused` or `failure` event."""
    die_with_parent()
    job = Job.model_validate_json(Path(job_file).read_text(encoding="utf-8"))
    rank = int(os.environ.get("RANK", "0"))
    with FileJournal(Path(job_file).parent / f"rank{rank}.jsonl") as journal:
        try:
            _work(job, journal)
        except UserError as error:
            journal.tell("refused", message=str(error), exit_code=int(error.exit_code))
            return int(error.exit_code)
        except Exception as error:
            traceback.print_exc()
            journal.tell("failure", outcome=_describe(error))
            return int(Exit.RUN_FAILED)
        journal.tell("done")
        return int(Exit.FINE)


def _work(job: Job, journal: FileJournal) -> None:
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
        megatron = _import_megatron(job)
        from vlmprof.records.schedule import plan_kinds
        from vlmprof.training.parallel import megatron_world
        from vlmprof.workload.samples import open_source

        workload = job.workload
        dtype = _precision(workload.knobs.precision, device)
        source = open_source(workload, job.skip_bad_samples)
        journal.tell("environment", environment=_environment(device, dtype, job.threads, megatron, applied))
        stack.enter_context(megatron_world(workload, device))
        from vlmprof.training.loop import train

        schedule = plan_kinds(job.steps, job.warmup, job.kinds)
        if job.memory_limit:
            schedule = [replace(planned, kind="counted") for planned in schedule]
        train(workload, source, schedule, dtype, device, journal, memory_limit=job.memory_limit)


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

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    packages: dict[str, Any] = {package: {"version": version} for package, version in package_versions().items()}
    packages["torch"] = {"version": torch.__version__, "path": str(Path(torch.__file__).parent)}
    packages["megatron-core"] = megatron
    short = name.lower().replace("nvidia", "").split()[0] if device.type == "cuda" else "cpu"
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


def _describe(error: BaseException) -> dict[str, Any]:
    """What is known of a failure here; the launcher classifies it."""
    frames = traceback.extract_tb(error.__traceback__)
    observers = str(Path(__file__).parent.parent / "stages")
    last = next((frame for frame in reversed(frames) if not frame.filename.startswith(observers)), None)
    return {
        "class": "oom" if type(error).__name__ == "OutOfMemoryError" else "crash",
        "message": f"{type(error).__name__}: {error}"[:2000],
        "evidence": [f"{last.filename}:{last.lineno} in {last.name}"] if last else [],
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m vlmprof.training.worker JOB.json")
    sys.exit(main(sys.argv[1]))
