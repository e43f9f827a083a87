"""A run record on the terminal: a summary, the stage tree with bars, findings in plain words."""

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from vlmprof.records.figures import Absent, Figure, Measured
from vlmprof.records.run import Run
from vlmprof.records.stage_tree import PHASES, STAGES
from vlmprof.records.store import dump_json
from vlmprof.report.device import device_notes, device_table
from vlmprof.report.fitted import Column, FittedTable
from vlmprof.report.memory import held_table, memory_notes, memory_table
from vlmprof.report.ranks import rank_table, spread_table
from vlmprof.report.tree import branch

if TYPE_CHECKING:
    from vlmprof.launch.doctor import Check

__all__ = [
    "by_stage",
    "print_checks",
    "print_comparison",
    "print_json",
    "print_run",
    "render",
    "render_text",
    "show_ms",
]

BAR_WIDTH = 12
CLOCKS = {"wall-clock": "wall clock", "cuda-event": "spans between CUDA events"}
EIGHTHS = " ▏▎▍▌▋▊▉█"


def render_text(run: Run, breakdown: bool, width: int = 100) -> str:
    """The same as `render`, as plain text."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, legacy_windows=False).print(render(run, breakdown))
    return file.getvalue()


def print_run(run: Run, breakdown: bool, footer: str = "") -> None:
    """Print a run on stdout: colours on a terminal, plain text in a pipe."""
    console = Console()
    console.print(render(run, breakdown))
    if footer:
        console.print(Text(f"\n{footer}", style="dim"), soft_wrap=True)


def print_json(runs: list[Run]) -> None:
    """Print one record as an object, several as a list."""
    texts = [dump_json(run).rstrip() for run in runs]
    print(texts[0] if len(texts) == 1 else "[" + ",\n".join(texts) + "]")


def print_comparison(runs: list[Run]) -> None:
    """Print runs on different data beside the first: step time, useful tokens, the encoder's share."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("data")
    for title in ("step (plain)", "/ first", "tokens/s", "/ first", "useful tokens/s", "encoder + projector"):
        table.add_column(title, justify="right")
    first = runs[0].throughput
    for run in runs:
        share = sum(row.share for row in run.stages if row.name in ("encoder", "projector"))
        table.add_row(
            run.data.realism,
            _number(run.throughput["step_ms"]),
            _ratio(run.throughput["step_ms"], first["step_ms"]),
            _number(run.throughput["tokens_per_second"]),
            _ratio(run.throughput["tokens_per_second"], first["tokens_per_second"]),
            _number(run.throughput["useful_tokens_per_second"]),
            f"{share:.0%}" if run.stages else "-",
        )
    Console().print(table)


def _ratio(one: Measured, other: Measured) -> str:
    return f"{one.value / other.value:.2f}" if isinstance(one, Figure) and isinstance(other, Figure) else "-"


