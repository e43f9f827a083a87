"""The training loop, top to bottom: Megatron's own DDP, optimizer and schedules, observed by an attached profile."""

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from vlmprof.profile import Profile
from vlmprof.records.journal import Journal
from vlmprof.records.schedule import PlannedStep
from vlmprof.stages.clock import Clock
from vlmprof.stages.memory import MemoryCounter
from vlmprof.workload.batches import MicroBatch, make_micro_batch
from vlmprof.workload.flops import stage_flops, step_flops, useful_flops
from vlmprof.workload.initial import initialise
from vlmprof.workload.model import build_model
from vlmprof.workload.packing import Step, plan_steps
from vlmprof.workload.samples import SampleSource
from vlmprof.workload.spec import Workload

__all__ = ["train"]

LEARNING_RATE = 1e-3
FROZEN_PARTS = {
    "vision_model": "freeze_vision",
    "vision_projection": "freeze_projector",
    "language_model": "freeze_decoder",
}


def train(
    workload: Workload,
    source: SampleSource,
    schedule: list[PlannedStep],
    dtype: torch.dtype,
    device: torch.device,
    journal: Journal,
    clock: Clock | None = None,
    memory_limit: int = 0,
) -> None:
    """Train the workload along `schedule`; every step is told to `journal`. `clock` is the wall clock unless given.

    With `memory_limit` (bytes) everything is counted from the first parameter on, and an allocation above it raises
    `torch.OutOfMemoryError`.
    """
    batches = [*itertools.islice(plan_steps(workload, source), 1 + max(planned.batch for planned in schedule))]
    data = workload.data
    journal.tell("plan", realism=source.realism, source=data.path or data.kind, skipped=source.skipped)
    counter = MemoryCounter(memory_limit)
    try:
        with counter if memory_limit else contextlib.nullcontext():
            model, optimizer = build(workload, dtype)
    except torch.OutOfMemoryError:
        held = {"building": {"tensors": counter.live}}
        journal.tell("where", stage="building", memory={"held": held, "saved": {}, "tokens_per_expert": []})
        raise
    model.config.finalize_model_grads_func = finalize_model_grads
    if dtype == torch.bfloat16:
        model.config.grad_scale_func = optimizer.scale_loss
    forward_backward = get_forward_backward_func()
    profile = Profile([model], optimizer, schedule, journal, workload.name, clock, counter)

    def forward_step(data: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[Tensor, Any]:
        batch = next(data)
        losses = model(batch)
        return losses, profile.staged("head", functools.partial(useful_loss, batch.loss_mask))

    try:
        while profile.planned is not None:
            step = batches[profile.planned.batch]
            model.zero_grad_buffer()
            optimizer.zero_grad()
            reports = forward_backward(
                forward_step_func=forward_step,
                data_iterator=profile.data(micro_batches(workload, step, dtype, device)),
                model=[model],
                num_microbatches=workload.knobs.global_batch_size // workload.knobs.micro_batch_size,
                seq_length=workload.data.seq_length,
                micro_batch_size=workload.knobs.micro_batch_size,
                forward_only=False,
            )
            _, grad_norm, _ = optimizer.step()
            total, useful = torch.stack([report["loss"] for report in reports]).sum(0).tolist()
            profile.step(total / max(useful, 1.0), float(grad_norm or 0.0), work_of(workload, step))
    except BaseException:
        planned = profile.planned
        profile.tell_where(lambda number: shapes_of(workload, batches[planned.batch], number) if planned else {})
        raise
    finally:
        profile.close()


def build(workload: Workload, dtype: torch.dtype) -> tuple[Any, Any]:
    """The model in Megatron's DDP, and its optimizer."""
    model = build_model(workload, dtype)
    initialise(model, workload.seed)
    for part, knob in FROZEN_PARTS.items():
        model.get_submodule(part).requires_grad_(not getattr(workload.knobs, knob))
    model = DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)
    config = OptimizerConfig(optimizer="adam", lr=LEARNING_RATE, bf16=dtype == torch.bfloat16, params_dtype=dtype)
    return model, get_megatron_optimizer(config, [model])


def shapes_of(workload: Workload, step: Step, number: int) -> dict[str, Any]:
    """What micro-batch `number` of a step consists of."""
    size = workload.knobs.micro_batch_size
    sequences = step.sequences[number * size : (number + 1) * size]
    return {
        "sequences": len(sequences),
        "seq_length": workload.data.seq_length,
        "tokens": [len(sequence.tokens) for sequence in sequences],
        "images": [[p.height, p.width] for sequence in sequences for p in sequence.pictures],
        "patches": [count for sequence in sequences for count in sequence.patches],
    }


def useful_loss(mask: Tensor, losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Megatron's loss function protocol with `calculate_per_token_loss`: (sum, tokens, report)."""
    total = (losses.float() * mask).sum()
    useful = mask.sum().to(torch.int32)
    return total, useful, {"loss": torch.stack([total.detach(), useful.float()])}


def micro_batches(workload: Workload, step: Step, dtype: torch.dtype, device: torch.device) -> Iterator[MicroBatch]:
    """The micro-batches of one step, each read when it is asked for."""
    size = workload.knobs.micro_batch_size
    for first in range(0, len(step.sequences), size):
        yield make_micro_batch(workload, step.sequences[first : first + size], dtype, device)


def work_of(workload: Workload, step: Step) -> dict[str, Any]:
    """What a step trained on, as `Profile.step` takes it."""
    lengths = [len(sequence.tokens) for sequence in step.sequences]
    tokens = len(lengths) * workload.data.seq_length
    return {
        "tokens": tokens,
        "useful_tokens": sum(sequence.useful_tokens for sequence in step.sequences),
        "padding_tokens": tokens - sum(lengths),
        "images": len(step.patches),
        "image_patches": sum(step.patches),
        "lengths": lengths,
        "patch_counts": list(step.patches),
        "flops": {
            "stages": stage_flops(workload, step.sequences),
            "model": step_flops(workload, step),
            "useful": useful_flops(workload, step),
        },
    }
