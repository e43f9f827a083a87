"""Figures as plotly figures: validated by plotly, then plain dicts. Texts that are not ours are escaped, because plotly
reads tags in labels. Colours that depend on light and dark are left to the page's script.

Needs the extra `vlmprof[report]`; it is imported where it is used.
"""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vlmprof.errors import MachineError
from vlmprof.report.tree import depth_and_name

__all__ = [
    "COLOURS",
    "LEGEND",
    "Bars",
    "Plot",
    "Series",
    "Titles",
    "graph_objects",
    "heat_map",
    "label",
    "lines",
    "plain",
    "ranges_over_ranks",
    "tree_bars",
    "with_rows",
]

Plot = dict[str, Any]
"""`data` and `layout`"""
Bars = Mapping[str, Sequence[float]]
"""Name of a part -> its length in every row."""

COLOURS = {
    "forward": "#3b82f6",
    "backward": "#8b5cf6",
    "recompute": "#f59e0b",
    "step": "#64748b",
    "parameters": "#3b82f6",
    "gradients": "#8b5cf6",
    "optimizer state": "#14b8a6",
    "activations and the rest": "#f59e0b",
    "held": "#3b82f6",
    "tensors": "#f59e0b",
    "plain": "#3b82f6",
    "spanned": "#8b5cf6",
    "traced": "#14b8a6",
    "counted": "#f59e0b",
    "loss": "#3b82f6",
    "worse": "#dc2626",
    "better": "#16a34a",
    "total": "#64748b",
}
"""Of the same brightness, so that they stand out on white and on black."""
LEGEND = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "traceorder": "normal"}
ROW_PX = 26
INDENT_PX = 12
LETTER_PX = 6.6
LETTERS = 25
"""Of a row's name, at most."""
MANY = 32
"""Columns of a heat map beyond which gaps would hide them on a phone."""


class Titles(NamedTuple):
    """What the axes and the values of a chart are called, with units."""

    row: str
    column: str
    value: str


def graph_objects() -> Any:
    """plotly's figure classes.

    Raises:
        MachineError: plotly is not installed.
    """
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise MachineError("a report needs plotly, which is missing: pip install 'vlmprof[report]'") from None
    return go


def label(text: str) -> str:
    """Plain text for plotly: no tags, no entities of its own."""
    return html.escape(text, quote=False)


def shortened(name: str) -> str:
    """The end of a long name: on a phone there must be room for bars beside it. Tables have it whole."""
    return name if len(name) <= LETTERS else "…" + name[1 - LETTERS :]


def plain(figure: Any) -> Plot:
    """A plotly figure as a dictionary, without a template: the page has its own colours."""
    found: Plot = json.loads(figure.to_json())
    found.get("layout", {}).pop("template", None)
    return found


