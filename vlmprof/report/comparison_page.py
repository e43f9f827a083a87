"""A comparison as a page: the verdicts, and the stages that explain the change."""

import shlex
from collections.abc import Sequence

from vlmprof.records.comparison import Comparison, MemoryChange, Metric, Side
from vlmprof.records.figures import Figure
from vlmprof.report.change_charts import Change, change_waterfall
from vlmprof.report.page import Block, Cell, Chart, Fact, Facts, Listing, Page, Prose, Section, Table, Tone
from vlmprof.report.run_time import show
from vlmprof.sizes import axis_unit, show_bytes

__all__ = ["VERDICTS", "comparison_page", "percent"]

VERDICTS: dict[str, Tone] = {"worse": "bad", "better": "good", "same": "good", "undecided": "warn"}
ORDER = ("worse", "undecided", "better", "same")
STEPS = 10
"""Changes that a waterfall shows one by one."""


def comparison_page(found: Comparison) -> Page:
    """Verdicts first, then what explains them."""
    sections = [
        Section("verdicts", "Verdicts", (_verdicts(found), _reasons(found))),
        _stages(found),
        _memory(found),
        _losses(found),
    ]
    return Page(
        "comparison",
        f"{found.a.label} → {found.b.label}",
        Cell(found.verdict, VERDICTS[found.verdict]),
        _about(found),
        (Prose(found.summary), _headline(found)),
        (*sections, _reading(found)),
    )


def _about(found: Comparison) -> tuple[tuple[str, str], ...]:
    rows = [("A", _side(found.a)), ("B", _side(found.b)), ("when", found.created)]
    rows += [("normalized", f"per thousand {found.normalized}")] if found.normalized else []
    rows += [("command", shlex.join(found.command))] if found.command else []
    return tuple(rows)


def _side(side: Side) -> str:
    commit = f" ({side.commit[:10]})" if side.commit else ""
    first, last = side.created
    return ", ".join(
        filter(
            None,
            (
                side.label,
                f"{side.runs} {'run' if side.runs == 1 else 'runs'} of {side.workload}",
                f"on {side.platform}",
                f"megatron-core {side.megatron}{commit}" if side.megatron or commit else "",
                f"torch {side.torch}" if side.torch else "",
                first if first == last else f"{first} to {last}",
            ),
        )
    )


def percent(change: float | None) -> str:
    """A relative change with its sign: `+3.2 %`."""
    return "A is 0" if change is None else "=" if change == 0 else f"{change:+.1%}"


def _value(metric: Metric, value: float) -> str:
    return show(Figure(value=value, unit=metric.unit, source=metric.source), digits=4)


def _headline(found: Comparison) -> Facts:
    ordered = sorted(found.metrics, key=lambda metric: ORDER.index(metric.verdict))
    return Facts(
        tuple(
            Fact(
                metric.title,
                percent(metric.change),
                f"{_value(metric, metric.a)} → {_value(metric, metric.b)}: {metric.verdict}",
                VERDICTS[metric.verdict] if metric.verdict != "same" else "",
            )
            for metric in ordered[:6]
        )
    )


def _verdicts(found: Comparison) -> Block:
    if not found.metrics:
        return Prose("Absent: the two sides have no metric in common.", "dim")
    rows = []
    for metric in sorted(found.metrics, key=lambda metric: ORDER.index(metric.verdict)):
        interval = "exact" if metric.exact else "unknown"
        if metric.interval is not None:
            interval = f"{metric.interval[0]:+.1%} to {metric.interval[1]:+.1%}"
        rows.append(
            (
                metric.title,
                Cell(metric.verdict, VERDICTS[metric.verdict]),
                "=" if metric.a == metric.b else percent(metric.change),
                _value(metric, metric.a),
                _value(metric, metric.b),
                interval,
                "" if metric.p_adjusted is None else f"{metric.p_adjusted:.3g}",
                f"{metric.threshold:.1%}",
            )
        )
    columns = ("metric", "verdict", "change", "A", "B", "95 % interval", "p, corrected", "matters from")
    return Table(columns, tuple(rows), caption=found.method, texts=frozenset({0, 1}))


def _reasons(found: Comparison) -> Listing:
    """Why, of all that is not the same."""
    return Listing(
        tuple(
            Cell(f"{metric.title}: {metric.reason}", VERDICTS[metric.verdict])
            for metric in sorted(found.metrics, key=lambda metric: ORDER.index(metric.verdict))
            if metric.verdict != "same"
        )
    )


