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
    for title in ("preset", "parameters", "active", "TFLOP/step", "sequences/step", ""):
        table.add_column(title, justify="left" if title in ("preset", "") else "right", no_wrap=title != "")
    for name in presets():
        workload = load_workload(name)
        counts = parameters(workload)
        step = next(itertools.islice(plan_steps(workload, open_source(workload)), 1))
        table.add_row(
            name,
            _billions(counts["total"]),
            _billions(counts["active"]),
            f"{step_flops(workload, step) / 1e12:,.3g}",
            f"{workload.knobs.global_batch_size} x {workload.data.seq_length}",
            workload.description,
        )
    Console().print(table)
    return 0


def _billions(count: int) -> str:
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
