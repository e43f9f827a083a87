"""What the launcher asks of a worker: written beside the journal, so that a run folder says how it was made."""

from typing import Annotated

from pydantic import Field

from vlmprof.records.figures import Record
from vlmprof.records.run import StepKind
from vlmprof.workload.spec import Workload

__all__ = ["Job"]


class Job(Record):
    workload: Workload
    steps: int
    """Plain steps; the other kinds come on top."""
    warmup: int
    kinds: Annotated[tuple[StepKind, ...], Field(strict=False)] = ()
    """Step kinds besides plain."""
    threads: int = 1
    """Of torch inside an operation: one gives far steadier times on a shared machine."""
    megatron: str = ""
    skip_bad_samples: bool = False
    memory_limit: int = 0
    """Bytes; 0 means none."""
    nvtx: bool = False
    """NVTX ranges in plain steps, too, and cudaProfilerStart/Stop around the measured ones."""
    memory_snapshot: bool = False