def print_checks(checks: Iterable["Check"]) -> None:
    """Print doctor's checks."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in checks:
        mark, style = ("ok", "green") if check.ok else ("no", "dim") if check.optional else ("missing", "red")
        table.add_row(Text(mark, style=style), check.name, Text(check.found))
    Console().print(table)


def render(run: Run, breakdown: bool) -> RenderableType:
    """Everything a person wants to see of a run first."""
    parts: list[RenderableType] = [_heading(run)]
    if run.throughput and any(isinstance(figure, Figure) for figure in run.throughput.values()):
        parts += [Text(), _throughput(run)]
    if breakdown and any(isinstance(row.total_ms, Figure) for row in run.stages):
        parts += [Text(), stage_table(run), _footnotes(run)]
    if breakdown and run.device is not None:
        parts += [Text(), device_table(run, run.device), device_notes(run, run.device)]
    if breakdown and run.ranks:
        parts += [Text(), spread_table(run), Text(), rank_table(run)]
    if run.outcome.held:
        parts += [Text(), held_table(run.outcome)]
    elif breakdown and run.memory is not None:
        table = memory_table(run)  # an imported record knows no stages
        parts += [Text(), *([table] if table.row_count else []), memory_notes(run)]
    if run.findings:
        parts += [Text(), _findings(run)]
    if run.outcome.status != "ok":
        parts += [Text(), _outcome(run)]
    return Group(*parts)


def _heading(run: Run) -> Text:
    text = Text()
    text.append(run.workload.name, style="bold")
    text.append(f" {run.workload.hash}".rstrip())
    environment = run.environment
    if environment is not None:
        megatron = environment.packages.get("megatron-core")
        facts = [environment.platform, environment.precision]
        if megatron is not None:
            commit = f" ({megatron.commit[:10]})" if megatron.commit else ""
            facts.append(f"megatron-core {megatron.version}{commit}")
        if "torch" in environment.packages:
            facts.append(f"torch {environment.packages['torch'].version}")
        text.append(" on " + ", ".join(facts))
    work = run.effective_work
    if work is not None:
        text.append(
            f"\n{run.data.realism} data: {work.tokens:,.0f} tokens a step, {work.useful_tokens:,.0f} useful"
            f" ({(run.data.padding_share or 0):.0%} padding); {work.images:.1f} images of"
            f" {work.image_patches / max(work.images, 1):,.0f} patches"
        )
    for deviation in run.workload.deviations:
        text.append(f"\ndiffers from the published model: {deviation}", style="dim")
    return text


def _throughput(run: Run) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), show_header=True, header_style="dim")
    cells = []
    titles = {"step_ms": "step (plain)"}
    for name, measured in run.throughput.items():
        table.add_column(titles.get(name, name.replace("_per_second", "/s").replace("_", " ")), justify="right")
        cells.append(_number(measured))
    table.add_row(*cells)
    return table


def _number(measured: Measured) -> str:
    if isinstance(measured, Absent):
        return "-"
    digits = 1 if measured.value < 100 else 0
    return f"{measured.value:,.{digits}f} {measured.unit if measured.unit == 'ms' else ''}".rstrip()


def stage_table(run: Run) -> FittedTable:
    """The tree: total by phase, self over all phases, share of the observed step."""
    phases = [phase for phase in PHASES[:3] if any(row.phase == phase for row in run.stages)]
    columns = (*(Column(phase, 2 + place) for place, phase in enumerate(phases)), Column("total"), Column("self", 6))
    table = FittedTable([Column("stage", left=True), *columns, Column("share", 7), Column("", 1, left=True)])
    totals = by_stage(run, "total_ms")
    selves = by_stage(run, "self_ms")
    step = sum(totals.get("step", {}).values())
    seen = [stage for stage in STAGES if stage in totals]
    for stage in seen:
        whole, own = sum(totals[stage].values()), sum(selves[stage].values())
        share = whole / step if step else 0.0
        style = "bold" if stage == "step" else ("dim" if stage == "other" else "")
        table.add_row(
            Text(branch(stage, seen), style=style),
            *(show_ms(totals[stage].get(phase)) for phase in phases),
            show_ms(whole),
            show_ms(own) if stage != "step" else "",
            f"{share:.1%}",
            Text(bar(share), style="cyan" if "." not in stage else "blue"),
        )
    return table


def by_stage(run: Run, field: str) -> dict[str, dict[str, float]]:
    """Stage -> phase -> the figure of that field of `Stage`, where it was measured."""
    values: dict[str, dict[str, float]] = {}
    for row in run.stages:
        measured = getattr(row, field)
        if isinstance(measured, Figure):
            values.setdefault(row.name, {})[row.phase] = measured.value
    return values


def show_ms(value: float | None) -> str:
    """Milliseconds to three digits or so; empty where there are none."""
    return "" if value is None else f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of at most `width` cells, to an eighth of a cell; the least share that is not 0 shows."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _footnotes(run: Run) -> Text:
    observed = [step for step in run.steps if step.kind == "spanned" and not step.warmup]
    timed = run.stages[0].total_ms
    clock = CLOCKS.get(timed.source, timed.source) if isinstance(timed, Figure) else "no clock"
    notes = [f"ms a step, {clock}, mean over the middle half of {len(observed)} spanned steps"]
    if run.coverage is not None:
        notes.append(f"coverage {run.coverage:.3f}")
    for row in run.overhead:
        if isinstance(row.ratio, Figure):
            notes.append(f"{row.kind} steps take {row.ratio.value:.3f}x plain ones on the same batches")
    text = Text("\n".join(["; ".join(notes)]), style="dim")
    for stage, reason in run.missing.items():
        text.append(f"\nmissing: {stage} ({reason})")
    return text


def _findings(run: Run) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in run.findings:
        warning = finding.level == "warning"
        table.add_row(Text("!" if warning else "-", style="yellow" if warning else "dim"), finding.text)
    return table


def _outcome(run: Run) -> Text:
    outcome = run.outcome
    if outcome.status == "interrupted":
        when = "before the first step" if outcome.step is None else f"at step {outcome.step}"
        return Text(f"interrupted {when}: what was measured up to then is above", style="yellow")
    where = [f"rank {outcome.rank}" if len(run.ranks) > 1 and outcome.rank is not None else ""]
    where.append(f"step {outcome.step}" if outcome.step is not None else "")
    if outcome.micro_batch is not None:
        where.append(f"micro-batch {outcome.micro_batch}")
    if outcome.stage:
        layer = f" of layer {outcome.layer}" if outcome.layer is not None else ""
        phase = f" ({outcome.phase})" if outcome.phase else ""
        where.append(f"in {outcome.stage}{layer}{phase}")
    text = Text(f"failed: {outcome.failure_class or 'unknown'}", style="bold red")
    place = ", ".join(filter(None, where))
    text.append(f", {place}: " if place else ": ", style="not bold")
    text.append(outcome.message or "", style="not bold")
    if outcome.reading:
        text.append(f"\n  {outcome.reading}", style="not bold")
    for line in outcome.evidence:
        text.append(f"\n  {line}", style="dim")
    return text
