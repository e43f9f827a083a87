"""A history on the terminal: a sparkline a metric, and its change points with the first run after each."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from vlmprof.records.history import ChangePoint, History, MetricHistory, Series
from vlmprof.records.store import dump_json
from vlmprof.records.summary import RATES
from vlmprof.sizes import show_bytes

__all__ = ["print_history", "render_history", "sparkline"]

LEVELS = "▁▂▃▄▅▆▇█"
WIDTH = 40
NUMBERS = 36
"""Columns that first, latest and change take."""
NEAR = 3
"""Runs apart at which change points of several metrics count as one event: each is off by a run or two."""
TITLES = {"step_ms": "step", "tokens_per_second": "tokens/s", "useful_tokens_per_second": "useful tokens/s"}
TITLES |= {"memory_peak": "peak memory", "device_busy_ms": "device busy"}
STYLES = {"worse": "red", "better": "green"}
COMMIT = 40


def print_history(history: History, json: bool) -> None:
    """Print on stdout: a document, or what `render_history` says."""
    if json:
        print(dump_json(history).rstrip())
    else:
        console = Console()
        console.print(render_history(history, console.width), soft_wrap=True)


def render_history(history: History, width: int = 100) -> RenderableType:
    """Every series: its metrics, then what changed, then what failed."""
    parts: list[RenderableType] = []
    for series in history.series:
        parts += [Text() if parts else Text(""), _heading(series)]
        if series.too_few:
            parts.append(Text("too few good runs to find a change of level", style="dim"))
        parts += [_table(series, width - NUMBERS), *_changes(series), *_failures(series)]
    return Group(*parts, Text(f"\n{history.method}", style="dim"))


def _heading(series: Series) -> Text:
    text = Text()
    text.append(series.workload, style="bold")
    text.append(f" {series.hash} on {series.platform}: {len(series.runs)} runs, ")
    text.append(f"{series.runs[0].created[:16]} to {series.runs[-1].created[:16]}")
    return text


def _table(series: Series, width: int) -> Table:
    """Headline metrics, and the stages that changed."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("metric", no_wrap=True)
    for title in ("first", "latest", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    some = any("/" not in metric.name for metric in series.metrics)
    shown = [
        metric
        for metric in series.metrics
        if metric.latest is not None and ("/" not in metric.name or metric.changes or not some)
    ]
    left = width - max((len(TITLES.get(metric.name, metric.name)) for metric in shown), default=0)
    for metric in shown:
        if metric.latest is None:
            continue
        first = metric.changes[0].before if metric.changes else metric.latest
        change = f"{metric.latest / first - 1:+.1%}" if metric.changes else "-"
        style = STYLES[metric.changes[-1].verdict] if metric.changes else ""
        table.add_row(
            TITLES.get(metric.name, metric.name),
            _number(first, metric.unit),
            _number(metric.latest, metric.unit),
            Text(change, style=style),
            sparkline(metric.values, [change.run for change in metric.changes], min(max(left, 10), WIDTH)),
        )
    return table


def _number(value: float, unit: str) -> str:
    if unit == "bytes":
        return show_bytes(value)
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2
    return f"{value:,.{digits}f}" + (" ms" if unit == "ms" else "")


Found = tuple[ChangePoint, MetricHistory]


def _changes(series: Series) -> list[RenderableType]:
    """The latest first; what changed within a few runs is told together, at the run that is surest."""
    found = sorted(
        ((change, metric) for metric in series.metrics for change in metric.changes), key=lambda one: -one[0].run
    )
    events: list[list[Found]] = []
    for one in found:
        if events and events[-1][-1][0].run - one[0].run <= NEAR:
            events[-1].append(one)
        else:
            events.append([one])
    return [part for event in events for part in _event(series, event)]


def _event(series: Series, event: Sequence[Found]) -> list[RenderableType]:
    surest = min(event, key=lambda one: (one[0].p, "/" in one[1].name))[0]
    run, before = series.runs[surest.run], series.runs[surest.last_before]
    head = Text(f"\nfrom run {surest.run + 1} of {len(series.runs)}, {run.created[:16]}, ")
    head.append(run.commit[:COMMIT] or "commit unknown", style="bold")
    if before.commit and run.commit != before.commit:
        head.append(f"\n  before: {before.commit[:COMMIT]}", style="dim")
    head.append(f"\n  {run.record}", style="dim")
    order = [metric.name for metric in series.metrics]
    told = any(metric.name == "step_ms" for _, metric in event)  # then the rates say nothing new
    ordered = sorted(event, key=lambda one: order.index(one[1].name))
    ordered = [one for one in ordered if not (told and one[1].name in RATES)]
    return [head, *(_line(change, metric) for change, metric in ordered)]


def _line(change: ChangePoint, metric: MetricHistory) -> Text:
    line = Text(f"  {TITLES.get(metric.name, metric.name)} ")
    line.append(f"{change.change:+.1%}", style=STYLES[change.verdict])
    line.append(f"  {_number(change.before, metric.unit)} -> {_number(change.after, metric.unit)}")
    line.append(f"  ({change.runs_before} and {change.runs_after} runs, p {_p(change.p)})", style="dim")
    if metric.worse_now and change is metric.changes[-1]:
        line.append(" the latest level", style="bold red")
    elif metric.accepted is not None and change is metric.changes[-1] and change.verdict == "worse":
        line.append(f" accepted: {_number(metric.accepted, metric.unit)}", style="dim")
    return line


def _p(p: float) -> str:
    return "< 1e-9" if p < 1e-9 else f"{p:.2g}"


def _failures(series: Series) -> list[RenderableType]:
    bad = [(number, run) for number, run in enumerate(series.runs, 1) if run.status != "ok"]
    if not bad:
        return []
    text = Text(f"\n{len(bad)} of {len(series.runs)} did not end well:", style="yellow")
    for number, run in bad[-5:]:
        text.append(
            f"\n  run {number}, {run.created[:16]}: {run.status} {run.failure_class or ''}".rstrip(), style="dim"
        )
    return [text]


def sparkline(values: Sequence[float | None], changes: Sequence[int] = (), width: int = WIDTH) -> str:
    """One character a run, or a median over neighbours where there are more runs than `width`; a bar where a new level
    begins, a dot where no run has a value. The scale goes from the 2nd to the 98th percentile: a spike is cut off."""
    known = np.array([value for value in values if value is not None], dtype=float)
    if not known.size:
        return ""
    low, high = np.percentile(known, (2, 98))
    count = min(width, len(values))
    edges = [len(values) * cell // count for cell in range(count + 1)]
    line = ""
    for start, end in pairwise(edges):
        line += "|" if any(start <= change < end for change in changes) else ""
        own = [value for value in values[start:end] if value is not None]
        line += _cell(float(np.median(own)), low, high) if own else "·"
    return line


def _cell(value: float, low: float, high: float) -> str:
    share = (value - low) / (high - low) if high > low * (1 + 1e-9) else 0.5
    return LEVELS[round(min(max(share, 0.0), 1.0) * (len(LEVELS) - 1))]
