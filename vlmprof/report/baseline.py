"""Baselines on the terminal: every accepted run with who, when, what and why, and how far runs lie apart."""

import json as json_module
import statistics
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vlmprof.records.baseline import Baseline, Entry
from vlmprof.records.figures import Figure

__all__ = ["print_baseline", "print_baselines"]


def print_baselines(found: Mapping[Path, Baseline], json: bool) -> None:
    """Print one line a baseline; as JSON, file -> document."""
    if json:
        print(json_module.dumps({str(path): one.model_dump(mode="json", by_alias=True) for path, one in found.items()}))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("baseline", overflow="fold")
    for title in ("runs", "dropped", "step", "run to run"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("latest", no_wrap=True)
    for path, one in found.items():
        level, deviation = _step(one)
        dropped = len(one.entries) - len(one.kept)
        latest = one.entries[-1].when[:10] if one.entries else "-"
        table.add_row(str(path), str(len(one.kept)), str(dropped or "-"), level, deviation, latest)
    Console().print(table)


def print_baseline(path: Path, baseline: Baseline) -> None:
    """Print all entries of one."""
    level, deviation = _step(baseline)
    text = Text(baseline.workload, style="bold")
    text.append(f" {baseline.hash} on {baseline.platform}: accepted runs: {len(baseline.kept)}", style="not bold")
    text.append(f", step {level}" if baseline.kept else "", style="not bold")
    text.append(f", {deviation} from run to run" if len(baseline.kept) > 1 else "", style="not bold")
    console = Console()
    console.print(text)
    console.print(Text(str(path), style="dim"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("id", "run", "step", "Megatron", "accepted", "why"):
        table.add_column(
            title, no_wrap=title in ("id", "run", "step", "Megatron"), justify="right" if title == "step" else "left"
        )
    before: tuple[str, ...] = ()
    for entry in baseline.entries:
        cells = _cells(entry)
        same = cells[-2:] == before[-2:]  # accepted together, for the same reason
        table.add_row(*cells[:-2], *(('"', '"') if same else cells[-2:]), style="dim" if entry.dropped else "")
        before = cells
    console.print(table)
    for caveat in baseline.caveats:
        console.print(Text(f"differs among these runs: {caveat}", style="dim"), soft_wrap=True)


def _cells(entry: Entry) -> tuple[str, ...]:
    step = entry.run.throughput.get("step_ms")
    why = entry.why
    if entry.dropped is not None:
        why += f"; dropped by {entry.dropped.who} {entry.dropped.when[:10]}: {entry.dropped.why}"
    return (
        entry.id,
        entry.run.created[:16],
        f"{step.value:,.1f} ms" if isinstance(step, Figure) else "-",
        entry.commit.removeprefix("megatron-core==")[:10] or "-",
        f"{entry.when[:10]} {entry.who}",
        why,
    )


def _step(baseline: Baseline) -> tuple[str, str]:
    """Median step time and its relative standard deviation over runs."""
    steps = [run.throughput.get("step_ms") for run in baseline.runs]
    values = [one.value for one in steps if isinstance(one, Figure)]
    if not values:
        return "-", "-"
    deviation = f"{statistics.stdev(values) / statistics.fmean(values):.1%}" if len(values) > 1 else "-"
    return f"{statistics.median(values):,.1f} ms", deviation
