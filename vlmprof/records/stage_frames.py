"""Which stage a Python stack stands in: for failures and hangs in steps that carry no hooks.

A table over the files and functions of Megatron-Core and of our own model; the innermost frame that a row knows tells
the stage. Attention and MLP are the encoder's when a frame of the vision model lies around them.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Frame", "place_of_frames", "read_stack"]


class Frame(NamedTuple):
    file: str
    line: int
    function: str


class Row(NamedTuple):
    file: str
    """Regular expression over the end of the path."""
    function: str
    """Regular expression over the whole function name; empty: any."""
    stage: str
    """A leading `*` stands for the side: encoder or decoder."""


ROWS: tuple[Row, ...] = (
    Row(r"moe/moe_layer\.py", r"route|router_and_preprocess", "decoder.router"),
    Row(r"moe/moe_layer\.py", r"preprocess|dispatch", "decoder.dispatcher.dispatch"),
    Row(r"moe/moe_layer\.py", r"combine|postprocess", "decoder.dispatcher.combine"),
    Row(r"moe/moe_layer\.py", r"routed_experts_compute|experts_compute", "decoder.experts"),
    Row(r"moe/moe_layer\.py", r"shared_experts_compute", "decoder.shared_experts"),
    Row(r"moe/router\.py", "", "decoder.router"),
    Row(
        r"moe/token_dispatcher\.py",
        r"dispatch.*|token_dispatch|token_permutation|preprocess",
        "decoder.dispatcher.dispatch",
    ),
    Row(r"moe/token_dispatcher\.py", r"combine.*|token_combine|token_unpermutation", "decoder.dispatcher.combine"),
    Row(r"moe/shared_experts\.py", "", "decoder.shared_experts"),
    Row(r"moe/experts\.py", "", "decoder.experts"),
    Row(r"transformer/(attention|dot_product_attention)\.py", "", "*.attention"),
    Row(r"transformer/mlp\.py", "", "*.mlp"),
    Row(r"transformer/transformer_(layer|block)\.py", "", "*"),
    Row(r"(workload/vision\.py)", r".*", "vision"),
    Row(r"common/embeddings/.*\.py", "", "embedding"),
    Row(r"workload/model\.py", r"scatter_images", "embedding"),
    Row(r"tensor_parallel/cross_entropy\.py", "", "head"),
    Row(r"language_module\.py", r"compute_language_model_loss", "head"),
    Row(r"training/loop\.py", r"useful_loss", "head"),
    Row(r"workload/(batches|samples)\.py", "", "data"),
    Row(r"distributed/(finalize_model_grads|param_and_grad_buffer|distributed_data_parallel)\.py", "", "grad_sync"),
    Row(r"core/optimizer/.*\.py", "", "optimizer"),
    Row(r"torch/optim/.*\.py", "", "optimizer"),
    Row(r"pipeline_parallel/p2p_communication\.py", "", "pipeline_wait"),
)
STEP_STAGES = ("data", "grad_sync", "optimizer", "pipeline_wait")
_VISION = re.compile(r"workload/vision\.py$|models/vision/")
_BACKWARD = re.compile(r"^(_engine_run_backward|custom_backward|backward_step)$")


def place_of_frames(frames: Sequence[Frame]) -> tuple[str | None, str | None]:
    """(stage, phase) of a stack, innermost frame first; (None, None) where no row knows a frame of it."""
    side = "encoder" if any(_VISION.search(frame.file) for frame in frames) else "decoder"
    backward = any(_BACKWARD.match(frame.function) for frame in frames)
    for frame in frames:
        for row in ROWS:
            if re.search(row.file + "$", frame.file) and (
                not row.function or re.fullmatch(row.function, frame.function)
            ):
                stage = _stage_of(row, side, frames)
                return stage, _phase(stage, backward, frames)
    return (None, "backward") if backward else (None, None)


def _stage_of(row: Row, side: str, frames: Sequence[Frame]) -> str:
    if row.stage == "vision":
        merger = any(frame.file.endswith("multimodal_projector.py") for frame in frames)
        return "projector" if merger else "encoder"
    if row.stage == "*.mlp" and any(frame.file.endswith("multimodal_projector.py") for frame in frames):
        return "projector"
    if row.stage == "*.mlp" and side == "decoder":
        return "decoder.experts" if any("moe/" in frame.file for frame in frames) else "decoder.mlp"
    return row.stage.replace("*", side)


def _phase(stage: str, backward: bool, frames: Sequence[Frame]) -> str:
    if stage in STEP_STAGES:
        return "step"
    if not backward:
        return "forward"
    rerun = any(frame.file.endswith("tensor_parallel/random.py") for frame in frames)
    return "recompute" if rerun else "backward"


_HEADER = re.compile(r"^(?:Current thread|Thread 0x|Stack)[^\n]*\(most recent call first\):\n", re.MULTILINE)
_LINE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')


def read_stack(text: str) -> list[Frame]:
    """The frames that `faulthandler` last dumped of the main thread (it comes last of all), innermost first."""
    headers = list(_HEADER.finditer(text))
    frames = []
    for line in text[headers[-1].end() :].splitlines() if headers else ():
        match = _LINE.match(line)
        if match is None and line.strip() == "Garbage-collecting":
            continue
        if match is None:
            break
        frames.append(Frame(match["file"], int(match["line"]), match["function"]))
    return frames
