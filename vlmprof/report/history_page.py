"""A history as a page: every metric run after run, and where its level changed."""

from vlmprof.records.figures import Figure
from vlmprof.records.history import ChangePoint, History, MetricHistory, Series
from vlmprof.report.charts import Series as Points
from vlmprof.report.charts import Titles, lines
from vlmprof.report.page import Block, Cell, Chart, Listing, Page, Prose, Section, Table, Tone
from vlmprof.report.run_time import show
from vlmprof.sizes import axis_unit

__all__ = ["history_page"]

CHARTS = 8
"""Of a series, at most: the metrics that changed come first."""
TONES: dict[str, Tone] = {"worse": "bad", "better": "good"}


def history_page(history: History) -> Page:
    """A section a series of runs."""
    worse = [one.name for series in history.series for one in series.metrics if one.worse_now]
    changed = any(one.changes for series in history.series for one in series.metrics)
    quiet = Cell("changed") if changed else Cell("no change", "good")
    about = (("folder", history.folder), ("method", history.method))
    sections = tuple(_section(number, series) for number, series in enumerate(history.series))
    return Page("history", history.folder, Cell("worse now", "bad") if worse else quiet, about, (), sections)


def _section(number: int, series: Series) -> Section:
    title = f"{series.workload} {series.hash} on {series.platform}"
    blocks: list[Block] = []
    if series.too_few:
        blocks.append(Prose("Too few runs ended well to find a change of level.", "warn"))
    ordered = sorted(series.metrics, key=lambda metric: (not metric.worse_now, not metric.changes))
    shown = [metric for metric in ordered if sum(value is not None for value in metric.values) > 1]
    blocks += [_chart(number, place, series, metric) for place, metric in enumerate(shown[:CHARTS])]
    if not shown:
        blocks.append(Chart(f"series-{number}", "Metrics over runs", absent="no metric was measured by two runs"))
    if len(shown) > CHARTS:
        more = ", ".join(metric.name for metric in shown[CHARTS:])
        blocks.append(Prose(f"Without a figure here: {more}.", "dim"))
    failed = [run for run in series.runs if run.status != "ok"]
    if failed:
        told = (f"{run.created} {run.record}: {run.status} {run.failure_class or ''}" for run in failed)
        blocks.append(Listing(tuple(Cell(text.strip(), "bad") for text in told)))
    return Section(f"series-{number}", title, tuple(blocks))


def _chart(number: int, place: int, series: Series, metric: MetricHistory) -> Chart:
    known = [(run, value) for run, value in enumerate(metric.values) if value is not None]
    largest = max(value for _, value in known)
    scale, unit = axis_unit(largest) if metric.unit == "bytes" else (1, metric.unit)
    points = Points(metric.name, [run for run, _ in known], [value / scale for _, value in known])
    plot = lines([points], Titles(unit, "run", unit), [change.run - 0.5 for change in metric.changes])
    rows = tuple(
        (str(run), series.runs[run].created, series.runs[run].commit, _amount(metric, value), _change(metric, run))
        for run, value in known
    )
    table = Table(("run", "when", "what", "value", "change of level"), rows, texts=frozenset({1, 2}))
    return Chart(f"metric-{number}-{place}", f"{metric.name}, {unit}", plot, table, note=_note(metric))


def _amount(metric: MetricHistory, value: float) -> str:
    return show(Figure(value=value, unit=metric.unit, source="wall-clock"), digits=4)


def _change(metric: MetricHistory, run: int) -> str | Cell:
    found = next((change for change in metric.changes if change.run == run), None)
    return "" if found is None else Cell(_words(metric, found), TONES[found.verdict])


def _words(metric: MetricHistory, change: ChangePoint) -> str:
    before, after = _amount(metric, change.before), _amount(metric, change.after)
    return f"{change.change:+.1%} ({before} → {after}, p {change.p:.2g}): {change.verdict}"


def _note(metric: MetricHistory) -> str:
    told = [f"Run {change.run}: {_words(metric, change)}." for change in metric.changes] or ["No change of level."]
    if metric.accepted is not None:
        told.append(f"Accepted by the baseline: {_amount(metric, metric.accepted)}.")
    if metric.changes:
        told.append("Dashed: where the level changed.")
    return " ".join(told)
