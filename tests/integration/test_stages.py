"""Attribution on real Megatron: planted delays, recomputation, hooks that leave no trace."""

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.integration.training import losses, small, train_here
from vlmprof.records.run import Run
from vlmprof.stages.attribution import attribute
from vlmprof.stages.clock import WallClock
from vlmprof.stages.hooks import staged
from vlmprof.stages.recorder import Recorder

pytestmark = [pytest.mark.usefixtures("megatron"), pytest.mark.filterwarnings("ignore")]

Key = tuple[str, str]


class StoppedClock(WallClock):
    """Stands still but for the delays that a test plants, so that attribution can be held against exact figures."""

    source = "wall-clock"

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now

    def milliseconds(self, earlier: float, later: float) -> float:
        return later - earlier

    def sleep(self, milliseconds: float) -> None:
        self.now += milliseconds


class SlowBackward(torch.autograd.Function):
    """Does nothing forward; waits in backward."""

    @staticmethod
    def forward(ctx: object, value: Tensor, wait: Callable[[], None]) -> Tensor:
        ctx.wait = wait
        return value.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.wait()
        return gradient, None


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


def self_times(run: Run) -> dict[Key, float]:
    """(stage, phase) -> mean self ms of all that are not 0."""
    found = {}
    for row in run.stages:
        mean = sum(row.self_ms.samples) / len(row.self_ms.samples)
        if mean:
            found[row.name, row.phase] = mean
    return found


def delay_forward(monkeypatch: pytest.MonkeyPatch, owner: type, wait: Callable[[], None], layer: int | None) -> None:
    plain = owner.forward

    def slow(self: object, *args: object, **kwargs: object) -> object:
        if layer is None or self.layer_number == layer + 1:
            wait()
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(owner, "forward", slow)


def test_a_delay_in_one_router_shows_there_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, clock: StoppedClock
) -> None:
    from megatron.core.transformer.moe.router import TopKRouter

    delay_forward(monkeypatch, TopKRouter, lambda: clock.sleep(5), layer=1)
    run = train_here(small(), clock=clock)
    assert self_times(run) == {("decoder.router", "forward"): 10.0}  # two micro-batches
    assert {row.name: row.self_ms for row in run.layers if row.self_ms} == {"decoder.1.router/forward": 10.0}
    assert run.coverage == 1.0


def test_a_delay_in_the_projectors_backward(monkeypatch: pytest.MonkeyPatch, clock: StoppedClock) -> None:
    from vlmprof.workload.vision import Merger

    plain = Merger.forward
    monkeypatch.setattr(
        Merger, "forward", lambda self, hidden: plain(self, SlowBackward.apply(hidden, lambda: clock.sleep(5)))
    )
    assert self_times(train_here(small(), clock=clock)) == {("projector", "backward"): 10.0}


def test_a_delay_in_the_encoder_whose_input_needs_no_gradient(
    monkeypatch: pytest.MonkeyPatch, clock: StoppedClock
) -> None:
    from vlmprof.workload.vision import VisionModel

    plain = VisionModel._learned
    monkeypatch.setattr(
        VisionModel,
        "_learned",
        lambda self, grid: SlowBackward.apply(plain(self, grid), lambda: clock.sleep(5)),
    )
    run = train_here(small("images_per_sample=1"), clock=clock)
    pictures = run.effective_work.images if run.effective_work else 0
    assert self_times(run) == {("encoder", "backward"): pytest.approx(5.0 * pictures)}


@pytest.mark.parametrize(
    ("recompute", "expected"),
    [
        ((), {("decoder.router", "forward"): 10.0}),
        (("recompute=full",), {("decoder.router", "forward"): 10.0, ("decoder.router", "recompute"): 10.0}),
        (
            ("recompute=selective", 'recompute_modules=["moe"]'),
            {("decoder.router", "forward"): 10.0, ("decoder.router", "recompute"): 10.0},
        ),
        (("recompute=selective", 'recompute_modules=["core_attn"]'), {("decoder.router", "forward"): 10.0}),
    ],
)
def test_a_delay_in_a_recomputed_layer(
    monkeypatch: pytest.MonkeyPatch, clock: StoppedClock, recompute: tuple[str, ...], expected: dict[Key, float]
) -> None:
    from megatron.core.transformer.moe.router import TopKRouter

    delay_forward(monkeypatch, TopKRouter, lambda: clock.sleep(5), layer=0)
    assert self_times(train_here(small(*recompute), clock=clock)) == expected


