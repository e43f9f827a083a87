"""Megatron's world: process group, parallel state and random seeds, on one process or under torchrun."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in __all__

from vlmprof.workload.spec import Workload

__all__ = ["megatron_world"]


@contextmanager
def megatron_world(workload: Workload, device: torch.device) -> Iterator[None]:
    """Process group and Megatron's parallel state for the block."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    backend = "nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        layout = workload.layout
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            context_parallel_size=layout.cp,
            expert_model_parallel_size=layout.ep,
            expert_tensor_parallel_size=layout.etp or None,
        )
        torch.manual_seed(workload.seed)
        graphed = {"te_rng_tracker": True} if workload.knobs.cuda_graph != "none" else {}  # a tracker safe to capture
        model_parallel_cuda_manual_seed(workload.seed, **graphed)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
