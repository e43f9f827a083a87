"""Where stages begin and end in a model made of Megatron modules: a table of names, and the search for them.

Nothing of Megatron is imported: owners are known by the class names in their MRO and by their attribute names, so the
table serves megatron-core 0.13 to 0.19, Megatron-LM's LLaVAModel, Megatron Bridge's Qwen3-VL and a user's own model.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["HOOK_POINTS", "HookPoint", "Place", "find_places", "missing_stages"]


@dataclass(frozen=True)
class HookPoint:
    stage: str
    """Full stage name; a leading `*` stands for the side it is found on (`encoder` or `decoder`)."""
    owner: str
    """A role of `_owners`."""
    member: str
    """A submodule (its `forward` is wrapped) or a method of the owner; `""` is the owner itself."""
    in_model: bool = True
    """Part of forward and backward; else of phase `step`."""
    marks_backward: bool = True
    """Off where the parent stage is the same: its backward is charged alike without marks of its own."""
    rerun_only: bool = False
    """Only told apart when re-run inside backward: what Megatron can recompute without its stage."""
    counts_micro_batches: bool = False

    @property
    def part(self) -> str:
        """E.g. `moe.router`."""
        return f"{self.owner}.{self.member}".rstrip(".")


HOOK_POINTS: tuple[HookPoint, ...] = (
    HookPoint("other", "root", "", counts_micro_batches=True),
    HookPoint("encoder", "vision", ""),
    HookPoint("encoder", "vision", "decoder"),
    HookPoint("projector", "projector", ""),
    HookPoint("embedding", "language", "embedding"),
    HookPoint("embedding", "language", "rotary_pos_emb"),
    HookPoint("embedding", "root", "scatter_images"),
    HookPoint("decoder", "language", "decoder"),
    HookPoint("decoder.norms", "block", "final_layernorm"),
    HookPoint("*", "layer", "", marks_backward=False),
    HookPoint("*.attention", "layer", "self_attention"),
    HookPoint("*.attention", "attention", "core_attention", rerun_only=True),
    HookPoint("*.norms", "layer", "input_layernorm"),
    HookPoint("*.norms", "layer", "pre_mlp_layernorm"),
    HookPoint("*.mlp", "dense", ""),
    HookPoint("decoder.router", "moe", "router"),
    HookPoint("decoder.experts", "moe", "experts"),
    HookPoint("decoder.shared_experts", "moe", "shared_experts"),
    HookPoint("decoder.dispatcher.dispatch", "dispatcher", "dispatch_preprocess"),
    HookPoint("decoder.dispatcher.dispatch", "dispatcher", "token_dispatch"),
    HookPoint("decoder.dispatcher.dispatch", "dispatcher", "dispatch_postprocess"),
    HookPoint("decoder.dispatcher.dispatch", "dispatcher", "token_permutation"),
    HookPoint("decoder.dispatcher.combine", "dispatcher", "combine_preprocess"),
    HookPoint("decoder.dispatcher.combine", "dispatcher", "token_combine"),
    HookPoint("decoder.dispatcher.combine", "dispatcher", "combine_postprocess"),
    HookPoint("decoder.dispatcher.combine", "dispatcher", "token_unpermutation"),
    HookPoint("head", "language", "output_layer"),
    HookPoint("head", "language", "compute_language_model_loss"),
    HookPoint("grad_sync", "config", "finalize_model_grads_func", in_model=False),
    HookPoint("optimizer", "ddp", "zero_grad_buffer", in_model=False),
    HookPoint("optimizer", "optimizer", "zero_grad", in_model=False),
    HookPoint("optimizer", "optimizer", "step", in_model=False),
)

VISION_NAMES = ("vision_model", "vision_tower", "vision_encoder", "visual", "image_encoder")
VISION_CLASSES = ("CLIPViTModel", "RADIOViTModel", "Qwen3VLVisionModel", "Qwen2VisionModel")
PROJECTOR_NAMES = ("vision_projection", "multimodal_projector", "multi_modal_projector", "merger")
PROJECTOR_CLASSES = ("MultimodalProjector", "Merger")
STAND_INS = ("IdentityOp", "IdentityFuncOp", "Identity", "NoneType")
"""What a layer spec puts where a part is left out or fused into its neighbour: no work, so no stage."""


@dataclass(frozen=True)
class Place:
    """One thing to wrap: `setattr(owner, attribute, wrapper)`."""

    owner: Any
    attribute: str
    stage: str
    layer: int | None
    point: HookPoint

    @property
    def in_layer(self) -> bool:
        """Whether it is, always, a stage of its own within a layer: what a CUDA graph of the layer can swallow."""
        return self.layer is not None and self.point.marks_backward and not self.point.rerun_only


def find_places(models: list[torch.nn.Module], optimizer: Any = None) -> list[Place]:
    """Every place of the table that exists in these models (and this optimizer), outermost first."""
    owners = list(_owners(models, optimizer))
    places: dict[tuple[int, str], Place] = {}
    for point in HOOK_POINTS:
        for role, owner, side, layer in owners:
            if role != point.owner:
                continue
            target = owner if not point.member else getattr(owner, point.member, None)
            if target is None or type(target).__name__ in STAND_INS or not callable(target):
                continue
            is_module = isinstance(target, torch.nn.Module)
            holder, attribute = (target, "forward") if is_module else (owner, point.member or "forward")
            stage = point.stage.replace("*", side)
            if stage == "encoder.norms":
                continue  # the encoder's norms are its own time
            places.setdefault((id(holder), attribute), Place(holder, attribute, stage, layer, point))
    return list(places.values())


def missing_stages(places: list[Place]) -> dict[str, str]:
    """Stage -> reason, for every stage of the table without a place."""
    found = Counter(place.stage for place in places)
    wanted: dict[str, list[str]] = {}
    for point in HOOK_POINTS:
        for side in ("encoder", "decoder") if "*" in point.stage else ("",):
            stage = point.stage.replace("*", side)
            if stage not in ("encoder.norms", "decoder.mlp"):
                wanted.setdefault(stage, []).append(point.part)
    return {
        stage: f"nothing to hook: this model has no {' or '.join(names)}"
        for stage, names in wanted.items()
        if not found[stage]
    }


Owner = tuple[str, Any, str, int | None]
"""(role, object, side, layer)"""


def _is(thing: Any, *class_names: str) -> bool:
    return any(cls.__name__ in class_names for cls in type(thing).__mro__)


def _owners(models: list[torch.nn.Module], optimizer: Any) -> Iterator[Owner]:
    if optimizer is not None:
        yield "optimizer", optimizer, "", None
    configs: list[Any] = []
    for wrapped in models:
        if hasattr(wrapped, "zero_grad_buffer"):
            yield "ddp", wrapped, "", None
        root = unwrapped(wrapped)
        yield "root", root, "", None
        for config in (getattr(wrapped, "config", None), getattr(root, "config", None)):
            if config is not None and not any(config is seen for seen in configs):
                configs.append(config)
                yield "config", config, "", None
        yield from _parts(root)


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside Megatron's DDP, Float16Module and the like."""
    while isinstance(inner := getattr(model, "module", None), torch.nn.Module):
        model = inner
    return model


