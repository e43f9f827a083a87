"""The model itself: what the encoder sees, what initial values depend on, what the FLOPs and parameters are."""

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.integration.training import losses, small, train_here
from vlmprof.errors import UserError
from vlmprof.workload.flops import forward_flops, parameters, stage_flops, step_flops, useful_flops
from vlmprof.workload.packing import Sequence, plan_steps
from vlmprof.workload.samples import open_source
from vlmprof.workload.settings import load_workload
from vlmprof.workload.spec import Workload

pytestmark = [pytest.mark.usefixtures("megatron"), pytest.mark.filterwarnings("ignore")]

CPU = torch.device("cpu")


def built(workload: Workload, seed: int = 5):
    from vlmprof.workload.initial import initialise
    from vlmprof.workload.model import build_model

    model = build_model(workload, torch.float32)
    initialise(model, seed)
    return model


def batch_of(workload: Workload, *sequences: Sequence):
    from vlmprof.workload.batches import make_micro_batch

    return make_micro_batch(workload, sequences, torch.float32)


def first_sequence(workload: Workload) -> Sequence:
    return next(itertools.islice(plan_steps(workload, open_source(workload)), 1)).sequences[0]


def test_attention_stays_within_a_picture() -> None:
    workload = small("images_per_sample=2")
    model = built(workload)
    sequence = first_sequence(workload)
    batch = batch_of(workload, sequence)
    assert len(batch.grids) > 1
    packed = model.vision_model(batch.patches, batch.grids)
    alone, start = [], 0
    for rows, columns in batch.grids:
        alone.append(model.vision_model(batch.patches[start : start + rows * columns], [(rows, columns)]))
        start += rows * columns
    torch.testing.assert_close(packed, torch.cat(alone))


def test_the_encoder_is_not_causal() -> None:
    workload = small()
    model = built(workload)
    batch = batch_of(workload, first_sequence(workload))
    grid = batch.grids[0]
    patches = batch.patches[: grid[0] * grid[1]].clone()
    before = model.vision_model(patches, [grid])
    patches[-1] += 1.0
    assert not torch.equal(model.vision_model(patches, [grid])[0], before[0])


def test_positions_are_two_dimensional() -> None:
    from vlmprof.workload.vision import patch_positions

    positions = patch_positions([(4, 2), (2, 2)], merge=2)
    assert positions.tolist()[:4] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert positions.tolist()[4:8] == [[2, 0], [2, 1], [3, 0], [3, 1]]
    workload = small()
    model = built(workload)
    patches = torch.ones(16, workload.model.encoder.patch_elements)
    wide, high = (model.vision_model(patches, [grid]) for grid in ((2, 8), (8, 2)))
    assert not torch.allclose(wide, high)


def test_pictures_land_at_their_tokens() -> None:
    workload = small()
    batch = batch_of(workload, *itertools.repeat(first_sequence(workload), 2))
    model = built(workload)
    embedded = torch.zeros(workload.data.seq_length, 2, workload.model.decoder.hidden_size)
    images = torch.arange(1.0, len(batch.image_positions) + 1)[:, None, None].expand(-1, 1, embedded.shape[-1])
    placed = model.scatter_images(embedded, images, batch.image_positions)[..., 0].T  # [b, s]
    assert torch.equal(placed != 0, batch.input_ids == 3)
    assert placed[placed != 0].tolist() == list(range(1, len(batch.image_positions) + 1))


def test_loss_is_on_useful_tokens_only() -> None:
    workload = small()
    sequence = first_sequence(workload)
    batch = batch_of(workload, sequence)
    assert int(batch.loss_mask.sum()) == sequence.useful_tokens
    assert not batch.loss_mask[(batch.labels == 3) | (batch.labels == 4) | (batch.labels == 5)].any()


