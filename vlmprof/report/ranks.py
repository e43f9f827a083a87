"""Several ranks on the terminal: the spread of each stage over them, and their loads side by side."""

from typing import NamedTuple

from rich.text import Text

from vlmprof.records.run import Run
from vlmprof.records.stage_tree import STAGES
from vlmprof.report.fitted import Column, FittedTable
from vlmprof.report.tree import branch
from vlmprof.sizes import show_bytes

__all__ = ["SpreadRow", "rank_table", "spread_rows", "spread_table"]


class SpreadRow(NamedTuple):
    """Total over phases of one stage over ranks, milliseconds a step."""

    stage: str
    least: float
    median: float
    most: float
    slowest: int
    """The rank that is slowest in the phase that differs most."""


def spread_rows(run: Run) -> list[SpreadRow]:
    """A row a stage, in the tree's order; none for one rank."""
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
    return [
        SpreadRow(stage, least, median, most, slowest[stage][1])
        for stage in STAGES
        if stage in sums
        for least, median, most in [sums[stage]]
    ]


def spread_table(run: Run) -> FittedTable:
    """Total over phases of each stage: least, median and most over ranks, and who is slowest."""
    columns = (Column("min", 2), Column("median", 1), Column("max", 3), Column("slowest", 4))
    table = FittedTable([Column("over ranks, ms", left=True), *columns])
    rows = spread_rows(run)
    seen = [row.stage for row in rows]
    for row in rows:
        cells = (f"{value:,.1f}" for value in (row.least, row.median, row.most))
        table.add_row(Text(branch(row.stage, seen)), *cells, f"rank {row.slowest}")
    return table


def rank_table(run: Run) -> FittedTable:
    """What explains why one rank is slower: pictures, experts, data, and where it waits."""
    titles = ("step ms", "data", "encoder", "patches", "expert tokens", "grad_sync ms", "peak")
    worth = (7, 2, 4, 3, 5, 6, 1)
    table = FittedTable([Column("rank"), *map(Column, titles, worth)])
    for row in run.ranks:
        numbers = (row.step_ms, row.data_ms, row.encoder_ms, row.patches, row.expert_tokens, row.grad_sync_ms)
        peak = show_bytes(row.peak_bytes) if row.peak_bytes is not None else "-"
        table.add_row(str(row.rank), *("-" if n is None else f"{n:,.1f}" for n in numbers), peak)
    return table
