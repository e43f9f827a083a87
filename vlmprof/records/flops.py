"""The part of a run record about FLOPs: by stage and phase, useful and padding apart, and the rate they come to."""

from collections.abc import Sequence

from vlmprof.records.figures import Absent, Measured, Record, figure
from vlmprof.records.journal import Event

__all__ = ["PEAKS", "Flops", "flops_of"]

PEAKS: dict[str, dict[str, float]] = {
    "a100": {"bf16": 312e12, "fp32": 19.5e12},  # NVIDIA A100 datasheet
    "h100": {"bf16": 989.4e12, "fp32": 66.9e12},  # NVIDIA H100 SXM datasheet
    "h200": {"bf16": 989.4e12, "fp32": 66.9e12},  # NVIDIA H200 SXM datasheet
    "b200": {"bf16": 2250e12, "fp32": 75e12},  # NVIDIA Blackwell datasheet, HGX B200 a GPU
    "gb200": {"bf16": 2500e12, "fp32": 80e12},  # NVIDIA GB200 NVL72 datasheet, a GPU
    "gb300": {"bf16": 2500e12, "fp32": 80e12},  # NVIDIA GB300 NVL72 datasheet, a GPU
}
"""Dense peak FLOP/s of one device by precision; without sparsity."""


class Flops(Record):
    stages: dict[str, dict[str, Measured]]
    """Stage -> phase -> FLOPs a step, recomputation included."""
    model: Measured
    """Forward and backward a step without recomputation: what MFU counts."""
    useful: Measured
    """Of `model`, on tokens that are not padding."""
    padding: Measured
    tflops_per_second: Measured
    """Model TFLOP/s of one rank, over plain steps."""
    mfu: Measured
    """Model FLOP/s over the device's dense peak, 0 to 1."""


def flops_of(plain: Sequence[Event], platform: str, precision: str, ranks: int) -> Flops | None:
    """From the plain steps' work; None where the work was not told."""
    steps = [step for step in plain if (step.get("work") or {}).get("flops")]
    if not steps:
        return None
    works = [step["work"]["flops"] for step in steps]
    stages: dict[str, dict[str, Measured]] = {}
    for stage, phases in works[0]["stages"].items():
        stages[stage] = {
            phase: figure([work["stages"].get(stage, {}).get(phase, 0) for work in works], "FLOP", "analytic")
            for phase in phases
        }
    rates = [work["model"] / ranks / step["ms"] * 1e-9 for work, step in zip(works, steps, strict=True)]
    peak = PEAKS.get(platform.split("-x")[0], {}).get(precision)
    mfu: Measured = (
        figure([rate * 1e12 / peak for rate in rates], "ratio", "wall-clock")
        if peak
        else Absent(absent=f"no peak FLOP/s is known for {platform} in {precision}")
    )
    return Flops(
        stages=stages,
        model=figure([work["model"] for work in works], "FLOP", "analytic"),
        useful=figure([work["useful"] for work in works], "FLOP", "analytic"),
        padding=figure([work["model"] - work["useful"] for work in works], "FLOP", "analytic"),
        tflops_per_second=figure(rates, "TFLOP/s", "wall-clock"),
        mfu=mfu,
    )