def _stages(found: Comparison) -> Section:
    title = "What explains the change of the step, ms"
    told: list[Block] = [Prose(found.attribution)] if found.attribution else []
    if not found.stages:
        chart = Chart("waterfall", title, absent="the sides have no stage times in common: run with --stage-breakdown")
        return Section("stages", "Which stage it is", (*told, chart))
    named = [Change(_short(row.name, row.phase), f"{row.name}/{row.phase}", row.change_ms) for row in found.stages]
    before, after = sum(row.a_ms for row in found.stages), sum(row.b_ms for row in found.stages)
    rows = tuple(
        (
            f"{row.name}/{row.phase}",
            f"{row.a_ms:,.2f}",
            f"{row.b_ms:,.2f}",
            f"{row.change_ms:+,.2f}",
            "" if row.interval is None else f"{row.interval[0]:+,.2f} to {row.interval[1]:+,.2f}",
            "" if row.share_of_change is None else f"{row.share_of_change:.0%}",
            Cell("yes", "warn") if row.moved else "no",
            *_busy(row.busy_a_ms, row.busy_b_ms),
        )
        for row in found.stages
    )
    columns = (
        "stage/phase",
        "A ms",
        "B ms",
        "change",
        "95 % interval",
        "of the change",
        "beyond spread",
        "busy change",
    )
    note = (
        f"Self times of spanned or traced steps, {before:,.1f} ms on side A and {after:,.1f} ms on side B; "
        "the axis does not begin at 0. Red: slower, green: faster; "
        "enc, dec: encoder, decoder; fwd, bwd, recomp: forward, backward, recompute."
    )
    plot = change_waterfall(_largest(named), ("step, A", before), "step, B", "ms a step")
    chart = Chart("waterfall", title, plot, Table(columns, rows), note)
    return Section("stages", "Which stage it is", (*told, chart))


def _busy(before: float | None, after: float | None) -> tuple[str]:
    return ("absent" if before is None or after is None else f"{after - before:+,.2f}",)


PHASES = {"forward": "/fwd", "backward": "/bwd", "recompute": "/recomp", "step": ""}


def _short(stage: str, phase: str = "step") -> str:
    """A stage's name for a phone: first letters of the part of the model, last name, phase."""
    head, _, rest = stage.partition(".")
    name = f"{head[:3]}.{rest.rpartition('.')[2]}" if rest else stage
    return name + PHASES.get(phase, f"/{phase}")


def _largest(named: Sequence[Change]) -> list[Change]:
    """The largest changes, and all others as one."""
    ordered = sorted(named, key=lambda row: -abs(row.value))
    rest = ordered[STEPS:]
    if len(rest) < 2:
        return ordered
    name = f"{len(rest)} others"
    return [*ordered[:STEPS], Change(name, name, sum(row.value for row in rest))]


def _memory(found: Comparison) -> Section:
    peak = next((metric.a for metric in found.metrics if metric.name == "memory_peak"), 0.0)
    size, unit = axis_unit(peak)
    title = f"What explains the change of the peak, {unit}"
    held = [row for row in found.memory if row.category == "held_at_peak"]
    if not held:
        why = "no stage's part of the peak moved, or it was not counted on both sides"
        return Section("memory", "Memory", (Chart("memory-waterfall", title, absent=why),))
    rows = tuple(_memory_row(row) for row in found.memory)
    table = Table(("stage", "what", "A", "B", "change", "of the change"), rows, texts=frozenset({0, 1}))
    plot = change_waterfall(
        _largest([Change(_short(row.stage), row.stage, row.change_bytes / size) for row in held]),
        ("peak, A", peak / size),
        "peak, B",
        unit,
    )
    note = "What each stage held when most was in use; the axis does not begin at 0. Red: more, green: less."
    return Section("memory", "Memory", (Chart("memory-waterfall", title, plot, table, note),))


def _memory_row(row: MemoryChange) -> tuple[str, ...]:
    sign = "+" if row.change_bytes > 0 else ""
    return (
        row.stage,
        f"{row.category} ({row.phase})" if row.phase else row.category,
        show_bytes(row.a_bytes),
        show_bytes(row.b_bytes),
        f"{sign}{show_bytes(row.change_bytes)}",
        "" if row.share_of_change is None else f"{row.share_of_change:.0%}",
    )


LOSS_TONES: dict[str, Tone] = {"diverged": "bad", "unknown": "warn"}


def _losses(found: Comparison) -> Section:
    if found.losses is None:
        return Section("losses", "Losses", (Prose("Absent: the sides trained on no batch in common.", "dim"),))
    return Section("losses", "Losses", (Prose(found.losses.text, LOSS_TONES.get(found.losses.reading, "")),))


def _reading(found: Comparison) -> Section:
    """What must be known to read the verdicts."""
    blocks: list[Block] = []
    if found.allowed:
        rows = tuple((one.name, one.a, one.b) for one in found.allowed)
        blocks.append(Table(("differs, but was allowed", "A", "B"), rows, texts=frozenset({0, 1, 2})))
    if found.caveats:
        blocks.append(Listing(tuple(Cell(caveat, "warn") for caveat in found.caveats)))
    files = [("A", path) for path in found.a.sources] + [("B", path) for path in found.b.sources]
    if files:
        blocks.append(Table(("side", "record"), tuple(files), texts=frozenset({0, 1}), folded="Records compared"))
    return Section("reading", "Caveats", tuple(blocks) or (Prose("None.", "dim"),))
