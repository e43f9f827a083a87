"""Analytic FLOPs and parameter counts, vision included. No torch.

A matrix product of [m, k] with [k, n] is 2mkn. Backward does it once more for the gradient of the input and once for
that of the weight, where each is needed: freezing a part saves its weights' share, and all of it when nothing before it
is trained. Attention is counted as it is computed: the whole square of every sequence and of every picture (attention
is per picture, hence the sum of squares), both of whose operands always need gradients. Norms, softmax and activations
are left out. Checked against `torch.utils.flop_counter` in the tests.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

from vlmprof.workload.packing import Sequence, Step
from vlmprof.workload.spec import Workload

__all__ = ["forward_flops", "parameters", "stage_flops", "step_flops", "useful_flops"]


@dataclass(frozen=True)
class Products:
    """Forward FLOPs of one stage: products with weights, and products of activations with each other."""

    weights: int
    activations: int = 0

    @property
    def forward(self) -> int:
        return self.weights + self.activations


def _products(workload: Workload, sequences: Many[Sequence], padded: bool) -> dict[str, Products]:
    """Stage -> its products for these sequences, at their padded or their real length."""
    encoder, decoder = workload.model.encoder, workload.model.decoder
    patches = sum(count for sequence in sequences for count in sequence.patches)
    squares = sum(count**2 for sequence in sequences for count in sequence.patches)
    lengths = [workload.data.seq_length if padded else len(sequence.tokens) for sequence in sequences]
    tokens, token_squares = sum(lengths), sum(length**2 for length in lengths)
    merged, width = patches // encoder.spatial_merge_size**2, workload.model.merged_width
    inner = workload.model.projector_width
    query = decoder.num_attention_heads * decoder.kv_channels
    key_value = decoder.num_query_groups * decoder.kv_channels
    h, hidden, layers = encoder.hidden_size, decoder.hidden_size, decoder.num_layers
    products = {
        "encoder": Products(2 * patches * encoder.patch_elements * h),
        "encoder.attention": Products(encoder.num_layers * 8 * patches * h * h, encoder.num_layers * 4 * squares * h),
        "encoder.mlp": Products(encoder.num_layers * 4 * patches * h * encoder.ffn_hidden_size),
        "projector": Products(2 * merged * inner * (width + hidden)),
        "decoder.attention": Products(
            layers * 2 * tokens * hidden * (2 * query + 2 * key_value), layers * 4 * token_squares * query
        ),
        "decoder.router": Products(layers * 2 * tokens * hidden * decoder.num_moe_experts),
        "decoder.experts": Products(
            layers * 6 * tokens * decoder.moe_router_topk * hidden * decoder.moe_ffn_hidden_size
        ),
        "decoder.shared_experts": Products(layers * 6 * tokens * hidden * decoder.moe_shared_expert_intermediate_size),
        "head": Products(2 * tokens * hidden * decoder.vocab_size),
    }
    return {stage: one for stage, one in products.items() if one.forward}


def forward_flops(workload: Workload, sequences: Many[Sequence], padded: bool = True) -> dict[str, int]:
    """Forward FLOPs by stage for these sequences; with padding as computed, or of their real tokens only."""
    return {stage: one.forward for stage, one in _products(workload, sequences, padded).items()}


def stage_flops(workload: Workload, sequences: Many[Sequence], padded: bool = True) -> dict[str, dict[str, int]]:
    """Stage -> phase -> FLOPs; a phase that has none is left out."""
    table = {}
    for stage, products in _products(workload, sequences, padded).items():
        phases = {
            "forward": products.forward,
            "backward": _backward(workload, stage, products),
            "recompute": _recompute(workload, stage, products),
        }
        table[stage] = {phase: count for phase, count in phases.items() if count}
    return table


def step_flops(workload: Workload, step: Step) -> int:
    """Forward and backward of one global batch, without recomputation (model FLOPs, as MFU is defined on)."""
    return _model_flops(stage_flops(workload, step.sequences))


def useful_flops(workload: Workload, step: Step) -> int:
    """The part of `step_flops` that is not spent on padding."""
    return _model_flops(stage_flops(workload, step.sequences, padded=False))


def _model_flops(table: dict[str, dict[str, int]]) -> int:
    return sum(count for phases in table.values() for phase, count in phases.items() if phase != "recompute")


def _backward(workload: Workload, stage: str, products: Products) -> int:
    """Input gradients where something before is trained, weight gradients where this part is."""
    knobs = workload.knobs
    vision, projector, decoder = not knobs.freeze_vision, not knobs.freeze_projector, not knobs.freeze_decoder
    if stage == "encoder":
        return products.weights * vision  # the first layer: its input needs no gradient
    if stage.startswith("encoder."):
        return 2 * products.forward * vision
    if stage == "projector":
        first = products.weights * workload.model.merged_width
        first //= workload.model.merged_width + workload.model.decoder.hidden_size
        second = products.weights - first
        return first * (vision + projector) + second * ((vision or projector) + projector)
    # In the decoder something before is always trained: its own embeddings, or the vision side.
    return products.weights * (1 + decoder) + 2 * products.activations


RECOMPUTED: dict[str, tuple[str, ...]] = {
    "full": (
        "encoder.attention",
        "encoder.mlp",
        "decoder.attention",
        "decoder.router",
        "decoder.experts",
        "decoder.shared_experts",
    ),
    "moe": ("decoder.router", "decoder.experts", "decoder.shared_experts"),
    "shared_experts": ("decoder.shared_experts",),
    "mlp": ("encoder.mlp",),
}
"""What Megatron runs again: with `full`, and by module of selective recomputation. `core_attn` is a part of a stage."""


def _recompute(workload: Workload, stage: str, products: Products) -> int:
    knobs = workload.knobs
    if knobs.recompute == "none" or (stage.startswith("encoder") and knobs.freeze_vision):
        return 0
    modules = ("full",) if knobs.recompute == "full" else knobs.recompute_modules or ("core_attn",)
    if any(stage in RECOMPUTED.get(module, ()) for module in modules):
        return products.forward
    return products.activations if "core_attn" in modules else 0


def parameters(workload: Workload) -> dict[str, int]:
    """Parameters by part, `total`, and `active` (those that one token meets: top-k experts of all)."""
    encoder, decoder = workload.model.encoder, workload.model.decoder
    h, ffn = encoder.hidden_size, encoder.ffn_hidden_size
    encoder_layer = 4 * h * h + 4 * h + 2 * h * ffn + h + ffn + 4 * h
    vision = encoder.patch_elements * h + h + encoder.num_position_embeddings * h + encoder.num_layers * encoder_layer
    width, inner, hidden = workload.model.merged_width, workload.model.projector_width, decoder.hidden_size
    projector = 2 * h + width * inner + inner + inner * hidden + hidden
    query, key_value = decoder.num_attention_heads * decoder.kv_channels, decoder.num_query_groups * decoder.kv_channels
    expert = 3 * hidden * decoder.moe_ffn_hidden_size
    shared = 3 * hidden * decoder.moe_shared_expert_intermediate_size
    dense = (
        hidden * (2 * query + 2 * key_value)
        + (2 * decoder.kv_channels if decoder.qk_layernorm else 0)
        + 2 * hidden
        + hidden * decoder.num_moe_experts
        + shared
    )
    embeddings = decoder.vocab_size * hidden * (1 if decoder.share_embeddings_and_output_weights else 2)
    language = decoder.num_layers * (dense + decoder.num_moe_experts * expert) + hidden + embeddings
    idle = decoder.num_layers * (decoder.num_moe_experts - decoder.moe_router_topk) * expert
    total = vision + projector + language
    return {
        "total": total,
        "active": total - idle,
        "vision_model": vision,
        "vision_projection": projector,
        "language_model": language,
    }
