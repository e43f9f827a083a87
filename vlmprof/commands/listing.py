"""`vlmprof run --list`: the presets with their size, known without torch."""

import itertools

__all__ = ["list_presets"]


def list_presets() -> int:
    """Print a table of the presets."""
    from rich.console import Console
    from rich.table import Table

    from vlmprof.workload.flops import parameters, step_flops
    from vlmprof.workload.packing import plan_steps
    from vlmprof.workload.samples import open_source
    from vlmprof.workload.settings import load_workload, presets

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("preset")
    for title in ("parameters", "active", "tokens/step", "FLOPs/step"):
        table.add_column(title, justify="right", no_wrap=True)
    for name in presets():
        workload = load_workload(name)
        counts = parameters(workload)
        step = next(itertools.islice(plan_steps(workload, open_source(workload)), 1))
        tokens = workload.knobs.global_batch_size * workload.data.seq_length
        figures = (counts["total"], counts["active"], tokens, step_flops(workload, step))
        table.add_row(name, *map(_short, figures))
    Console().print(table)
    return 0


def _short(count: float) -> str:
    """Three digits and a unit: 31.0 B parameters, 4.87 P floating-point operations."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:.0f}"
