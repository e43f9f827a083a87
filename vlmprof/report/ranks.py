"""Several ranks on the terminal: the spread of each stage over them, and their loads side by side."""

from rich.table import Table
from rich.text import Text

from vlmprof.records.run import Run
from vlmprof.records.stage_tree import STAGES
from vlmprof.report.tree import branch
from vlmprof.sizes import show_bytes

__all__ = ["rank_table", "spread_table"]


def spread_table(run: Run) -> Table:
    """Total over phases of each stage: least, median and most over ranks, and who is slowest."""
    sums: dict[str, list[float]] = {}
    slowest: dict[str, tuple[float, int]] = {}
    for row in run.stages:
        if row.ranks is None:
            continue
        entry = sums.setdefault(row.name, [0.0, 0.0, 0.0])
        for place, value in enumerate((row.ranks.min, row.ranks.median, row.ranks.max)):
            entry[place] += value
        gap = row.ranks.max - row.ranks.min
        if gap >= slowest.get(row.name, (-1.0, 0))[0]:
            slowest[row.name] = (gap, row.ranks.slowest)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("over ranks, ms", no_wrap=True)
    for title in ("min", "median", "max", "slowest"):
        table.add_column(title, justify="right", no_wrap=True)
    seen = [stage for stage in STAGES if stage in sums]
    for stage in seen:
        cells = (f"{value:,.1f}" for value in sums[stage])
        table.add_row(Text(branch(stage, seen)), *cells, f"rank {slowest[stage][1]}")
    return table


def rank_table(run: Run) -> Table:
    """What explains why one rank is slower: pictures, experts, data, and where it waits."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("rank", "step ms", "data ms", "encoder ms", "patches", "expert tokens", "grad_sync ms", "peak"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in run.ranks:
        numbers = (row.step_ms, row.data_ms, row.encoder_ms, row.patches, row.expert_tokens, row.grad_sync_ms)
        peak = show_bytes(row.peak_bytes) if row.peak_bytes is not None else "-"
        table.add_row(str(row.rank), *("-" if n is None else f"{n:,.1f}" for n in numbers), peak)
    return table
