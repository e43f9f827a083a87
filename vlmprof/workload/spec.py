"""The typed workload: a model, its data, its parallel layout and its knobs, all frozen.

Field names of the model parts are those of Megatron-Core's `TransformerConfig` wherever it has one.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Data", "Decoder", "Encoder", "Knobs", "Layout", "Model", "Part", "Projector", "Workload"]

Count = Annotated[int, Field(gt=0)]
OptionalCount = Annotated[int, Field(ge=0)]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class Part(BaseModel):
    """A frozen piece of a workload: unknown keys and wrong types are errors, never dropped or coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Encoder(Part):
    """A dynamic-resolution vision transformer over square patches."""

    num_layers: Count
    hidden_size: Count
    num_attention_heads: Count
    ffn_hidden_size: Count
    patch_size: Count = 16
    temporal_patch_size: Count = 2
    spatial_merge_size: Count = 2
    num_position_embeddings: Count = 2304
    layernorm_epsilon: float = 1e-6

    @property
    def patch_elements(self) -> int:
        """Numbers in one patch: 3 channels x frames x height x width."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @property
    def image_unit(self) -> int:
        """Pixels by which both sides of a picture must divide, so that patches merge evenly."""
        return self.patch_size * self.spatial_merge_size


class Projector(Part):
    """The merger from `spatial_merge_size`^2 neighbouring patches to one decoder embedding."""

    ffn_hidden_size: OptionalCount = 0
    """Width between its two linear layers; 0 means that of the merged patches."""


class Decoder(Part):
    """A causal language model whose MLPs are mixtures of experts."""

    num_layers: Count
    hidden_size: Count
    num_attention_heads: Count
    num_query_groups: Count
    kv_channels: Count
    num_moe_experts: Count
    moe_router_topk: Count
    moe_ffn_hidden_size: Count
    moe_shared_expert_intermediate_size: OptionalCount = 0
    moe_aux_loss_coeff: float = 0.001
    vocab_size: Count
    qk_layernorm: bool = True
    rotary_base: Count = 5_000_000
    layernorm_epsilon: float = 1e-6
    share_embeddings_and_output_weights: bool = False


class Model(Part):
    encoder: Encoder
    projector: Projector = Projector()
    decoder: Decoder
    deviations: Names = ()
    """What differs from the published model of this name."""

    @property
    def merged_width(self) -> int:
        """Width of the projector's input: the merged neighbours side by side."""
        return self.encoder.hidden_size * self.encoder.spatial_merge_size**2

    @property
    def projector_width(self) -> int:
        return self.projector.ffn_hidden_size or self.merged_width


class Data(Part):
    kind: Literal["real", "mock", "text-only", "path"] = "real"
    path: str = ""
    """A folder of pictures or a JSONL file; only with kind = "path"."""
    fingerprint: str = ""
    """Of the data behind `path` (names and sizes): stands in the hash instead of the path."""
    tokenizer: str = ""
    """A Hugging Face tokenizer.json; empty means bytes."""
    seq_length: Count = 4096
    max_pixels: Count = 1_003_520
    images_per_sample: OptionalCount = 1


class Layout(Part):
    """Sizes of the parallel groups. `etp` 0 means `etp = tp`; `dp` 0 means whatever the ranks leave."""

    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    ep: Count = 1
    etp: OptionalCount = 0
    dp: OptionalCount = 0
    fsdp: Literal["none", "optim", "optim_grads", "optim_grads_params"] = "none"


class Knobs(Part):
    micro_batch_size: Count = 1
    global_batch_size: Count = 4
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_modules: Names = ()
    cuda_graph: Literal["none", "local", "transformer_engine"] = "none"
    cuda_graph_scope: Names = ()
    dispatcher: Literal["allgather", "alltoall", "flex"] = "alltoall"
    freeze_vision: bool = False
    freeze_projector: bool = False
    freeze_decoder: bool = False
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    force_balanced_routing: bool = False
    expert_capacity_factor: Annotated[float, Field(ge=0)] = 0.0
    """Tokens an expert may take, as a multiple of an even share; 0 means no limit (dropless)."""


class Workload(Part):
    """What is trained. Two workloads with the same `hash8` do the same work."""

    name: str
    description: str = ""
    model: Model
    data: Data = Data()
    layout: Layout = Layout()
    knobs: Knobs = Knobs()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1234

    def canonical(self) -> dict[str, Any]:
        """What identifies the work: every setting but names, notes and places, fields at their default left out
        (so that a field added later does not change the hash of what exists)."""
        form = self.model_dump(mode="json", exclude_defaults=True, exclude={"name": True, "description": True})
        form.get("model", {}).pop("deviations", None)
        form.get("data", {}).pop("path", None)
        return form

    @property
    def hash8(self) -> str:
        """First 8 hex digits of the SHA-256 of the canonical form."""
        return hashlib.sha256(json.dumps(self.canonical(), sort_keys=True).encode()).hexdigest()[:8]