def test_initial_values_depend_on_seed_and_name_alone() -> None:
    one, other = built(small()), built(small("global_batch_size=8", "model.decoder.num_layers=3"))
    shared = dict(other.named_parameters())
    for name, parameter in one.named_parameters():
        if "linear_proj" not in name and "linear_fc2" not in name:  # scaled by depth
            assert torch.equal(parameter, shared[name]), name
    changed = dict(built(small(), seed=6).named_parameters())
    assert not torch.equal(one.language_model.output_layer.weight, changed["language_model.output_layer.weight"])


def test_global_names_count_experts_across_ranks() -> None:
    from vlmprof.workload.initial import global_name

    local = "language_model.decoder.layers.3.mlp.experts.local_experts.1.linear_fc1.weight"
    assert global_name(local, first_expert=4).endswith("local_experts.5.linear_fc1.weight")


@pytest.mark.parametrize("assignment", ["seed=1", "qk_layernorm=false", "share_embeddings_and_output_weights=true"])
def test_parameters_are_counted_exactly(assignment: str) -> None:
    workload = small(assignment)
    model = built(workload)
    counted = parameters(workload)
    assert counted["total"] == sum(parameter.numel() for parameter in model.parameters())
    for part in ("vision_model", "vision_projection", "language_model"):
        assert counted[part] == sum(parameter.numel() for parameter in model.get_submodule(part).parameters())


@pytest.mark.parametrize("assignments", [(), ("images_per_sample=2", "moe_router_topk=3"), ("micro_batch_size=2",)])
def test_flops_are_those_of_the_flop_counter(assignments: tuple[str, ...]) -> None:
    workload = small(*assignments)
    step = next(itertools.islice(plan_steps(workload, open_source(workload)), 1))
    size = workload.knobs.micro_batch_size
    model = built(workload)
    forward = total = 0
    for first in range(0, len(step.sequences), size):
        batch = batch_of(workload, *step.sequences[first : first + size])
        with FlopCounterMode(display=False) as counter:
            losses_ = model(batch)
        forward += counter.get_total_flops()
        with FlopCounterMode(display=False) as counter:
            losses_.sum().backward()
        total += counter.get_total_flops()
    assert sum(forward_flops(workload, step.sequences).values()) == forward
    assert step_flops(workload, step) == pytest.approx(forward + total, rel=0.01)


def test_one_seed_gives_one_training() -> None:
    assert losses(train_here(small(), warmup=0)) == losses(train_here(small(), warmup=0))
    assert losses(train_here(small(), warmup=0)) != losses(train_here(small("seed=9"), warmup=0))


def test_freezing_trains_the_rest_and_leaves_the_frozen_part() -> None:
    run = train_here(small("freeze_vision=true"))
    frozen = run.parameters["vision_model"]
    assert run.parameters["trained"] == run.parameters["total"] - frozen
    assert run.stage("encoder", "backward") is None
    assert run.stage("projector", "backward") is not None