def _parts(root: torch.nn.Module) -> Iterator[Owner]:
    """The owners inside one model. Whatever lies below a vision module is on the encoder's side."""
    vision: list[str] = []
    projectors: list[str] = []
    for path, module in root.named_modules():
        name = path.rsplit(".", 1)[-1]
        below_vision = any(path.startswith(f"{top}.") for top in vision)
        below_projector = any(path == top or path.startswith(f"{top}.") for top in projectors)
        if not below_vision and not below_projector and (name in VISION_NAMES or _is(module, *VISION_CLASSES)):
            vision.append(path)
            yield "vision", module, "encoder", None
        elif not below_projector and (name in PROJECTOR_NAMES or _is(module, *PROJECTOR_CLASSES)):
            projectors.append(path)
            yield "projector", module, "", None
        side = "encoder" if below_vision else "decoder"
        if side == "decoder" and hasattr(module, "decoder") and hasattr(module, "compute_language_model_loss"):
            yield "language", module, side, None
        if side == "decoder" and _is(module, "TransformerBlock"):
            yield "block", module, side, None
        if _is(module, "TransformerLayer"):
            yield from _layer_parts(module, side)


def _layer_parts(module: Any, side: str) -> Iterator[Owner]:
    layer = module.layer_number - 1  # Megatron counts from 1, across pipeline stages
    yield "layer", module, side, layer
    attention = getattr(module, "self_attention", None)
    if attention is not None:
        yield "attention", attention, side, layer
    mlp = getattr(module, "mlp", None)
    if hasattr(mlp, "router"):
        yield "moe", mlp, side, layer
        dispatcher = getattr(mlp, "token_dispatcher", None)
        if dispatcher is not None:
            yield "dispatcher", dispatcher, side, layer
    elif mlp is not None:
        yield "dense", mlp, side, layer
