"""Is a workload possible at all, and can this stage of the project honour it? Tables, each row with its reason."""

from collections.abc import Callable

from vlmprof.errors import UserError
from vlmprof.workload.spec import Workload

__all__ = ["check", "check_ranks"]

Rule = tuple[Callable[[Workload], bool], Callable[[Workload], str]]

IMPOSSIBLE: tuple[Rule, ...] = (
    (
        lambda w: w.model.encoder.hidden_size % w.model.encoder.num_attention_heads != 0,
        lambda w: (
            f"model.encoder.hidden_size {w.model.encoder.hidden_size} does not divide by "
            f"model.encoder.num_attention_heads {w.model.encoder.num_attention_heads}"
        ),
    ),
    (
        lambda w: (w.model.encoder.hidden_size // w.model.encoder.num_attention_heads) % 4 != 0,
        lambda w: (
            f"an encoder head of {w.model.encoder.hidden_size // w.model.encoder.num_attention_heads} channels "
            "does not divide by 4, which 2-D rotary positions need: change model.encoder.hidden_size or "
            "model.encoder.num_attention_heads"
        ),
    ),
    (
        lambda w: round(w.model.encoder.num_position_embeddings**0.5) ** 2 != w.model.encoder.num_position_embeddings,
        lambda w: (
            f"model.encoder.num_position_embeddings {w.model.encoder.num_position_embeddings} is not a square, "
            "but the learned positions form a square grid"
        ),
    ),
    (
        lambda w: w.model.decoder.num_attention_heads % w.model.decoder.num_query_groups != 0,
        lambda w: (
            f"model.decoder.num_attention_heads {w.model.decoder.num_attention_heads} does not divide by "
            f"model.decoder.num_query_groups {w.model.decoder.num_query_groups}"
        ),
    ),
    (
        lambda w: w.model.decoder.kv_channels % 2 != 0,
        lambda w: f"model.decoder.kv_channels {w.model.decoder.kv_channels} is odd, but rotary positions need pairs",
    ),
    (
        lambda w: w.model.decoder.moe_router_topk > w.model.decoder.num_moe_experts,
        lambda w: (
            f"model.decoder.moe_router_topk {w.model.decoder.moe_router_topk} is above "
            f"model.decoder.num_moe_experts {w.model.decoder.num_moe_experts}"
        ),
    ),
    (
        lambda w: w.model.decoder.num_moe_experts % w.layout.ep != 0,
        lambda w: (
            f"model.decoder.num_moe_experts {w.model.decoder.num_moe_experts} does not divide by "
            f"layout.ep {w.layout.ep}"
        ),
    ),
    (
        lambda w: w.knobs.global_batch_size % w.knobs.micro_batch_size != 0,
        lambda w: (
            f"knobs.global_batch_size {w.knobs.global_batch_size} does not divide by "
            f"knobs.micro_batch_size {w.knobs.micro_batch_size}"
        ),
    ),
    (
        lambda w: w.data.max_pixels < w.model.encoder.image_unit**2,
        lambda w: (
            f"data.max_pixels {w.data.max_pixels} is smaller than the least picture of "
            f"{w.model.encoder.image_unit}x{w.model.encoder.image_unit} pixels"
        ),
    ),
    (
        lambda w: w.model.decoder.vocab_size < 512,
        lambda w: f"model.decoder.vocab_size {w.model.decoder.vocab_size} is below 512, which bytes and marks need",
    ),
    (
        lambda w: w.data.kind == "path" and not w.data.path,
        lambda w: "data.kind is 'path' but data.path names no folder or JSONL file; use --data PATH",
    ),
    (
        lambda w: w.data.kind != "path" and bool(w.data.path),
        lambda w: f"data.path is set but data.kind is '{w.data.kind}'; use --data {w.data.path}",
    ),
    (
        lambda w: w.knobs.freeze_vision and w.knobs.freeze_projector and w.knobs.freeze_decoder,
        lambda w: "knobs.freeze_vision, freeze_projector and freeze_decoder together leave nothing to train",
    ),
    (
        lambda w: bool(w.knobs.recompute_modules) and w.knobs.recompute != "selective",
        lambda w: (
            f"knobs.recompute_modules needs knobs.recompute=selective, but it is '{w.knobs.recompute}': "
            "add --set recompute=selective"
        ),
    ),
    (
        lambda w: bool(w.knobs.cuda_graph_scope) and w.knobs.cuda_graph == "none",
        lambda w: "knobs.cuda_graph_scope needs knobs.cuda_graph=local or transformer_engine",
    ),
    (
        lambda w: w.knobs.cuda_graph == "local" and "attn" in w.knobs.cuda_graph_scope,
        lambda w: (
            "knobs.cuda_graph=local captures no attention of an MoE layer: leave attn out of knobs.cuda_graph_scope, "
            "or use transformer_engine"
        ),
    ),
    (
        lambda w: w.knobs.cuda_graph != "none" and w.knobs.recompute == "full",
        lambda w: (
            f"knobs.cuda_graph={w.knobs.cuda_graph} cannot hold layers that knobs.recompute=full runs again: "
            "use recompute=selective or none"
        ),
    ),
)

NOT_YET: tuple[Rule, ...] = (
    (lambda w: w.layout.tp > 1, lambda w: "layout.tp above 1 (tensor parallel) is not built yet"),
    (lambda w: w.layout.pp > 1, lambda w: "layout.pp above 1 (pipeline parallel) is not built yet"),
    (lambda w: w.layout.cp > 1, lambda w: "layout.cp above 1 (context parallel) is not built yet"),
    (lambda w: w.layout.etp > 1, lambda w: "layout.etp above 1 (expert tensor parallel) is not built yet"),
    (lambda w: w.layout.fsdp != "none", lambda w: f"layout.fsdp={w.layout.fsdp} is not built yet: use none"),
    (lambda w: w.knobs.dispatcher == "flex", lambda w: "knobs.dispatcher=flex is not built yet: use alltoall"),
)


def check(workload: Workload) -> Workload:
    """The workload itself, when it is possible and can be run.

    Raises:
        UserError: with the first reason why not.
    """
    for holds, reason in (*IMPOSSIBLE, *NOT_YET):
        if holds(workload):
            raise UserError(reason(workload))
    return workload


def check_ranks(workload: Workload, ranks: int) -> None:
    """Whether the layout fits this many ranks.

    Raises:
        UserError: with the numbers that do not fit, and what would.
    """
    layout, knobs = workload.layout, workload.knobs
    if layout.dp and layout.dp != ranks:
        raise UserError(
            f"layout.dp={layout.dp} needs {layout.dp} ranks, but there are {ranks}: use --nproc {layout.dp}"
        )
    if ranks % layout.ep:
        raise UserError(
            f"layout.ep={layout.ep} does not divide the {ranks} rank{'s' * (ranks > 1)}: "
            f"use --nproc {layout.ep} or a multiple"
        )
    if knobs.global_batch_size % (knobs.micro_batch_size * ranks):
        raise UserError(
            f"knobs.global_batch_size {knobs.global_batch_size} does not divide by {ranks} ranks of "
            f"knobs.micro_batch_size {knobs.micro_batch_size}"
        )
