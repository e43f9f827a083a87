"""A comparison on the terminal, and as Markdown that fits a comment on a pull request."""

import io
import shlex
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from vlmprof.records.comparison import Comparison, MemoryChange, Metric, Side, StageChange
from vlmprof.report.escape import escaped, fenced
from vlmprof.report.fitted import Column, FittedTable
from vlmprof.sizes import show_bytes

__all__ = ["markdown", "print_comparison", "render_text"]

STYLES = {"worse": "bold red", "better": "green", "same": "", "undecided": "yellow"}
MARKS = {"worse": "🔴", "better": "🟢", "same": "⚪", "undecided": "🟡"}
SHOWN_STAGES = 12
SHOWN_CAVEATS = 12
LEAST_SHARE = 0.01
"""Of the step's change: a stage that explains less has no row of its own."""


def print_comparison(found: Comparison) -> None:
    """Print a comparison on stdout: colours on a terminal, plain text in a pipe."""
    Console().print(_render(found))


def render_text(found: Comparison, width: int = 100) -> str:
    """The same as `print_comparison` prints, as plain text."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, legacy_windows=False).print(_render(found))
    return file.getvalue()


def _render(found: Comparison) -> RenderableType:
    parts: list[RenderableType] = [_heading(found), Text(), _metrics(found), *_reasons(found.metrics)]
    stages = _shown_stages(found.stages)
    if stages:
        parts += [Text(), _stages(found, stages), Text(found.attribution, style="dim")]
    memory = _shown_memory(found.memory)
    if memory:
        parts += [Text(), _memory(memory)]
    if found.losses is not None:
        style = "yellow" if found.losses.reading == "diverged" else "dim"
        parts += [Text(), Text(f"losses: {found.losses.text}", style=style)]
    notes = [*_allowed(found), *found.caveats]
    if notes:
        parts += [Text(), Text("\n".join(f"- {note}" for note in _few(notes)), style="dim")]
    return Group(*parts, Text(), Text(found.method, style="dim"))


def _heading(found: Comparison) -> Text:
    text = Text(found.summary, style=STYLES[found.verdict])
    for name, side in (("A", found.a), ("B", found.b)):
        text.append(f"\n{name}  {_side(side)}", style="not bold default")
    if found.normalized:
        text.append(f"\nper thousand {found.normalized.replace('-', ' ')}", style="not bold default")
    return text


def _side(side: Side) -> str:
    runs = "1 run" if side.runs == 1 else f"{side.runs} runs"
    core = f", megatron-core {side.megatron}" if side.megatron else ""
    commit = f" ({side.commit[:10]})" if side.commit else ""
    when = side.created[0] if side.created[0] == side.created[1] else f"{side.created[0]} to {side.created[1]}"
    return f"{side.label}: {runs} of {side.workload} on {side.platform}{core}{commit}, {when}"


def _metrics(found: Comparison) -> FittedTable:
    sides = (Column("A", 2), Column("B", 3))
    table = FittedTable([Column("metric", left=True), *sides, Column("change"), Column("95 %", 1), Column("verdict")])
    for row in _different(found.metrics):
        cells = [_amount(row.a, row.unit), _amount(row.b, row.unit), change_of(row), interval_of(row)]
        table.add_row(row.title, *cells, Text(row.verdict, style=STYLES[row.verdict]))
    return table


def _different(metrics: Sequence[Metric]) -> list[Metric]:
    """Without what is exact and equal."""
    return [row for row in metrics if not (row.exact and row.a == row.b)]


def _reasons(metrics: Sequence[Metric]) -> list[RenderableType]:
    lines = [f"{row.title}: {row.reason}" for row in metrics if row.verdict != "same"]
    equal = [row.title for row in metrics if row not in _different(metrics)]
    lines += [f"the same to the last digit: {', '.join(equal)}"] if equal else []
    return [Text("\n".join(lines), style="dim")] if lines else []


def change_of(row: Metric) -> str:
    """The relative change; what is exactly equal is `=`."""
    if row.a == row.b:
        return "="
    return "from 0" if row.change is None else f"{row.change:+.2%}"


def interval_of(row: Metric) -> str:
    """The interval, `exact` for what needs none, a dash where nothing is known of the spread."""
    if row.exact:
        return "exact"
    return f"{100 * row.interval[0]:+.1f}..{row.interval[1]:+.1%}" if row.interval else "-"


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return show_bytes(value)
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if unit.startswith("FLOP") and abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:,.4g} {unit}"


def _shown_stages(stages: Sequence[StageChange]) -> list[StageChange]:
    worth = [row for row in stages if row.moved or abs(row.share_of_change or 0.0) >= LEAST_SHARE]
    return worth[:SHOWN_STAGES]


def _shown_memory(memory: Sequence[MemoryChange]) -> list[MemoryChange]:
    return [row for row in memory if row.category == "held_at_peak" or row.phase in ("", "forward")][:SHOWN_STAGES]


def _stages(found: Comparison, rows: Sequence[StageChange]) -> FittedTable:
    columns = [
        Column("stage (self, ms)", left=True),
        Column("A", 2),
        Column("change"),
        Column("share"),
        Column("95 %", 1),
    ]
    kernels = any(row.busy_a_ms is not None for row in rows)
    ranks = any(row.rank_b is not None for row in rows)
    columns += [Column("kernels", 4)] if kernels else []
    columns += [Column("ranks", 3)] if ranks else []
    table = FittedTable(columns)
    for row in rows:
        cells = [f"{row.a_ms:,.2f}", f"{row.change_ms:+,.2f}", _share(row.share_of_change)]
        cells.append(f"{row.interval[0]:+,.1f}..{row.interval[1]:+,.1f}" if row.interval else "-")
        cells += [_kernels(row)] if kernels else []
        cells += [_ranks(row)] if ranks else []
        table.add_row(Text(f"{row.name} ({row.phase})", style="bold" if row.moved else ""), *cells)
    return table


def _kernels(row: StageChange) -> str:
    return f"{row.busy_b_ms - row.busy_a_ms:+,.2f}" if row.busy_a_ms is not None and row.busy_b_ms is not None else "-"


def _ranks(row: StageChange) -> str:
    if row.rank_change_ms is None:
        return "-"
    return f"{row.rank_change_ms[0]:+,.2f} to {row.rank_change_ms[1]:+,.2f} (rank {row.rank_b})"


def _share(share: float | None) -> str:
    return f"{share:.0%}" if share is not None else "-"


def _memory(rows: Sequence[MemoryChange]) -> FittedTable:
    columns = [Column("memory", left=True), Column("what"), Column("A", 1), Column("change"), Column("share", 2)]
    table = FittedTable(columns)
    for row in rows:
        sizes = [show_bytes(row.a_bytes), _signed(row.change_bytes)]
        table.add_row(row.stage, row.category.replace("_", " "), *sizes, _share(row.share_of_change))
    return table


def _signed(size: float) -> str:
    return ("+" if size > 0 else "") + show_bytes(size)


def _allowed(found: Comparison) -> Iterator[str]:
    way = "--normalize" if found.normalized else "--allow"
    for one in found.allowed:
        yield f"lifted ({way}): {one.name} {one.a} against {one.b}"


def _few(notes: Sequence[str]) -> list[str]:
    rest = len(notes) - SHOWN_CAVEATS
    return [*notes[:SHOWN_CAVEATS], *([f"and {rest} more (--json has them all)"] if rest > 0 else [])]


def markdown(found: Comparison) -> str:
    """Markdown for a comment on a pull request: verdict, metrics, moved stages, caveats, how to get it again."""
    lines = [f"### {MARKS[found.verdict]} {escaped(found.summary)}", ""]
    lines += [f"- **{name}** {escaped(_side(side))}" for name, side in (("A", found.a), ("B", found.b))]
    cells = [
        [row.title, _amount(row.a, row.unit), _amount(row.b, row.unit), change_of(row), interval_of(row), row.verdict]
        for row in found.metrics
    ]
    lines += ["", *_grid(("metric", "A", "B", "change", "95 % interval", "verdict"), cells)]
    lines += ["", *(f"- {escaped(f'{r.title}: {r.reason}')}" for r in found.metrics if r.verdict != "same")]
    stages = _shown_stages(found.stages)
    if stages:
        moved = [
            [
                f"{r.name} ({r.phase})",
                f"{r.a_ms:,.2f}",
                f"{r.b_ms:,.2f}",
                f"{r.change_ms:+,.2f}",
                _share(r.share_of_change),
            ]
            for r in stages
        ]
        lines += ["", *_grid(("stage (self time)", "A ms", "B ms", "change ms", "of the change"), moved)]
        lines += ["", escaped(found.attribution)]
    memory = _shown_memory(found.memory)
    if memory:
        held = [
            [
                r.stage,
                r.category.replace("_", " "),
                show_bytes(r.a_bytes),
                show_bytes(r.b_bytes),
                _signed(r.change_bytes),
            ]
            for r in memory
        ]
        lines += ["", *_grid(("stage", "memory", "A", "B", "change"), held)]
    if found.losses is not None:
        lines += ["", f"Losses: {escaped(found.losses.text)}."]
    notes = [*_allowed(found), *found.caveats]
    if notes:
        lines += [
            "",
            f"<details><summary>Caveats ({len(notes)})</summary>",
            "",
            *(f"- {escaped(n)}" for n in _few(notes)),
        ]
        lines += ["", "</details>"]
    if found.command:
        lines += ["", "Again:", "", fenced(shlex.join(found.command))]
    return "\n".join([*lines, "", f"<sub>{escaped(found.method)}</sub>"]) + "\n"


def _grid(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    ruler = "|".join(["---", *("---:" for _ in titles[1:])])
    return [f"| {' | '.join(titles)} |", f"|{ruler}|", *(f"| {' | '.join(map(escaped, row))} |" for row in rows)]
