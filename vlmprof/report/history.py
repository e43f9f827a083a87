"""A history on the terminal: a sparkline a metric, and its change points with the first run after each."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from vlmprof.records.history import ChangePoint, History, MetricHistory, Series
from vlmprof.records.store import dump_json
from vlmprof.sizes import show_bytes

__all__ = ["print_history", "render_history", "sparkline"]

LEVELS = "▁▂▃▄▅▆▇█"
WIDTH = 40
TITLES = {"step_ms": "step", "tokens_per_second": "tokens/s", "useful_tokens_per_second": "useful tokens/s"}
TITLES |= {"memory_peak": "peak memory", "device_busy_ms": "device busy"}
STYLES = {"worse": "red", "better": "green"}
COMMIT = 40


def print_history(history: History, json: bool) -> None:
    """Print on stdout: a document, or what `render_history` says."""
    if json:
        print(dump_json(history).rstrip())
    else:
        Console().print(render_history(history))


def render_history(history: History) -> RenderableType:
    """Every series: its metrics, then what changed, then what failed."""
    parts: list[RenderableType] = []
    for series in history.series:
        parts += [Text() if parts else Text(""), _heading(series)]
        if series.too_few:
            parts.append(Text("too few good runs to find a change of level", style="dim"))
        parts += [_table(series), *_changes(series), *_failures(series)]
    return Group(*parts, Text(f"\n{history.method}", style="dim"))


def _heading(series: Series) -> Text:
    text = Text()
    text.append(series.workload, style="bold")
    text.append(f" {series.hash} on {series.platform}: {len(series.runs)} runs, ")
    text.append(f"{series.runs[0].created[:16]} to {series.runs[-1].created[:16]}")
    return text


def _table(series: Series) -> Table:
    """Headline metrics, and the stages that changed."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("metric", no_wrap=True)
    for title in ("first", "latest", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    some = any("/" not in metric.name for metric in series.metrics)
    for metric in series.metrics:
        if metric.latest is None or ("/" in metric.name and not metric.changes and some):
            continue
        first = metric.changes[0].before if metric.changes else metric.latest
        change = f"{metric.latest / first - 1:+.1%}" if metric.changes else "-"
        style = STYLES[metric.changes[-1].verdict] if metric.changes else ""
        table.add_row(
            TITLES.get(metric.name, metric.name),
            _number(first, metric.unit),
            _number(metric.latest, metric.unit),
            Text(change, style=style),
            sparkline(metric.values, [change.run for change in metric.changes]),
        )
    return table


def _number(value: float, unit: str) -> str:
    if unit == "bytes":
        return show_bytes(value)
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2
    return f"{value:,.{digits}f}" + (" ms" if unit == "ms" else "")


def _changes(series: Series) -> list[RenderableType]:
    """The latest first; metrics that changed at the same run are told together."""
    places: dict[int, list[tuple[MetricHistory, ChangePoint]]] = {}
    for metric in series.metrics:
        for change in metric.changes:
            places.setdefault(change.run, []).append((metric, change))
    parts: list[RenderableType] = []
    for place in sorted(places, reverse=True):
        found = places[place]
        run, before = series.runs[place], series.runs[found[0][1].last_before]
        head = Text(f"\nfrom run {place + 1} of {len(series.runs)}, {run.created[:16]}, ")
        head.append(run.commit[:COMMIT] or "commit unknown", style="bold")
        head.append(f"\n  {run.record}", style="dim")
        if run.commit and before.commit and run.commit != before.commit:
            head.append(f"\n  before: {before.commit[:COMMIT]}", style="dim")
        parts.append(head)
        for metric, change in found:
            line = Text(f"  {TITLES.get(metric.name, metric.name)} ")
            line.append(f"{change.change:+.1%}", style=STYLES[change.verdict])
            line.append(f" ({_number(change.before, metric.unit)} -> {_number(change.after, metric.unit)}")
            line.append(f"; {change.runs_before} and {change.runs_after} runs, p {_p(change.p)})")
            if metric.worse_now:
                line.append(" the latest level", style="bold red")
            elif metric.accepted is not None and change is metric.changes[-1] and change.verdict == "worse":
                line.append(f" accepted by the baseline ({_number(metric.accepted, metric.unit)})", style="dim")
            parts.append(line)
    return parts


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
