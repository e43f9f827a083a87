"""Transformer Engine's layers and fusions for a CUDA device: imported only where both are there."""

import copy
import functools
import inspect
import itertools
from typing import Any

import torch
from megatron.core.extensions.transformer_engine import (
    TEColumnParallelLinear,
    TEDotProductAttention,
    TERowParallelLinear,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor

from vlmprof.workload.spec import Decoder

__all__ = ["FUSIONS", "MOE_FUSIONS", "decoder_layer_spec", "encoder_layer_spec", "projector_submodules"]

FUSIONS: dict[str, Any] = {
    "apply_rope_fusion": True,
    "bias_activation_fusion": True,
    "bias_dropout_fusion": True,
}
"""What Megatron-LM's own training turns on by default. Gradient accumulation fusion needs Apex for the output layer."""

MOE_FUSIONS: dict[str, Any] = {"moe_grouped_gemm": True, "moe_permute_fusion": True, "moe_router_dtype": "fp32"}


class PackedImageAttention(TEDotProductAttention):  # type: ignore[misc]
    """Fused attention over packed pictures of any size (`thd`), each within its own bounds.

    As on the CPU, the bounds travel in place of the attention mask: a tensor on the host, so that their maximum is
    known without waiting for the device.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any) -> Tensor:
        """query, key, value: [patches, 1, heads, head_dim] -> [patches, 1, hidden]."""
        kwargs["attn_mask_type"] = AttnMaskType.padding
        kwargs["packed_seq_params"] = packed(tuple(attention_mask.tolist()), query.device)
        out: Tensor = super().forward(query.squeeze(1), key.squeeze(1), value.squeeze(1), None, **kwargs)
        return out.reshape(out.shape[0], 1, -1)


@functools.lru_cache(maxsize=4)
def packed(bounds: tuple[int, ...], device: torch.device) -> PackedSeqParams:
    """Bounds of packed sequences as every layer of a micro-batch wants them: copied to the device once."""
    on_host = torch.tensor(bounds, dtype=torch.int32).pin_memory()
    on_device = on_host.to(device, non_blocking=True)
    longest = max(end - start for start, end in itertools.pairwise(bounds))
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=on_device,
        cu_seqlens_kv=on_device,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def encoder_layer_spec() -> ModuleSpec:
    """Transformer Engine's layer with attention within pictures."""
    spec = copy.deepcopy(get_gpt_layer_with_transformer_engine_spec())
    attention = spec.submodules.self_attention
    attention.params["attn_mask_type"] = AttnMaskType.padding
    attention.submodules.core_attention = PackedImageAttention
    return spec


def decoder_layer_spec(decoder: Decoder) -> ModuleSpec:
    """Transformer Engine's MoE layer: grouped GEMM over the experts."""
    known = inspect.signature(get_gpt_layer_with_transformer_engine_spec).parameters
    settings = {
        "num_experts": decoder.num_moe_experts,
        "moe_grouped_gemm": True,
        "qk_layernorm": decoder.qk_layernorm,
        "moe_use_legacy_grouped_gemm": False,
    }
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    if takes_all:  # newer versions hand everything on, and no longer know a legacy
        settings.pop("moe_use_legacy_grouped_gemm")
    return get_gpt_layer_with_transformer_engine_spec(
        **{name: value for name, value in settings.items() if takes_all or name in known}
    )


def projector_submodules() -> MLPSubmodules:
    """The two layers of the projector."""
    return MLPSubmodules(linear_fc1=TEColumnParallelLinear, linear_fc2=TERowParallelLinear)
