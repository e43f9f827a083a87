"""Megatron's local layers, which need neither Transformer Engine nor a GPU."""

import copy
import itertools
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor

from vlmprof.workload.spec import Decoder

__all__ = ["FUSIONS", "MOE_FUSIONS", "decoder_layer_spec", "encoder_layer_spec", "projector_submodules"]

FUSIONS: dict[str, Any] = {}
MOE_FUSIONS: dict[str, Any] = {}


class PackedImageAttention(DotProductAttention):  # type: ignore[misc]
    """Megatron's own attention, once per picture.

    The picture boundaries travel in place of the attention mask (int32 [pictures + 1], as `cu_seqlens`), since the
    mask is what every version hands through blocks, layers and recomputation unchanged. A loop over pictures costs
    sum(P^2), a block-diagonal mask over the packed sequence (sum P)^2.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any) -> Tensor:
        """query, key, value: [patches, 1, heads, head_dim] -> [patches, 1, hidden]."""
        kwargs["attn_mask_type"] = AttnMaskType.no_mask
        bounds = attention_mask.tolist()
        return torch.cat(
            [
                super(PackedImageAttention, self).forward(
                    query[start:end], key[start:end], value[start:end], None, **kwargs
                )
                for start, end in itertools.pairwise(bounds)
            ]
        )


def encoder_layer_spec() -> ModuleSpec:
    """Megatron's local layer spec, with attention that sees one whole picture (the local ViT spec is causal)."""
    spec = copy.deepcopy(get_gpt_layer_local_spec())
    attention = spec.submodules.self_attention
    attention.params["attn_mask_type"] = AttnMaskType.no_mask
    attention.submodules.core_attention = PackedImageAttention
    return spec


def decoder_layer_spec(decoder: Decoder) -> ModuleSpec:
    """Megatron's local MoE layer, its experts one after the other."""
    return get_gpt_layer_local_spec(
        num_experts=decoder.num_moe_experts,
        moe_grouped_gemm=False,
        qk_layernorm=decoder.qk_layernorm,
        normalization="RMSNorm",
    )


def projector_submodules() -> MLPSubmodules:
    """The two layers of the projector."""
    return MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
