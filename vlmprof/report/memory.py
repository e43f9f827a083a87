"""A run's memory on the terminal: who holds what, the peak, growth, experts and FLOPs."""

from rich.text import Text

from vlmprof.records.figures import Figure, Measured
from vlmprof.records.memory import Router
from vlmprof.records.run import Outcome, Run
from vlmprof.records.stage_tree import STAGES, ancestors
from vlmprof.report.fitted import Column, FittedTable
from vlmprof.report.tree import branch
from vlmprof.sizes import show_bytes

__all__ = ["COLUMNS", "SOURCES", "held_table", "memory_notes", "memory_sums", "memory_table"]

COLUMNS = {
    "parameters": "params",
    "gradients": "grads",
    "optimizer_state": "optim",
    "saved_activations": "saved",
    "held_at_peak": "at peak",
    "held_after": "after",
}
SOURCES = {"tensor-bytes": "tensor bytes, counted", "allocator": "as the allocator reports it"}


def memory_sums(run: Run) -> dict[str, dict[str, float]]:
    """Stage -> figure of `COLUMNS` -> bytes, children included in their parents; empty where nothing was counted."""
    sums: dict[str, dict[str, float]] = {}
    for row in run.stages:
        if row.memory is None:
            continue
        for name in COLUMNS:
            measured = getattr(row.memory, name)
            if isinstance(measured, Figure) and (name != "saved_activations" or row.phase == "forward"):
                for stage in (row.name, *ancestors(row.name), "step"):
                    line = sums.setdefault(stage, {})
                    line[name] = line.get(name, 0.0) + measured.value
    return sums


WORTH = {
    "held_at_peak": 6,
    "parameters": 5,
    "saved_activations": 4,
    "gradients": 3,
    "optimizer_state": 2,
    "held_after": 1,
}
"""Which columns a narrow terminal gets: the least worth is left out first."""


def memory_table(run: Run) -> FittedTable:
    """Bytes by stage, children included in their parents."""
    sums = memory_sums(run)
    columns = (Column(title, WORTH[name]) for name, title in COLUMNS.items())
    table = FittedTable([Column("memory", left=True), *columns], padding=1)
    seen = [stage for stage in STAGES if stage in sums]
    for stage in seen:
        cells = (show_bytes(sums[stage][name]) if sums[stage].get(name) else "" for name in COLUMNS)
        table.add_row(Text(branch(stage, seen), style="bold" if stage == "step" else ""), *cells)
    return table


def held_table(outcome: Outcome) -> FittedTable:
    """Who held what when memory ran out, the largest first; and what of it was saved for backward."""
    held, saved = outcome.held or {}, outcome.saved or {}
    categories = ("parameters", "gradients", "optimizer_state", "tensors")
    worth = {"params": 4, "grads": 2, "optim": 1, "tensors": 5, "saved": 3, "total": 0}
    columns = (Column(title, value) for title, value in worth.items())
    table = FittedTable([Column("held when it ran out", left=True), *columns], padding=1)
    for stage in sorted(held, key=lambda one: -sum(held[one].values())):
        row = held[stage]
        sizes = [*(row.get(name, 0) for name in categories), saved.get(stage, 0), sum(row.values())]
        table.add_row(stage, *(show_bytes(size) if size else "" for size in sizes))
    if outcome.shapes:
        shapes = outcome.shapes
        images, patches = shapes.get("images", ()), shapes.get("patches", ())
        table.caption = f"micro-batch of {len(images)} images, patches {patches}"
    return table


def memory_notes(run: Run) -> Text:
    """The peak and where it fell, growth, host memory; experts; FLOPs."""
    memory = run.memory
    text = Text(style="dim")
    if memory is not None:
        where = f" in {memory.peak_stage} ({memory.peak_phase})" if memory.peak_stage else ""
        source = memory.peak.source if isinstance(memory.peak, Figure) else ""
        text.append(f"peak {_bytes(memory.peak)}{where}; {SOURCES.get(source, source)}")
        growth = memory.growth
        if growth is not None and isinstance(growth.bytes_per_step, Figure):
            text.append(f"; growth {show_bytes(growth.bytes_per_step.value)} a counted step")
        text.append(f"; host RSS {_bytes(memory.host_rss)}")
        if memory.device is not None:
            device = memory.device
            text.append(
                f"\nreserved {_bytes(device.reserved)}, of it {_bytes(device.fragmented)} in no use at the peak; "
                f"CUDA graphs' pools {_bytes(device.graph_pools)}; not PyTorch's {_bytes(device.outside)}"
            )
    if isinstance(run.router, Router):
        router = run.router
        worst = max(router.layers, key=lambda layer: layer.imbalance)
        text.append(
            f"\nexperts: in layer {worst.layer} the most loaded gets {worst.imbalance:.1f} times the mean (entropy "
            f"{worst.entropy:.2f}); {_value(router.dropped_tokens)} choices dropped"
        )
        if isinstance(router.bytes_sent, Figure):
            text.append(f"; dispatcher sent {_bytes(router.bytes_sent)}")
    if run.flops is not None:
        flops = run.flops
        text.append(f"\n{_value(flops.tflops_per_second, 3)} model TFLOP/s")
        if isinstance(flops.padding, Figure) and isinstance(flops.model, Figure) and flops.model.value:
            text.append(f", {flops.padding.value / flops.model.value:.0%} of it on padding")
        if isinstance(flops.mfu, Figure):
            text.append(f", MFU {flops.mfu.value:.1%}")
    return text


def _bytes(measured: Measured) -> str:
    return show_bytes(measured.value) if isinstance(measured, Figure) else "-"


def _value(measured: Measured, digits: int = 2) -> str:
    return f"{measured.value:.{digits}g}" if isinstance(measured, Figure) else "-"
