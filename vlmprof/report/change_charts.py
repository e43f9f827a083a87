"""Figures of what changed and who did it: a waterfall of changes, the path of a search."""

from collections.abc import Sequence
from typing import NamedTuple

from vlmprof.report.charts import COLOURS, LEGEND, Plot, graph_objects, label, plain, with_rows

__all__ = ["Attempt", "change_waterfall", "search_path"]


class Attempt(NamedTuple):
    """One attempt of a search: which row it tried, what came of it, in words."""

    row: int
    verdict: str
    text: str


VERDICT_MARKS = {"good": ("#16a34a", "circle"), "bad": ("#dc2626", "x"), "skip": ("#f59e0b", "diamond-open")}
"""Colour and shape: the shape alone tells them apart."""


def search_path(attempts: Sequence[Attempt], rows: Sequence[str], marked: Sequence[int]) -> Plot:
    """How a search closed in: attempts along the axis, rows upwards; `marked` rows are the answer."""
    go = graph_objects()
    numbers = list(range(1, len(attempts) + 1))
    path = go.Scatter(
        x=numbers,
        y=[one.row for one in attempts],
        mode="lines",
        line={"color": "#94a3b8", "width": 1},
        hoverinfo="skip",
        showlegend=False,
    )
    figure = go.Figure(path)
    for verdict, (colour, symbol) in VERDICT_MARKS.items():
        own = [(number, one) for number, one in zip(numbers, attempts, strict=True) if one.verdict == verdict]
        if own:
            figure.add_trace(
                go.Scatter(
                    x=[number for number, _ in own],
                    y=[one.row for _, one in own],
                    mode="markers",
                    name=verdict,
                    marker={"color": colour, "symbol": symbol, "size": 10},
                    customdata=[label(one.text) for _, one in own],
                    hovertemplate="attempt %{x}: %{customdata}<extra>%{fullData.name}</extra>",
                )
            )
    for row in marked:
        figure.add_hline(y=row, line={"color": "#dc2626", "dash": "dash", "width": 1.5})
    height = min(600, 130 + 22 * len(rows))
    figure.update_layout(height=height, margin={"l": 60, "r": 16, "t": 8, "b": 44}, legend=LEGEND)
    figure.update_xaxes(title="attempt", nticks=10, automargin=True, rangemode="tozero", zeroline=False)
    places = {"tickvals": list(range(len(rows))), "ticktext": [label(row) for row in rows]}
    figure.update_yaxes(title="commit", automargin=True, zeroline=False, **places)
    return plain(figure)


class Change(NamedTuple):
    """One step of a waterfall: a name for the axis, the whole name, how far it leads."""

    label: str
    name: str
    value: float


def change_waterfall(rows: Sequence[Change], start: tuple[str, float], end: str, unit: str) -> Plot:
    """From `start` by the changes of `rows` to the end: what explains a difference."""
    go = graph_objects()
    names = [start[0], *(row.name for row in rows), end]
    last = start[1] + sum(row.value for row in rows)
    amounts = [f"{start[1]:,.4g}", *(f"{row.value:+,.3g}" for row in rows), f"{last:,.4g}"]
    figure = go.Figure(
        go.Waterfall(
            orientation="h",
            y=list(range(len(names))),
            x=[start[1], *(row.value for row in rows), 0],
            measure=["absolute", *("relative" for _ in rows), "total"],
            text=amounts,
            textposition="outside",
            cliponaxis=False,
            customdata=[label(name) for name in names],
            increasing={"marker": {"color": COLOURS["worse"]}},
            decreasing={"marker": {"color": COLOURS["better"]}},
            totals={"marker": {"color": COLOURS["total"]}},
            connector={"line": {"width": 1, "color": "#94a3b8"}},
            hovertemplate="%{customdata}<br>%{text} " + unit + "<extra></extra>",
        )
    )
    reached, level = [start[1]], start[1]
    for row in rows:
        level += row.value
        reached.append(level)
    low, high = min(reached), max(reached)
    room = max((high - low) * 0.4, high * 0.002)  # for the amounts beside the bars
    figure.update_xaxes(range=[max(0.0, low - room) if low >= 0 else low - room, high + room])
    figure.update_layout(showlegend=False)
    return with_rows(figure, [(0, name) for name in (start[0], *(row.label for row in rows), end)], unit)
