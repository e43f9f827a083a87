"""What a night's bisect of a failure tries at every commit: `main(JOB, WORKTREE)`, in a process of its own, which
`bisect` starts, proves and ends.

It does what the night did: trains the suite's workload with the checkout, and leaves the record in `$VLMPROF_OUT`; the
same failure there is the same failure here. Ends with 0 (no failure), 2 (refused, as the night was), 3 (training
failed), 125 (cannot be told).
"""

import os
import sys
from pathlib import Path

from vlmprof.errors import Exit, UserError
from vlmprof.launch import run_workload
from vlmprof.nightly.suite import SuiteWorkload
from vlmprof.records.figures import Record
from vlmprof.workload.spec import Workload

__all__ = ["ProbeJob", "main"]

CANNOT_TELL = 125


class ProbeJob(Record):
    """What to try. Its file is named after its content, as measurements are kept by the command that made them."""

    workload: Workload
    entry: SuiteWorkload


def main(job_file: str, worktree: str) -> int:
    """Try it; returns the exit code."""
    job = ProbeJob.model_validate_json(Path(job_file).read_text(encoding="utf-8"))
    out = Path(os.environ["VLMPROF_OUT"])
    os.chdir(out)  # a worker looks for modules where it starts
    try:
        record, folder = run_workload(job.workload, job.entry.options(Path(worktree), out))
    except UserError as error:
        print(f"vlmprof: {error}", file=sys.stderr)
        # a checkout that is refused shows the failure or does not, as git bisect run has it
        return int(Exit.INPUT) if error.exit_code == Exit.INPUT else CANNOT_TELL
    if record.outcome.status == "interrupted":
        return int(Exit.INTERRUPTED)
    if record.outcome.status == "failed":
        print(f"{record.outcome.failure_class}: {record.outcome.message} ({folder})")
        return int(Exit.RUN_FAILED)
    print(f"{len(record.steps)} steps, no failure")
    return int(Exit.FINE)