def test_the_bridge_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys

    program = (
        "import torch\n"
        "from vlmprof.training.bridge import PATCHES, cpu_bridge, _resolve\n"
        "import megatron.core.tensor_parallel, megatron.core.transformer.moe.token_dispatcher\n"
        "seen = lambda: [getattr(_resolve(p.where), p.attribute, None) for p in PATCHES if _resolve(p.where)]\n"
        "before = seen()\n"
        "with cpu_bridge() as applied:\n"
        "    assert torch.zeros(1, device='cuda').device.type == 'cpu'\n"
        "    assert len(applied) > 15\n"
        "assert [a is b for a, b in zip(before, seen())].count(False) == 0\n"
        "assert all(patch.reason for patch in PATCHES)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


@pytest.mark.parametrize(
    "assignments",
    [
        ("freeze_vision=true",),
        ("freeze_projector=true",),
        ("freeze_vision=true", "freeze_projector=true"),
        ("freeze_decoder=true",),
        ("recompute=full",),
        ("recompute=selective",),
        ("recompute=selective", 'recompute_modules=["moe"]'),
        ("recompute=selective", 'recompute_modules=["shared_experts"]'),
        ("freeze_vision=true", "recompute=full"),
    ],
)
def test_flops_of_freezing_and_recomputation_are_those_of_the_flop_counter(assignments: tuple[str, ...]) -> None:
    workload = small(*assignments)
    step = next(itertools.islice(plan_steps(workload, open_source(workload)), 1))
    model = built(workload)
    for part, frozen in (
        ("vision_model", workload.knobs.freeze_vision),
        ("vision_projection", workload.knobs.freeze_projector),
        ("language_model", workload.knobs.freeze_decoder),
    ):
        model.get_submodule(part).requires_grad_(not frozen)
    counted = 0
    for sequence in step.sequences:
        batch = batch_of(workload, sequence)
        with FlopCounterMode(display=False) as counter:
            model(batch).sum().backward()
        counted += counter.get_total_flops()
    table = stage_flops(workload, step.sequences)
    assert sum(sum(phases.values()) for phases in table.values()) == pytest.approx(counted, rel=0.01)


def test_flops_of_each_stage_alone() -> None:
    workload = small("images_per_sample=2")
    model = built(workload)
    sequence = first_sequence(workload)
    layer = model.language_model.decoder.layers[0]
    hidden = torch.randn(workload.data.seq_length, 1, workload.model.decoder.hidden_size)
    patches = torch.randn(sum(sequence.patches), 1, workload.model.encoder.hidden_size)
    rotary = model.language_model.rotary_pos_emb(workload.data.seq_length)
    bounds = torch.tensor([0, *itertools.accumulate(sequence.patches)], dtype=torch.int32)
    layers, depth = workload.model.decoder.num_layers, workload.model.encoder.num_layers
    block = model.vision_model.decoder.layers[0]
    alone = {
        "decoder.attention": (lambda: layer.self_attention(hidden, None, rotary_pos_emb=rotary), layers),
        "decoder.router": (lambda: layer.mlp.router(hidden), layers),
        "decoder.shared_experts": (lambda: layer.mlp.shared_experts(hidden), layers),
        "encoder.mlp": (lambda: block.mlp(patches), depth),
        "encoder.attention": (lambda: block.self_attention(patches, bounds), depth),
        "projector": (lambda: model.vision_projection(patches), 1),
        "head": (lambda: model.language_model.output_layer(hidden, weight=None), 1),
    }
    expected = forward_flops(workload, [sequence])
    for stage, (call, times) in alone.items():
        with FlopCounterMode(display=False) as counter:
            call()
        assert counter.get_total_flops() * times == expected[stage], stage
    with FlopCounterMode(display=False) as counter:
        layer.mlp(hidden)
    experts = counter.get_total_flops() * layers - expected["decoder.router"] - expected["decoder.shared_experts"]
    assert experts == expected["decoder.experts"]


def test_local_graphs_take_megatrons_own_moe_layer_where_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer import transformer_layer
    from megatron.core.transformer.spec_utils import ModuleSpec

    from vlmprof.workload.model import graphable_layer

    def layer(*assignments: str) -> type:
        spec = ModuleSpec(module=transformer_layer.TransformerLayer)
        return graphable_layer(load_workload("tiny", [*assignments]), spec).module

    assert layer() is layer("cuda_graph=transformer_engine") is transformer_layer.TransformerLayer
    assert layer("cuda_graph=local") is transformer_layer.MoETransformerLayer
    monkeypatch.delattr(transformer_layer, "MoETransformerLayer")
    with pytest.raises(UserError, match="cannot capture parts of an MoE layer"):
        layer("cuda_graph=local")


def test_padding_is_told_from_useful_work() -> None:
    workload = small()
    step = next(itertools.islice(plan_steps(workload, open_source(workload)), 1))
    useful, model = useful_flops(workload, step), step_flops(workload, step)
    share = sum(len(sequence.tokens) for sequence in step.sequences) / (2 * workload.data.seq_length)
    assert share * 0.8 < useful / model < 1
