"""Starts worker processes, watches them, times them out, cleans up after them and collects what they told.

`run_workload` starts them itself; `run_joined` is one rank of a job that torchrun or srun started. No torch here.
"""

from vlmprof.launch.joined import joined_rank, run_joined
from vlmprof.launch.runner import RunOptions, run_workload, run_workloads

__all__ = ["RunOptions", "joined_rank", "run_joined", "run_workload", "run_workloads"]
