"""Starts worker processes, watches them, times them out, cleans up after them and collects what they told.

`run_workload` is the one way in. Nothing here imports torch.
"""

from vlmprof.launch.runner import RunOptions, run_workload, run_workloads

__all__ = ["RunOptions", "run_workload", "run_workloads"]