def tree_bars(stages: Sequence[str], parts: Bars, unit: str, marks: Bars | None = None) -> Plot:
    """One horizontal bar a stage, stacked by part; `marks` are further figures of the same rows, as upright strokes."""
    go = graph_objects()
    figure = go.Figure()
    rows = list(range(len(stages)))
    names = [label(stage) for stage in stages]
    for name, values in parts.items():
        figure.add_trace(
            go.Bar(
                y=rows,
                x=list(values),
                name=label(name),
                orientation="h",
                customdata=names,
                marker={"color": COLOURS.get(name)},
                hovertemplate="%{customdata}<br>%{fullData.name} %{x:,.4g} " + unit + "<extra></extra>",
            )
        )
    for name, values in (marks or {}).items():
        figure.add_trace(
            go.Scatter(
                y=rows,
                x=list(values),
                name=label(name),
                mode="markers",
                customdata=names,
                marker={"symbol": "line-ns", "size": 16, "line": {"width": 3, "color": "#ef4444"}},
                hovertemplate="%{customdata}<br>%{fullData.name} %{x:,.4g} " + unit + "<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.25)
    return with_rows(figure, [depth_and_name(stage) for stage in stages], unit)


def with_rows(figure: Any, rows: Sequence[tuple[int, str]], unit: str) -> Plot:
    """Row names, flush left and set in by depth, beside horizontal bars; the first row on top."""
    rows = [(depth, shortened(name)) for depth, name in rows]
    margin = max((depth * INDENT_PX + len(name) * LETTER_PX for depth, name in rows), default=0.0) + 14
    for number, (depth, name) in enumerate(rows):
        figure.add_annotation(
            text=label(name),
            xref="paper",
            x=0,
            xanchor="left",
            xshift=depth * INDENT_PX - margin,
            y=number,
            showarrow=False,
            align="left",
            font={"size": 12},
        )
    figure.update_layout(
        height=len(rows) * ROW_PX + 110,
        margin={"l": margin, "r": 16, "t": 8, "b": 44},
        legend=LEGEND,
    )
    figure.update_yaxes(range=[len(rows) - 0.5, -0.5], showticklabels=False, zeroline=False, showgrid=False)
    figure.update_xaxes(title={"text": unit, "standoff": 6}, automargin=True, nticks=6)
    if not figure.layout.xaxis.range:
        figure.update_xaxes(rangemode="tozero")
    return plain(figure)


def ranges_over_ranks(rows: Sequence[tuple[str, float, float, float, int]], unit: str) -> Plot:
    """For every (stage, least, median, most, slowest rank) a bar from the least to the most, the median marked."""
    go = graph_objects()
    numbers = list(range(len(rows)))
    figure = go.Figure(
        [
            go.Bar(
                y=numbers,
                x=[most - least for _, least, _, most, _ in rows],
                base=[least for _, least, _, _, _ in rows],
                orientation="h",
                name="least to most",
                marker={"color": "#93c5fd", "line": {"color": "#3b82f6", "width": 1}},
                customdata=[[label(s), low, most, rank] for s, low, _, most, rank in rows],
                hovertemplate="%{customdata[0]}<br>%{customdata[1]:,.4g} to %{customdata[2]:,.4g} "
                + unit
                + ", slowest: rank %{customdata[3]}<extra></extra>",
            ),
            go.Scatter(
                y=numbers,
                x=[median for _, _, median, _, _ in rows],
                mode="markers",
                name="median",
                marker={"symbol": "line-ns", "size": 14, "line": {"width": 3, "color": "#f59e0b"}},
                hovertemplate="median %{x:,.4g} " + unit + "<extra></extra>",
            ),
        ]
    )
    return with_rows(figure, [depth_and_name(stage) for stage, *_ in rows], unit)


class Series(NamedTuple):
    """Points of one kind: name, places along the axis, values."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def lines(series: Sequence[Series], titles: Titles, changes: Sequence[float] = (), markers: bool = True) -> Plot:
    """Values along an axis; `changes` are places where a change was found."""
    go = graph_objects()
    figure = go.Figure()
    for one in series:
        figure.add_trace(
            go.Scatter(
                x=list(one.x),
                y=list(one.y),
                name=label(one.name),
                mode="lines+markers" if markers else "lines",
                line={"color": COLOURS.get(one.name), "width": 1.5},
                marker={"size": 6},
                hovertemplate=f"{titles.column} %{{x}}<br>%{{fullData.name}} %{{y:,.5g}} {titles.value}<extra></extra>",
            )
        )
    for place in changes:
        figure.add_vline(x=place, line={"color": "#dc2626", "dash": "dash", "width": 1.5})
    figure.update_layout(
        height=300,
        margin={"l": 48, "r": 16, "t": 8, "b": 44},
        showlegend=len(series) > 1,
        legend=LEGEND,
    )
    figure.update_xaxes(title=titles.column, automargin=True, nticks=8)
    figure.update_yaxes(title=titles.row, automargin=True, nticks=6)
    return plain(figure)


def heat_map(rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], titles: Titles) -> Plot:
    """A table as colours."""
    go = graph_objects()
    figure = go.Figure(
        go.Heatmap(
            z=[list(row) for row in values],
            x=[label(name) for name in columns],
            y=[label(name) for name in rows],
            colorscale="Viridis",
            zmin=0,
            colorbar={"title": {"text": titles.value, "side": "right"}, "thickness": 12},
            hovertemplate=f"{titles.row} %{{y}}, {titles.column} %{{x}}<br>%{{z:,.4g}} {titles.value}<extra></extra>",
            xgap=1 if len(columns) <= MANY else 0,
            ygap=1,
        )
    )
    figure.update_layout(height=max(220, len(rows) * 22 + 120), margin={"l": 40, "r": 8, "t": 8, "b": 44})
    figure.update_xaxes(title=titles.column, type="category", automargin=True, nticks=9, tickangle=0)
    figure.update_yaxes(title=titles.row, type="category", autorange="reversed", automargin=True)
    return plain(figure)
