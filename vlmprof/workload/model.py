"""The model: encoder, projector and MoE decoder of Megatron-Core parts, named as in Megatron's LLaVAModel."""

import dataclasses
from typing import Any

import megatron.core
import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.enums import ModelType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from vlmprof.errors import UserError
from vlmprof.workload.batches import MicroBatch
from vlmprof.workload.spec import Workload
from vlmprof.workload.vision import Merger, VisionModel

__all__ = ["VisionLanguageModel", "build_model", "graphable_layer", "has_transformer_engine"]


def has_transformer_engine(device: torch.device) -> bool:
    """Whether layers are Transformer Engine's there: it needs a CUDA device."""
    if device.type != "cuda":
        return False
    try:
        import transformer_engine.pytorch
    except Exception:  # a build for another torch or CUDA fails in many ways
        return False
    return bool(transformer_engine.pytorch)


class VisionLanguageModel(MegatronModule):  # type: ignore[misc]
    """Image embeddings scattered into the text embeddings of a causal MoE decoder."""

    model_type = ModelType.encoder_or_decoder
    pre_process = post_process = True
    share_embeddings_and_output_weights = False

    def __init__(self, vision_model: VisionModel, vision_projection: Merger, language_model: GPTModel) -> None:
        super().__init__(config=language_model.config)
        self.vision_model = vision_model
        self.vision_projection = vision_projection
        self.language_model = language_model

    @property
    def decoder(self) -> TransformerBlock:
        """Where Megatron's schedules look for the layers, to tell them which micro-batch is coming."""
        block: TransformerBlock = self.language_model.decoder
        return block

    def set_input_tensor(self, input_tensor: Any) -> None:
        """Part of Megatron's schedule protocol: what the previous pipeline stage sends."""
        self.language_model.set_input_tensor(input_tensor[0] if isinstance(input_tensor, list) else input_tensor)

    def forward(self, batch: MicroBatch) -> Tensor:
        """Loss of every token, float32 [sequences, seq_length]; not yet masked to the useful ones."""
        embedded = self.language_model.embedding(input_ids=batch.input_ids, position_ids=batch.position_ids)
        if batch.patches is not None:
            images = self.vision_projection(self.vision_model(batch.patches, batch.grids))
            embedded = self.scatter_images(embedded, images, batch.image_positions)
        losses: Tensor = self.language_model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            attention_mask=None,  # causal by the layer spec
            decoder_input=embedded,
            labels=batch.labels,
        )
        return losses

    def scatter_images(self, embedded: Tensor, images: Tensor, positions: Tensor) -> Tensor:
        """Put image embeddings in their places: [s, b, h], [n, 1, h], rows of the flattened [s * b] -> [s, b, h]."""
        flat = embedded.reshape(-1, embedded.shape[-1])
        flat = flat.index_copy(0, positions, images[:, 0].to(flat.dtype))
        return flat.view_as(embedded)


CPU = torch.device("cpu")
SAFE_GRAPH_SCOPE = {
    "transformer_engine": ("attn", "moe_router", "moe_preprocess"),
    "local": ("moe_router", "moe_preprocess"),
}
"""What an MoE layer can capture without expert capacity: all but what depends on how many tokens each expert gets."""