def test_a_delay_in_recomputed_core_attention_is_told_from_backward(
    monkeypatch: pytest.MonkeyPatch, clock: StoppedClock
) -> None:
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    delay_forward(monkeypatch, DotProductAttention, lambda: clock.sleep(1), layer=None)
    run = train_here(small("recompute=selective", 'recompute_modules=["core_attn"]', kind="text-only"), clock=clock)
    assert self_times(run) == {("decoder.attention", "forward"): 4.0, ("decoder.attention", "recompute"): 4.0}


def test_a_delay_between_stages_is_other(monkeypatch: pytest.MonkeyPatch, clock: StoppedClock) -> None:
    from vlmprof.training import loop

    plain = loop.useful_loss
    read = loop.read_micro_batch
    monkeypatch.setattr(loop, "read_micro_batch", lambda *a: (clock.sleep(7), read(*a))[1])
    monkeypatch.setattr(loop, "finalize_model_grads", lambda *a, **k: clock.sleep(2))
    monkeypatch.setattr(loop, "useful_loss", lambda *a: (clock.sleep(3), plain(*a))[1])
    run = train_here(small(), clock=clock)
    assert self_times(run) == {("data", "step"): 14.0, ("grad_sync", "step"): 2.0, ("head", "forward"): 6.0}


def test_a_real_sleep_on_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer.moe.router import TopKRouter

    def fastest(run: Run) -> dict[Key, float]:
        return {(row.name, row.phase): min(row.self_ms.samples) for row in run.stages}

    before = fastest(train_here(small(), steps=6))
    delay_forward(monkeypatch, TopKRouter, lambda: time.sleep(0.02), layer=0)
    after = fastest(train_here(small(), steps=6))
    grown = {key: after[key] - before[key] for key in before}
    assert grown.pop(("decoder.router", "forward")) == pytest.approx(40, abs=10)
    assert max(grown.values()) < 20


@pytest.mark.parametrize(
    "recompute",
    [
        ("recompute=full",),
        ("recompute=selective",),
        ("recompute=selective", 'recompute_modules=["moe"]'),
        ("recompute=selective", 'recompute_modules=["layernorm", "core_attn"]'),
    ],
)
def test_recomputation_changes_no_loss(recompute: tuple[str, ...]) -> None:
    plain, rerun = train_here(small(), warmup=0), train_here(small(*recompute), warmup=0)
    assert losses(rerun) == pytest.approx(losses(plain), abs=1e-5)
    for one, other in zip(plain.steps, rerun.steps, strict=True):
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-4)
    assert any(row.phase == "recompute" and row.self_ms.value > 0 for row in rerun.stages)


def test_hooks_change_no_loss_and_nothing_is_left_of_them() -> None:
    from vlmprof.stages.hookpoints import find_places
    from vlmprof.stages.hooks import Hooks
    from vlmprof.workload.model import build_model

    model = build_model(small(), torch.float32)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    hooks = Hooks(Recorder(WallClock()), find_places([model]))
    hooks.install()
    assert any(dict(vars(module)) != before[name] for name, module in model.named_modules())
    hooks.remove()
    assert all(dict(vars(module)) == before[name] for name, module in model.named_modules())


def test_a_wrapper_is_made_anew_where_what_it_wraps_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    from vlmprof.stages.hookpoints import find_places
    from vlmprof.stages.hooks import Hooks
    from vlmprof.workload.model import build_model

    hooks = Hooks(Recorder(WallClock()), find_places([build_model(small(), torch.float32)]))
    router = next(place.owner for place in hooks.places if place.stage == "decoder.router")

    def wrapper() -> object:
        hooks.install()
        made = vars(router)["forward"]
        hooks.remove()
        return made

    first = wrapper()
    assert wrapper() is first
    monkeypatch.setattr(type(router), "forward", lambda self: "changed")
    assert wrapper() is not first
    hooks.install()
    assert router.forward() == "changed"
    hooks.remove()


