"""Analytic FLOPs and parameter counts, vision included. No torch.

A matrix product of [m, k] with [k, n] is 2mkn. Backward does each twice (input and weight gradient), but for the
first layer, whose input needs none. Attention is counted as it is computed: the whole square of every sequence and of
every picture (attention is per picture, hence the sum of squares). Norms, softmax and activations are left out.
Checked against `torch.utils.flop_counter` in the tests.
"""

from collections.abc import Sequence as Many

from vlmprof.workload.packing import Sequence, Step
from vlmprof.workload.spec import Workload

__all__ = ["forward_flops", "parameters", "step_flops"]


def forward_flops(workload: Workload, sequences: Many[Sequence]) -> dict[str, int]:
    """Forward FLOPs by stage for these sequences; padding included, since it is computed too."""
    encoder, decoder = workload.model.encoder, workload.model.decoder
    patches = sum(count for sequence in sequences for count in sequence.patches)
    squares = sum(count**2 for sequence in sequences for count in sequence.patches)
    length = workload.data.seq_length
    tokens = length * len(sequences)
    merged, width, inner = (
        patches // encoder.spatial_merge_size**2,
        workload.model.merged_width,
        workload.model.projector_width,
    )
    query, key_value = decoder.num_attention_heads * decoder.kv_channels, decoder.num_query_groups * decoder.kv_channels
    h, hidden, layers = encoder.hidden_size, decoder.hidden_size, decoder.num_layers
    flops = {
        "encoder": 2 * patches * encoder.patch_elements * h,
        "encoder.attention": encoder.num_layers * (8 * patches * h * h + 4 * squares * h),
        "encoder.mlp": encoder.num_layers * 4 * patches * h * encoder.ffn_hidden_size,
        "projector": 2 * merged * inner * (width + hidden),
        "decoder.attention": layers * (2 * tokens * hidden * (2 * query + 2 * key_value) + 4 * tokens * length * query),
        "decoder.router": layers * 2 * tokens * hidden * decoder.num_moe_experts,
        "decoder.experts": layers * 6 * tokens * decoder.moe_router_topk * hidden * decoder.moe_ffn_hidden_size,
        "decoder.shared_experts": layers * 6 * tokens * hidden * decoder.moe_shared_expert_intermediate_size,
        "head": 2 * tokens * hidden * decoder.vocab_size,
    }
    return {stage: count for stage, count in flops.items() if count}


def step_flops(workload: Workload, step: Step) -> int:
    """Forward and backward of one global batch, without recomputation (model FLOPs, as MFU is defined on)."""
    forward = forward_flops(workload, step.sequences)
    return 3 * sum(forward.values()) - forward.get("encoder", 0)


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
