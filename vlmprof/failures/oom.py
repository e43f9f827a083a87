"""An out-of-memory message turned into numbers, and the numbers into a reading."""

import re
from typing import NamedTuple

from vlmprof.sizes import show_bytes

__all__ = ["figures_of", "read_oom"]

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"(\d+(?:\.\d+)?) ?([KMGT]?)i?(?:B|bytes)"
_FORMS = {
    name: re.compile(pattern.replace("SIZE", _SIZE))
    for name, pattern in {
        # torch 2.1 and later ("capacty" in 2.0 and 2.1), then the form up to 1.13
        "tried_bytes": r"[Tt]ried to allocate SIZE",
        "capacity_bytes": r"total capac\w* of SIZE|; SIZE total capacity",
        "free_bytes": r"of which SIZE is free|; SIZE free",
        "in_use_bytes": r"this process has SIZE memory in use",
        "allocated_bytes": r"Of the allocated memory SIZE is allocated by PyTorch|; SIZE already allocated",
        "private_pools_bytes": r"SIZE allocated in private pools",
        "unallocated_bytes": r"SIZE is reserved by PyTorch but unallocated",
        "reserved_bytes": r"; SIZE reserved in total by PyTorch",
        "limit_bytes": r"memory limit of SIZE|allowed memory is SIZE|; SIZE allowed",
    }.items()
}
_OTHERS = re.compile(rf"Process \d+ has {_SIZE} memory in use")
_GPU = re.compile(r"GPU (\d+)")
_NCCL = re.compile(r"Failed to CUDA (?:host )?\w+ (?:async )?(\d+) bytes")

_NOTABLE = 0.05
"""Share of the GPU from which a part of it explains an OOM."""
_HUGE = 0.25
"""Share of the GPU from which one request does."""
_USUAL_OUTSIDE = 2 * 2**30
"""Bytes that CUDA's context, NCCL and cuBLAS take in a usual run."""


class Part(NamedTuple):
    """A part of the GPU's memory that can be why there is none left."""

    name: str
    bytes: float
    least: float
    """Share of the GPU from which it counts."""
    reading: str
    advice: tuple[str, ...]


def figures_of(message: str) -> dict[str, float]:
    """The numbers of an out-of-memory message, in bytes; with what follows from them."""
    figures: dict[str, float] = {}
    for name, form in _FORMS.items():
        match = form.search(message)
        if match is not None:
            number, unit = [group for group in match.groups() if group is not None][:2]
            figures[name] = float(number) * _UNITS[unit]
    if (match := _NCCL.search(message)) is not None:
        figures["tried_bytes"] = float(match[1])
    if (match := _GPU.search(message)) is not None:
        figures["gpu"] = float(match[1])
    others = [float(number) * _UNITS[unit] for number, unit in _OTHERS.findall(message)]
    if others:
        figures["other_processes_bytes"] = sum(others)
    return figures | _derived(figures)


def _derived(figures: dict[str, float]) -> dict[str, float]:
    derived: dict[str, float] = {}
    allocated = figures.get("allocated_bytes")
    if "reserved_bytes" in figures and allocated is not None:
        derived["unallocated_bytes"] = max(figures["reserved_bytes"] - allocated, 0.0)
    if {"in_use_bytes", "allocated_bytes", "unallocated_bytes"} <= figures.keys():
        # Private pools are allocated by PyTorch too: they are part of `allocated`.
        inside = figures["allocated_bytes"] + figures["unallocated_bytes"]
        derived["outside_pytorch_bytes"] = max(figures["in_use_bytes"] - inside, 0.0)
    if "other_processes_bytes" not in figures and {"capacity_bytes", "free_bytes", "in_use_bytes"} <= figures.keys():
        rest = figures["capacity_bytes"] - figures["free_bytes"] - figures["in_use_bytes"]
        derived["other_processes_bytes"] = max(rest, 0.0)
    return derived


def read_oom(figures: dict[str, float]) -> tuple[str, tuple[str, ...]] | None:
    """The reading of an OOM's numbers and advice, or None where there are too few.

    Of the parts that count, the largest is the reading; the rest are named beside it.
    """
    capacity, tried = figures.get("capacity_bytes"), figures.get("tried_bytes")
    if not capacity or tried is None:
        return None
    parts = [part for part in _parts(figures) if part.bytes >= part.least * capacity]
    parts.sort(key=lambda part: -part.bytes)
    free = figures.get("free_bytes", 0.0)
    whole = f"{show_bytes(tried)} were asked for and {show_bytes(free)} of {show_bytes(capacity)} were free"
    if not parts:
        held = figures.get("allocated_bytes")
        full = f": PyTorch's tensors hold {show_bytes(held)}" if held is not None else ""
        return f"the GPU is full{full}; {whole}", _FULL
    also = "".join(f"; also {part.name}: {show_bytes(part.bytes)}" for part in parts[1:])
    return f"{parts[0].name}: {parts[0].reading}; {whole}{also}", parts[0].advice


def _parts(figures: dict[str, float]) -> list[Part]:
    tried = figures.get("tried_bytes", 0.0)
    unallocated = figures.get("unallocated_bytes", 0.0)
    outside = figures.get("outside_pytorch_bytes", 0.0)
    others = figures.get("other_processes_bytes", 0.0)
    pools = figures.get("private_pools_bytes", 0.0)
    share = tried / (figures.get("capacity_bytes") or tried or 1.0)
    return [
        Part(
            "another process on the GPU",
            others,
            _NOTABLE,
            f"other processes hold {show_bytes(others)}",
            ("Look at nvidia-smi: a run that has not ended, or ranks that share a GPU (CUDA_VISIBLE_DEVICES).",),
        ),
        Part(
            "fragmentation",
            unallocated if unallocated >= tried else 0.0,
            _NOTABLE,
            f"{show_bytes(unallocated)} are reserved by PyTorch but in pieces too small for the request",
            ("Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; steadier sequence and picture sizes help too.",),
        ),
        Part(
            "CUDA-graph private pools",
            pools,
            _NOTABLE,
            f"captured graphs keep {show_bytes(pools)} for themselves",
            ("Capture fewer or smaller graphs (--set cuda_graph_scope=...), or share one pool among them.",),
        ),
        Part(
            "non-PyTorch memory",
            outside - _USUAL_OUTSIDE,
            _NOTABLE,
            f"{show_bytes(outside)} of this process lie outside PyTorch: CUDA context, NCCL buffers, cuBLAS workspaces",
            ("Fewer communicators or a smaller NCCL_BUFFSIZE; look at what the other libraries allocate.",),
        ),
        Part(
            "one huge request",
            tried,
            _HUGE,
            f"one tensor of {show_bytes(tried)} is {share:.0%} of the GPU",
            ("Look at that micro-batch: an unusual picture size or sequence length; cap it (--set max_pixels=...).",),
        ),
    ]


_FULL = (
    "Run `vlmprof run --stage-breakdown` to see which stage holds what at the peak; recomputation, a smaller "
    "micro-batch or a sharded optimizer free the most.",
)
