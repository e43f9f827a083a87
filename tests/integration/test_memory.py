"""Bytes against independent counts, on real Megatron: exact, and where they are estimates, followed and looked at."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._tools.mem_tracker import MemTracker

import vlmprof
from tests.integration.training import losses, small, train_here
from vlmprof.advice import advise
from vlmprof.advice.memory import freed_by_freezing_vision, freed_by_full_recompute, freed_by_half_micro_batch
from vlmprof.records.figures import Figure
from vlmprof.records.run import Run
from vlmprof.records.schedule import PlannedStep
from vlmprof.workload.packing import plan_steps
from vlmprof.workload.samples import open_source
from vlmprof.workload.spec import Workload

pytestmark = [pytest.mark.usefixtures("megatron"), pytest.mark.filterwarnings("ignore")]

MIB = 2**20
CPU = torch.device("cpu")
COUNTED = [PlannedStep("counted", 0, warmup=True), *(PlannedStep("counted", batch) for batch in (0, 1, 2))]


def counted(workload: Workload, schedule: list[PlannedStep] = COUNTED) -> Run:
    return train_here(workload, schedule=schedule)


def total(run: Run, name: str) -> float:
    return sum(getattr(row.memory, name).value for row in run.stages if row.memory and getattr(row.memory, name))


def of(run: Run, stage: str, name: str) -> float:
    rows = [getattr(row.memory, name) for row in run.stages if row.name == stage and row.memory]
    return sum(row.value for row in rows if row is not None)


@pytest.mark.parametrize("assignments", [(), ("freeze_vision=true",), ("share_embeddings_and_output_weights=true",)])
def test_parameter_gradient_and_optimizer_bytes_are_exact(assignments: tuple[str, ...]) -> None:
    run = counted(small(*assignments))
    parameters, trained = run.parameters["total"], run.parameters["trained"]
    assert total(run, "parameters") == 4 * parameters
    assert total(run, "gradients") == 4 * trained
    assert run.memory is not None
    assert run.memory.optimizer_state.value == pytest.approx(8 * trained, abs=4 * 200)  # a step count a parameter
    experts = [p for p in _built(small(*assignments)).named_parameters() if "local_experts" in p[0]]
    assert of(run, "decoder.experts", "parameters") == sum(4 * p.numel() for _, p in experts)
    assert of(run, "decoder.experts", "optimizer_state") >= 2 * of(run, "decoder.experts", "parameters")


def _built(workload: Workload) -> Any:
    from vlmprof.workload.initial import initialise
    from vlmprof.workload.model import build_model

    model = build_model(workload, torch.float32)
    initialise(model, workload.seed)
    for part, frozen in (("vision_model", workload.knobs.freeze_vision),):
        model.get_submodule(part).requires_grad_(not frozen)
    return model


def _micro_batches(workload: Workload, batch: int) -> list[Any]:
    from vlmprof.training.loop import Share, read_micro_batch

    batches = [*itertools.islice(plan_steps(workload, open_source(workload)), batch + 1)]
    share = Share.of_this_rank(workload)
    numbers = range(share.micro_batches)
    return [read_micro_batch(workload, share, torch.float32, batches, batch, number) for number in numbers]


def saved_by_hooks(workload: Workload, batch: int) -> int:
    """The most that the forward of one micro-batch saves: unique storages, parameters excluded, held while counting."""
    model = _built(workload)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    most = 0
    for micro_batch in _micro_batches(workload, batch):
        held: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: Tensor, held: dict[int, torch.UntypedStorage] = held) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                held[storage.data_ptr()] = storage
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            (model(micro_batch) * micro_batch.loss_mask).sum()
        most = max(most, sum(storage.nbytes() for storage in held.values()))
    return most


@pytest.mark.parametrize(
    "assignments",
    [
        (),
        ("micro_batch_size=2",),
        ("seq_length=128", "max_pixels=20000"),
        ("recompute=full",),
        ("recompute=selective",),
        ("recompute=selective", 'recompute_modules=["moe"]'),
        ("freeze_vision=true",),
        ("dispatcher=allgather",),
    ],
)
def test_saved_activations_equal_an_independent_count(assignments: tuple[str, ...]) -> None:
    workload = small(*assignments)
    run = counted(workload)
    assert run.memory is not None
    assert isinstance(run.memory.saved_activations, Figure)
    for batch, counted_bytes in enumerate(run.memory.saved_activations.samples):
        assert counted_bytes == saved_by_hooks(workload, batch)


@pytest.mark.parametrize("assignments", [(), ("recompute=full",), ("seq_length=128", "images_per_sample=2")])
def test_the_peak_is_that_of_torchs_memory_tracker(assignments: tuple[str, ...]) -> None:
    """On a loop that both can follow: one micro-batch, a torch optimizer (the tracker cannot take Megatron's DDP)."""
    workload = small(*assignments)
    micro_batch = _micro_batches(workload, 0)[0]

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        (model(micro_batch) * micro_batch.loss_mask).sum().backward()
        optimizer.step()

    model = _built(workload)
    optimizer = torch.optim.AdamW(model.parameters())
    profile = vlmprof.attach(model, optimizer, schedule=[PlannedStep("counted", 0)])
    step(model, optimizer)
    profile.step()
    ours = profile.record().memory
    model = _built(workload)
    optimizer = torch.optim.AdamW(model.parameters())
    tracker = MemTracker()
    tracker.track_external(model, optimizer, micro_batch.patches)  # made before, saved for backward
    with tracker:
        step(model, optimizer)
    theirs = sum(row["Total"] for row in tracker.get_tracker_snapshot("peak").values())
    assert ours is not None
    assert ours.peak.value == pytest.approx(theirs, rel=0.01)


def test_two_runs_give_identical_bytes() -> None:
    one, two = counted(small()), counted(small())
    assert [row.memory for row in one.stages] == [row.memory for row in two.stages]
    assert one.memory is not None
    assert two.memory is not None
    assert one.memory.peak == two.memory.peak
    assert one.router == two.router


def planted(monkeypatch: pytest.MonkeyPatch, owner: type, keep: Callable[[Tensor], None]) -> None:
    plain = owner.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        keep(torch.zeros(64 * MIB, dtype=torch.uint8))
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(owner, "forward", forward)


def test_what_the_projector_keeps_shows_there_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from vlmprof.workload.vision import Merger

    before = counted(small())
    kept: list[Tensor] = []
    planted(monkeypatch, Merger, lambda tensor: kept.append(tensor) if not kept else None)
    after = counted(small())
    grown = {
        row.name: of(after, row.name, "held_after") - of(before, row.name, "held_after")
        for row in after.stages
        if row.phase == "forward"
    }
    assert grown.pop("projector") == 64 * MIB
    assert set(grown.values()) == {0}
    assert after.memory is not None
    assert after.memory.growth is not None
    assert not after.memory.growth.leak


def test_what_the_decoder_leaks_each_step_shows_as_its_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer.transformer_layer import TransformerLayer

    leaked: list[Tensor] = []
    calls = itertools.count()
    plain_layer = TransformerLayer.forward

    def layer(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.config.num_moe_experts and self.layer_number == 1 and next(calls) % 2 == 0:  # two micro-batches a step
            leaked.append(torch.zeros(64 * MIB, dtype=torch.uint8))
        return plain_layer(self, *args, **kwargs)

    monkeypatch.setattr(TransformerLayer, "forward", layer)
    run = advise(counted(small()))
    assert run.memory is not None
    growth = run.memory.growth
    assert growth is not None
    assert growth.leak
    assert growth.bytes_per_step.value == pytest.approx(64 * MIB, rel=0.01)
    assert list(growth.by_stage) == ["decoder"]
    finding = next(finding for finding in run.findings if finding.rule == "leak")
    assert "64.0 MiB a counted step" in finding.text


@pytest.mark.parametrize("kind", ["real", "text-only"])
def test_following_the_advice_on_recompute_frees_what_was_said(kind: str) -> None:
    run, followed = (counted(small(*extra, kind=kind)) for extra in ((), ("recompute=full",)))
    said = freed_by_full_recompute(run)
    assert said is not None
    assert _saved(run) - _saved(followed) == pytest.approx(said["freed"], rel=0.05)


def test_following_the_advice_on_freezing_frees_what_was_said() -> None:
    run, followed = (counted(small(*extra)) for extra in ((), ("freeze_vision=true",)))
    said = freed_by_freezing_vision(run)
    assert said is not None
    freed = _saved(run) - _saved(followed)
    for name in ("gradients", "optimizer_state"):
        freed += getattr(run.memory, name).value - getattr(followed.memory, name).value
    assert freed == pytest.approx(said["freed"], rel=0.05)


def test_following_the_advice_on_the_micro_batch_frees_what_was_said() -> None:
    run, followed = (counted(small(f"micro_batch_size={size}", kind="mock")) for size in (2, 1))
    said = freed_by_half_micro_batch(run)
    assert said is not None
    assert _saved(run) - _saved(followed) == pytest.approx(said["freed"], rel=0.05)


def _saved(run: Run) -> float:
    assert run.memory is not None
    return run.memory.saved_activations.value


def test_a_memory_limit_is_an_oom_with_all_that_is_known() -> None:
    workload = small()
    peak = counted(workload).memory.peak.value
    run = advise(train_here(workload, schedule=COUNTED, memory_limit=int(peak * 0.9)))
    outcome = run.outcome
    assert (outcome.status, outcome.failure_class) == ("failed", "oom")
    assert outcome.stage is not None
    assert outcome.phase in ("forward", "backward")
    assert outcome.micro_batch is not None
    assert outcome.shapes is not None
    assert outcome.shapes["patches"]
    assert sum(outcome.shapes["tokens_per_expert"][0]) == workload.data.seq_length * 2
    assert outcome.held is not None
    held = sum(size for row in outcome.held.values() for size in row.values())
    assert held <= peak * 0.9
    assert {"oom-recompute", "oom-freeze-vision"} <= {finding.rule for finding in run.findings}
    assert "of --memory-limit are in use" in (outcome.message or "")


def test_following_the_advice_after_an_oom_lets_it_run() -> None:
    peak = counted(small()).memory.peak.value
    limit = int(peak * 0.97)
    assert train_here(small(), schedule=COUNTED, memory_limit=limit).outcome.failure_class == "oom"
    assert train_here(small("recompute=full"), schedule=COUNTED, memory_limit=limit).outcome.status == "ok"


def test_a_limit_below_the_parameters_fails_while_building() -> None:
    run = train_here(small(), schedule=COUNTED, memory_limit=5 * MIB)
    assert (run.outcome.failure_class, run.outcome.stage) == ("oom", "building")


def test_counting_changes_no_loss() -> None:
    plain = [PlannedStep("plain", planned.batch, planned.warmup) for planned in COUNTED]
    assert losses(counted(small())) == losses(counted(small(), plain))


def test_experts_get_every_token_and_balance_and_capacity_show() -> None:
    workload = small()
    run, balanced = counted(workload), counted(small("force_balanced_routing=true"))
    tokens = workload.data.seq_length * workload.knobs.global_batch_size * workload.model.decoder.moe_router_topk
    for layer in run.router.layers:
        assert sum(layer.tokens_per_expert) == tokens
        assert layer.imbalance >= 1
        assert 0 < layer.entropy <= 1
    assert run.router.dropped_tokens.value == 0
    assert balanced.router.imbalance.value < run.router.imbalance.value
    assert balanced.router.entropy.value > 0.97
    capped = counted(small("expert_capacity_factor=1.0"))
    assert capped.router.dropped_tokens.value > 0
    assert run.router.bytes_sent.value == 0  # one rank
