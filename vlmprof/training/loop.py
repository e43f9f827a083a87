"""The training loop, top to bottom: Megatron's own DDP, optimizer and schedules, observed by an attached profile."""

import contextlib
import functools
import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from vlmprof.profile import Profile
from vlmprof.records.journal import Journal
from vlmprof.records.schedule import PlannedStep
from vlmprof.stages.clock import Clock
from vlmprof.stages.finiteness import NonFiniteError, first_in_forward, last_in_gradients
from vlmprof.stages.memory import MemoryCounter
from vlmprof.stages.observers import NOTHING, Keep
from vlmprof.stages.ownership import lasting_tensors, parameter_stages
from vlmprof.training.graphs import graph_capture
from vlmprof.training.loading import Loader
from vlmprof.workload.batches import MicroBatch, make_micro_batch
from vlmprof.workload.flops import stage_flops, step_flops, useful_flops
from vlmprof.workload.initial import initialise
from vlmprof.workload.model import build_model
from vlmprof.workload.packing import Sequence, Step, plan_steps
from vlmprof.workload.samples import SampleSource
from vlmprof.workload.spec import Workload

__all__ = ["train"]

LEARNING_RATE = 1e-3
CULPRIT_SECONDS = 2.0
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
    keep: Keep = NOTHING,
) -> None:
    """Train the workload along `schedule`; every step is told to `journal`. `clock` is the device's unless given.

    With `memory_limit` (bytes) an allocation above it raises `torch.OutOfMemoryError`: on a GPU by the allocator
    itself, elsewhere by counting everything from the first parameter on.
    """
    last_warm = next((n for n, planned in enumerate(schedule) if planned.kind != "plain" or not planned.warmup), 0) - 1
    planned_batches = [planned.batch for planned in schedule]
    batches = [*itertools.islice(plan_steps(workload, source), 1 + max(planned_batches))]
    data = workload.data
    journal.tell("plan", realism=source.realism, source=data.path or data.kind, skipped=source.skipped)
    counter = MemoryCounter(memory_limit)
    try:
        with counter if memory_limit and device.type == "cpu" else contextlib.nullcontext():
            model, optimizer = build(workload, dtype, device)
    except torch.OutOfMemoryError:
        held = {"building": {"tensors": counter.live or torch.cuda.memory_allocated()}}
        journal.tell("where", stage="building", memory={"held": held, "saved": {}, "tokens_per_expert": []})
        raise
    model.config.finalize_model_grads_func = finalize_model_grads
    if dtype == torch.bfloat16:
        model.config.grad_scale_func = optimizer.scale_loss
    forward_backward = get_forward_backward_func()
    gc.collect()
    gc.freeze()  # what is built stays: collections between steps need not look at it
    capture = graph_capture(workload, model, optimizer)
    profile = Profile([model], optimizer, schedule, journal, workload.name, clock, counter, keep)
    share = Share.of_this_rank(workload)
    read = functools.partial(read_micro_batch, workload, share, dtype, batches)
    in_order = functools.partial(read_in_order, read, planned_batches)
    loader = Loader(len(schedule), share.micro_batches, in_order, device, pin=workload.knobs.cuda_graph == "none")

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
                data_iterator=profile.data(loader.next_step()),
                model=[model],
                num_microbatches=share.micro_batches,
                seq_length=workload.data.seq_length,
                micro_batch_size=workload.knobs.micro_batch_size,
                forward_only=False,
            )
            sums = torch.stack([report["loss"] for report in reports]).tolist()  # (sum, useful tokens) a micro-batch
            _check_losses(
                profile, workload, model, [total for total, _ in sums], functools.partial(read, profile.planned.batch)
            )
            _, grad_norm, _ = optimizer.step()
            if not math.isfinite(float(grad_norm or 0.0)):
                raise _bad_gradient(profile, model)
            if capture and profile.index == last_warm:
                capture()
            total, useful = (sum(column) for column in zip(*sums, strict=True))
            profile.step(
                total / max(useful, 1.0),
                float(grad_norm or 0.0),
                work_of(workload, step),
                loss_sum=total,
                loss_tokens=useful,
                own=share.work(step),
            )
    except BaseException:
        planned = profile.planned
        profile.tell_where(lambda number: share.shapes(batches[planned.batch], number) if planned else {})
        raise
    finally:
        profile.close()
        gc.unfreeze()
        let_go(model, optimizer)


def let_go(model: torch.nn.Module, optimizer: Any) -> None:
    """Free what was trained: autograd's nodes keep Megatron's DDP alive where the collector cannot see it, and the next
    run in this process would find the memory taken."""
    owners = parameter_stages([model], [])
    with contextlib.suppress(RuntimeError):  # of a device that has failed, which is told already
        for tensor, *_ in [*lasting_tensors([model], optimizer, owners)]:
            tensor.untyped_storage().resize_(0)