def backward_times(clock: StoppedClock, forward: Callable[[Recorder, Tensor], Tensor]) -> dict[str, float]:
    """Range name -> self ms that is not 0, of a step in which what `forward` computes goes backward."""
    recorder = Recorder(clock)
    recorder.begin_step()
    forward(recorder, torch.ones(2, requires_grad=True)).sum().backward()
    times = attribute(recorder.end_step(), clock.milliseconds)
    found: dict[str, float] = {}
    for number, time_ in times.items():
        if time_.self_ms:
            found[recorder.ranges[number].name] = found.get(recorder.ranges[number].name, 0.0) + time_.self_ms
    return found


def slowed(clock: StoppedClock, milliseconds: float) -> Callable[[Tensor], Tensor]:
    return lambda value: SlowBackward.apply(value, lambda: clock.sleep(milliseconds))


def test_what_replays_before_the_first_place_of_a_stage_is_not_that_stages(clock: StoppedClock) -> None:
    def forward(recorder: Recorder, value: Tensor) -> Tensor:
        value = slowed(clock, 5)(value)  # a CUDA graph, say, that has swallowed what is before
        for milliseconds, part in ((1, "dispatcher.token_dispatch"), (2, "dispatcher.dispatch_postprocess")):
            value = staged(recorder, slowed(clock, milliseconds), "decoder.dispatcher.dispatch", 0, part)(value)
        return value

    assert backward_times(clock, forward) == {"decoder.0.dispatcher.dispatch/backward": 3.0, "other/backward": 5.0}


def test_a_place_within_another_of_its_stage_leaves_the_rest_to_it(clock: StoppedClock) -> None:
    def forward(recorder: Recorder, value: Tensor) -> Tensor:
        inner = staged(recorder, slowed(clock, 1), "encoder", None, "vision.decoder")
        whole = staged(recorder, lambda one: inner(slowed(clock, 2)(one)), "encoder", None, "vision")
        return whole(slowed(clock, 4)(value))

    assert backward_times(clock, forward) == {"encoder/backward": 3.0, "other/backward": 4.0}


def test_every_stage_of_the_model_is_found_and_every_phase_is_seen() -> None:
    run = train_here(small())
    assert run.missing == {}
    seen = {(row.name, row.phase) for row in run.stages}
    model_stages = {row.name for row in run.stages if row.phase == "forward"} - {"other"}
    assert {"encoder.attention", "projector", "embedding", "decoder.dispatcher.combine", "head"} <= model_stages
    assert {(stage, "backward") for stage in model_stages} <= seen
    assert {("data", "step"), ("grad_sync", "step"), ("optimizer", "step"), ("other", "step")} <= seen


def test_a_stage_that_the_model_lacks_is_missing_with_a_reason() -> None:
    run = train_here(small("moe_shared_expert_intermediate_size=0"))
    assert list(run.missing) == ["decoder.shared_experts"]
    assert "no moe.shared_experts" in run.missing["decoder.shared_experts"]
    assert run.stage("decoder.shared_experts", "forward") is None


def test_an_exception_names_its_stage_and_leaves_balanced_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer.moe.router import TopKRouter

    from vlmprof.records.assemble import assemble
    from vlmprof.records.journal import MemoryJournal
    from vlmprof.records.schedule import PlannedStep
    from vlmprof.stages.ranges import NvtxRanges
    from vlmprof.training.loop import train
    from vlmprof.workload.samples import open_source

    depth = []
    init = NvtxRanges.__init__

    def counting(self: NvtxRanges) -> None:
        init(self)
        self.push, self.pop = lambda name: depth.append(1), lambda: depth.append(-1)

    def broken(self: TopKRouter, *args: object) -> object:
        if self.layer_number == 2:
            raise ValueError("planted")
        return plain(self, *args)

    plain = TopKRouter.forward
    monkeypatch.setattr(NvtxRanges, "__init__", counting)
    monkeypatch.setattr(TopKRouter, "forward", broken)
    workload, journal = small(), MemoryJournal()
    with pytest.raises(ValueError, match="planted"):
        train(
            workload,
            open_source(workload),
            [PlannedStep("spanned", 0)],
            torch.float32,
            torch.device("cpu"),
            journal,
        )
    assert sum(depth) == 0
    assert depth.count(1) > 10
    journal.tell("failure", outcome={"class": "crash"})
    outcome = assemble(journal.events).outcome
    assert (outcome.stage, outcome.layer, outcome.phase) == ("decoder.router", 1, "forward")
    assert (outcome.step, outcome.micro_batch) == (0, 0)