def build_model(workload: Workload, dtype: torch.dtype, device: torch.device = CPU) -> VisionLanguageModel:
    """The model of a workload with Megatron's parallel state as it stands; values are uninitialised (see `initial`).

    Layers are Transformer Engine's on a CUDA device that has it, Megatron's local ones elsewhere.

    Raises:
        UserError: this megatron-core version lacks a setting that the workload asks for.
    """
    encoder, decoder = workload.model.encoder, workload.model.decoder
    if has_transformer_engine(device):
        from vlmprof.workload import te as layers
    else:
        from vlmprof.workload import local as layers  # type: ignore[no-redef]
    vision_config = transformer_config(
        workload,
        dtype,
        layers.FUSIONS,
        num_layers=encoder.num_layers,
        hidden_size=encoder.hidden_size,
        num_attention_heads=encoder.num_attention_heads,
        ffn_hidden_size=encoder.ffn_hidden_size,
        layernorm_epsilon=encoder.layernorm_epsilon,
        normalization="LayerNorm",
        # Megatron's fused bias and GELU computes the tanh form, too, and is chosen by this name.
        activation_func=functional.gelu if layers.FUSIONS.get("bias_activation_fusion") else _gelu_tanh,
        add_bias_linear=True,
        add_qkv_bias=True,
    )
    projector_config = transformer_config(
        workload,
        dtype,
        {},
        num_layers=1,
        hidden_size=decoder.hidden_size,
        num_attention_heads=decoder.num_attention_heads,
        ffn_hidden_size=workload.model.projector_width,
        activation_func=functional.gelu,
        add_bias_linear=True,
    )
    language_config = transformer_config(
        workload,
        dtype,
        {**layers.FUSIONS, **layers.MOE_FUSIONS},
        num_layers=decoder.num_layers,
        hidden_size=decoder.hidden_size,
        num_attention_heads=decoder.num_attention_heads,
        num_query_groups=decoder.num_query_groups,
        kv_channels=decoder.kv_channels,
        ffn_hidden_size=decoder.moe_ffn_hidden_size,
        layernorm_epsilon=decoder.layernorm_epsilon,
        normalization="RMSNorm",
        qk_layernorm=decoder.qk_layernorm,
        activation_func=functional.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        num_moe_experts=decoder.num_moe_experts,
        moe_ffn_hidden_size=decoder.moe_ffn_hidden_size,
        moe_router_topk=decoder.moe_router_topk,
        moe_shared_expert_intermediate_size=decoder.moe_shared_expert_intermediate_size or None,
        moe_token_dispatcher_type=workload.knobs.dispatcher,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=decoder.moe_aux_loss_coeff,
        **_graphs(workload),
        **_only_if_set(
            moe_router_force_load_balancing=workload.knobs.force_balanced_routing,
            moe_expert_capacity_factor=workload.knobs.expert_capacity_factor,
        ),
    )
    return VisionLanguageModel(
        VisionModel(vision_config, encoder, layers.encoder_layer_spec()),
        Merger(projector_config, encoder, workload.model.merged_width, layers.projector_submodules()),
        GPTModel(
            config=language_config,
            transformer_layer_spec=graphable_layer(workload, layers.decoder_layer_spec(decoder)),
            vocab_size=decoder.vocab_size,
            max_sequence_length=workload.data.seq_length,
            position_embedding_type="rope",
            rotary_base=decoder.rotary_base,
            share_embeddings_and_output_weights=decoder.share_embeddings_and_output_weights,
        ),
    )


def transformer_config(
    workload: Workload, dtype: torch.dtype, fusions: dict[str, Any], **settings: Any
) -> TransformerConfig:
    """A TransformerConfig with what all parts share: no dropout, and of fusions what this version knows of `fusions`.

    Raises:
        UserError: this version has no field for one of `settings`, or refuses their combination.
    """
    fields = {field.name for field in dataclasses.fields(TransformerConfig)}
    unknown = [name for name in settings if name not in fields]
    if unknown:
        raise UserError(
            f"megatron-core {megatron.core.__version__} has no '{unknown[0]}' in its TransformerConfig: "
            "leave that setting out or use another version"
        )
    knobs = workload.knobs
    shared: dict[str, Any] = {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "perform_initialization": False,
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "calculate_per_token_loss": True,
        "expert_model_parallel_size": workload.layout.ep if "num_moe_experts" in settings else 1,
        **fusions,
    }
    if knobs.recompute == "full":
        shared |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    elif knobs.recompute == "selective":
        shared |= {
            "recompute_granularity": "selective",
            **_only_if_set(recompute_modules=list(knobs.recompute_modules)),
        }
    known = {name: value for name, value in {**shared, **settings}.items() if name in fields}
    try:
        return TransformerConfig(**known)
    except (ValueError, AssertionError) as error:
        raise UserError(f"megatron-core {megatron.core.__version__} refuses this workload: {error}") from None


def _graphs(workload: Workload) -> dict[str, Any]:
    """Which parts of a decoder layer become CUDA graphs, under the names that this version has for it."""
    knobs = workload.knobs
    fields = {field.name for field in dataclasses.fields(TransformerConfig)}
    parts = "cuda_graph_modules" if "cuda_graph_modules" in fields else "cuda_graph_scope"
    if knobs.cuda_graph == "none":
        return {}
    scope = knobs.cuda_graph_scope or SAFE_GRAPH_SCOPE[knobs.cuda_graph]
    return {"cuda_graph_impl": knobs.cuda_graph, parts: list(scope)}


def graphable_layer(workload: Workload, spec: ModuleSpec) -> ModuleSpec:
    """The decoder's layer; with `local` graphs Megatron's own for MoE, which captures the parts around the experts.

    Raises:
        UserError: this version has no such layer.
    """
    if workload.knobs.cuda_graph == "local":
        try:
            from megatron.core.transformer.transformer_layer import MoETransformerLayer
        except ImportError:
            raise UserError(
                f"megatron-core {megatron.core.__version__} cannot capture parts of an MoE layer with "
                "knobs.cuda_graph=local: use transformer_engine, or a newer version"
            ) from None
        spec.module = MoETransformerLayer
    return spec


def _only_if_set(**settings: Any) -> dict[str, Any]:
    """Settings that differ from Megatron's default: left out, so that versions without them serve the rest."""
    return {name: value for name, value in settings.items() if value}


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")