def _check_losses(
    profile: Profile,
    workload: Workload,
    model: torch.nn.Module,
    losses: list[float],
    read: Callable[[int], MicroBatch],
) -> None:
    """Stop before the optimizer spreads a loss that is not finite; say which stage of which micro-batch made it.

    Raises:
        NonFiniteError: on the rank whose own loss it is.
    """
    number = next((number for number, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if number is None:
        return
    where = None
    if workload.layout.ep == 1:  # else a forward needs the other ranks, which are not coming
        batch = read(number).to(next(model.parameters()).device)
        where = first_in_forward(profile.places, lambda: model(batch))
    note = "" if where or workload.layout.ep > 1 else "; a second forward of it was finite"
    stage, layer = where or (None, None)
    raise NonFiniteError(
        f"the loss of micro-batch {number} is {losses[number]}{note}",
        micro_batch=number,
        stage=stage,
        layer=layer,
        phase="forward",
        step=profile.index,
    )


def _bad_gradient(profile: Profile, model: torch.nn.Module) -> NonFiniteError:
    stage, layer = last_in_gradients([model], profile.places) or (None, None)
    if parallel_state.get_data_parallel_world_size() > 1:
        time.sleep(CULPRIT_SECONDS)  # gradients are everybody's: a rank whose own loss is at fault speaks first
    return NonFiniteError(
        "the gradient norm is not finite",
        shared=True,
        stage=stage,
        layer=layer,
        phase="backward",
        step=profile.index,
    )


@dataclass(frozen=True)
class Share:
    """What of each global batch is this rank's: of every `ranks` micro-batches in a row, the `rank`-th."""

    rank: int
    ranks: int
    micro_batches: int
    size: int

    @staticmethod
    def of_this_rank(workload: Workload) -> "Share":
        rank = parallel_state.get_data_parallel_rank()
        ranks = parallel_state.get_data_parallel_world_size()
        size = workload.knobs.micro_batch_size
        return Share(rank, ranks, workload.knobs.global_batch_size // (size * ranks), size)

    def sequences(self, step: Step, number: int) -> tuple[Sequence, ...]:
        """The sequences of this rank's micro-batch `number`."""
        first = (number * self.ranks + self.rank) * self.size
        return step.sequences[first : first + self.size]

    def work(self, step: Step) -> dict[str, int]:
        """Patches and useful tokens of a step that are this rank's."""
        own = [sequence for number in range(self.micro_batches) for sequence in self.sequences(step, number)]
        return {
            "patches": sum(count for sequence in own for count in sequence.patches),
            "useful_tokens": sum(sequence.useful_tokens for sequence in own),
        }

    def shapes(self, step: Step, number: int) -> dict[str, Any]:
        """What micro-batch `number` of a step consists of."""
        sequences = self.sequences(step, number)
        return {
            "sequences": len(sequences),
            "tokens": [len(sequence.tokens) for sequence in sequences],
            "images": [[p.height, p.width] for sequence in sequences for p in sequence.pictures],
            "patches": [count for sequence in sequences for count in sequence.patches],
        }


def build(workload: Workload, dtype: torch.dtype, device: torch.device) -> tuple[Any, Any]:
    """The model in Megatron's DDP, and its optimizer."""
    model = build_model(workload, dtype, device).to(device)
    local = workload.model.decoder.num_moe_experts // workload.layout.ep
    initialise(model, workload.seed, first_expert=local * parallel_state.get_expert_model_parallel_rank())
    for part, knob in FROZEN_PARTS.items():
        model.get_submodule(part).requires_grad_(not getattr(workload.knobs, knob))
    # As Megatron-LM's own training: gradients of bf16 parameters are summed in fp32.
    settings = DistributedDataParallelConfig(grad_reduce_in_fp32=dtype == torch.bfloat16)
    with _stream_of_ddp(workload):
        model = DistributedDataParallel(model.config, settings, model)
    config = OptimizerConfig(optimizer="adam", lr=LEARNING_RATE, bf16=dtype == torch.bfloat16, params_dtype=dtype)
    return model, get_megatron_optimizer(config, [model])


@contextlib.contextmanager
def _stream_of_ddp(workload: Workload) -> Iterator[None]:
    """A stream of its own where CUDA graphs will be captured: gradients are accumulated on the stream that DDP is made
    on, and a capture cannot wait for the default one. Megatron-LM's training does the same."""
    if workload.knobs.cuda_graph == "none":
        yield
        return
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


def useful_loss(mask: Tensor, losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Megatron's loss function protocol with `calculate_per_token_loss`: (sum, tokens, report)."""
    total = (losses.float() * mask).sum()
    useful = mask.sum().to(torch.int32)
    return total, useful, {"loss": torch.stack([total.detach(), useful.float()])}


def read_micro_batch(
    workload: Workload, share: Share, dtype: torch.dtype, batches: list[Step], batch: int, number: int
) -> MicroBatch:
    """This rank's micro-batch `number` of a batch, in host memory."""
    return make_micro_batch(workload, share.sequences(batches[batch], number), dtype)


def read_in_order(read: Callable[[int, int], MicroBatch], batches: list[int], step: int, number: int) -> MicroBatch:
    """The same by step: kinds of one run replay the same batches."""
    return read(batches[step], number)


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
