"""Megatron's world: process group, parallel state and random seeds, on one process or under torchrun."""

import inspect
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
        known = inspect.signature(model_parallel_cuda_manual_seed).parameters
        # A tracker that is safe to capture, also where an earlier run of this process had another.
        graphed = {"te_rng_tracker": workload.knobs.cuda_graph != "none", "force_reset_rng": device.type == "cuda"}
        model_parallel_cuda_manual_seed(workload.seed, **{n: on for n, on in graphed.items() if on and n in known})
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
