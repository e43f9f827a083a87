"""CUDA graphs of decoder layers, by Megatron's own machinery: `local` captures itself in its first step, and
`transformer_engine` is captured by Megatron's helper when the warm-up is over, as Megatron-LM's training does."""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state

from vlmprof.errors import UserError
from vlmprof.workload.spec import Workload

__all__ = ["graph_capture", "settle_batches"]


class _Chunk:
    """The language model as Megatron's helper looks for it: with its layers at the top, and the buffers of its DDP."""

    def __init__(self, wrapped: torch.nn.Module) -> None:
        self.zero_grad_buffer = wrapped.zero_grad_buffer
        self._model: Any = wrapped.module.language_model  # type: ignore[union-attr]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def settle_batches(workload: Workload) -> None:
    """Tell Megatron's calculator how many micro-batches a step has: its CUDA graphs ask."""
    from megatron.core import num_microbatches_calculator as calculator

    calculator.unset_num_microbatches_calculator()
    calculator.init_num_microbatches_calculator(
        rank=torch.distributed.get_rank(),
        rampup_batch_size=None,
        global_batch_size=workload.knobs.global_batch_size,
        micro_batch_size=workload.knobs.micro_batch_size,
        data_parallel_size=parallel_state.get_data_parallel_world_size(),
    )


def graph_capture(workload: Workload, model: torch.nn.Module, optimizer: Any) -> Callable[[], None] | None:
    """What to call, between two steps, to capture the graphs; None where nothing is to be done.

    Raises:
        UserError: this version of Megatron has no such helper.
    """
    if workload.knobs.cuda_graph != "transformer_engine":
        return None
    settle_batches(workload)
    try:
        from megatron.core.transformer.cuda_graphs import TECudaGraphHelper
    except ImportError:
        raise UserError(
            "this megatron-core has no helper for knobs.cuda_graph=transformer_engine: use a newer one, or local"
        ) from None
    helper = TECudaGraphHelper(
        [_Chunk(model)],
        model.config,
        workload.data.seq_length,
        workload.knobs.micro_batch_size,
        [optimizer],
    )
    capture: Callable[[], None] = helper.create_cudagraphs
    return capture
