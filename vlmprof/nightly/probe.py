"""What a night's bisect tries at every commit, as a program of its own, which `bisect` starts, times and ends:

    python -P -m vlmprof.nightly.probe JOB WORKTREE

It does what the night did: trains the suite's workload with the checkout, and leaves the record in `$VLMPROF_OUT`; the
same failure there is the same failure here. Where a metric is hunted, it holds the record against the last good one;
where a time is, it runs the last good commit and this one in turn. Ends with 0 (good), 1 (what is hunted is worse), 3
(training failed), 125 (cannot be told).
"""

import json
import os
import sys
from pathlib import Path
from typing import Literal

from vlmprof.errors import Exit, UserError
from vlmprof.launch import run_workload
from vlmprof.nightly.held_against import exactly, of_metrics, of_times, untold_times
from vlmprof.nightly.suite import SuiteWorkload
from vlmprof.nightly.times import Checkout, interleave
from vlmprof.nightly.verdict import Problem
from vlmprof.records.figures import Record
from vlmprof.records.store import read_run

__all__ = ["ProbeJob", "main"]

CANNOT_TELL = 125


class ProbeJob(Record):
    """What to try. Its file is named after its content, as measurements are kept by the command that made them."""

    name: str
    entry: SuiteWorkload
    kind: Literal["failure", "metric", "time"]
    hunted: tuple[str, ...] = ()
    """Names of metrics."""
    good: str = ""
    """The last good commit's record where a metric is hunted; a checkout of it where a time is."""


def main(job_file: Path, worktree: Path) -> int:
    """Try it; returns the exit code."""
    job = ProbeJob.model_validate_json(job_file.read_text(encoding="utf-8"))
    out = Path(os.environ["VLMPROF_OUT"])
    try:
        return _in_turns(job, worktree, out) if job.kind == "time" else _train(job, worktree, out)
    except UserError as error:
        print(f"vlmprof: {error}", file=sys.stderr)
        # where a failure is hunted, a checkout that is refused shows it or does not, as git bisect run has it
        return int(error.exit_code) if job.kind == "failure" and error.exit_code == Exit.INPUT else CANNOT_TELL


def _train(job: ProbeJob, worktree: Path, out: Path) -> int:
    record, folder = run_workload(job.entry.load(job.name), job.entry.options(worktree, out))
    if record.outcome.status == "interrupted":
        return int(Exit.INTERRUPTED)
    if record.outcome.status == "failed":
        print(f"{record.outcome.failure_class}: {record.outcome.message} ({folder})")
        return int(Exit.RUN_FAILED)
    if job.kind == "metric":
        return _tell(of_metrics(exactly([read_run(Path(job.good))], record, ("last good", "this commit")), job.hunted))
    print(f"{len(record.steps)} steps, no failure")
    return int(Exit.FINE)


def _in_turns(job: ProbeJob, worktree: Path, out: Path) -> int:
    """The last good commit and this one, in turns.

    The bisect's witness would see the last good commit's modules as well, and take them for the wrong ones: so the
    records say where this commit's came from.
    """
    proof = os.environ.pop("VLMPROF_PROOF", "")
    sides = Checkout(Path(job.good), "last good"), Checkout(worktree, "this commit")
    comparison, runs = interleave(job.name, job.entry, *sides, out, print)
    for run in runs if proof else ():
        core = run.environment.packages["megatron-core"].path if run.environment else ""
        with Path(proof).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"module": "megatron.core", "origin": f"{core}/__init__.py"}) + "\n")
    if untold := untold_times(comparison):
        print(untold)
        return CANNOT_TELL
    return _tell(of_times(comparison, job.hunted))


def _tell(problem: Problem | None) -> int:
    print(problem.text if problem else "nothing that is hunted is worse")
    return int(Exit.FOUND if problem else Exit.FINE)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
