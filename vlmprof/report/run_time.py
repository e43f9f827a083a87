"""The parts of a run's page about time: stages by phase, the device, steps and losses, ranks."""

from vlmprof.records.figures import Absent, Figure, Measured
from vlmprof.records.run import Device, Run
from vlmprof.records.stage_tree import PHASES, STAGES
from vlmprof.report.charts import Series, Titles, lines, ranges_over_ranks, tree_bars
from vlmprof.report.device import COLUMNS, device_sums, device_times
from vlmprof.report.page import Block, Chart, Fact, Facts, Prose, Section, Table
from vlmprof.report.ranks import spread_rows
from vlmprof.report.terminal import by_stage, show_ms
from vlmprof.report.tree import branch
from vlmprof.sizes import show_bytes

__all__ = ["ranks_section", "show", "steps_section", "time_section"]

FLOP_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
NOT_OBSERVED = "no spanned step was completed: run with --stage-breakdown"


def show(measured: Measured | None, digits: int = 3) -> str:
    """A figure in words: `512 ms`, or why it is absent."""
    if not isinstance(measured, Figure):
        return f"absent: {measured.absent}" if isinstance(measured, Absent) else "absent"
    if measured.unit == "bytes":
        return show_bytes(measured.value)
    if measured.unit == "FLOP":
        return show_flops(measured.value, digits)
    large = abs(measured.value) >= 10**digits
    value = f"{measured.value:,.0f}" if large else f"{measured.value:.{digits}g}"
    return value if measured.unit == "ratio" else f"{value} {measured.unit}"


def show_flops(count: float, digits: int = 3) -> str:
    """`17.6 GFLOP`"""
    size, letter = next(((s, one) for s, one in FLOP_UNITS if abs(count) >= s), (1.0, ""))
    return f"{count / size:.{digits}g} {letter}FLOP"


def time_section(run: Run) -> Section:
    """Where a step's time goes."""
    blocks: list[Block] = [_stage_chart(run)]
    if run.device is not None:
        blocks += [_device_facts(run.device), _device_table(run, run.device)]
        blocks += [Prose(f"Not told apart: {reason}") for reason in run.device.hidden]
    if run.missing:
        rows = tuple((stage, reason) for stage, reason in run.missing.items())
        blocks.append(Table(("stage not observed", "why"), rows, texts=frozenset({0, 1})))
    if run.layers:
        blocks.append(_layer_table(run))
    return Section("time", "Where the time goes", tuple(blocks))


def _stage_chart(run: Run) -> Chart:
    totals, selves = by_stage(run, "total_ms"), by_stage(run, "self_ms")
    title = "Time of each stage by phase, ms a step"
    if not totals:
        return Chart("stages", title, absent=NOT_OBSERVED)
    stages = [stage for stage in STAGES if stage in totals]
    shown = [stage for stage in stages if stage != "step"]
    phases = [phase for phase in PHASES if any(phase in totals[stage] for stage in shown)]
    parts: dict[str, list[float]] = {phase: [totals[stage].get(phase, 0.0) for stage in shown] for phase in phases}
    busy = {stage: sum(row.values()) for stage, row in by_stage(run, "busy_ms").items()}
    marks = {"busy": [busy.get(stage, 0.0) for stage in shown]} if busy else None
    step = sum(totals["step"].values())
    rows = []
    for stage in stages:
        whole = sum(totals[stage].values())
        cells = [show_ms(totals[stage].get(phase)) if stage != "step" else "" for phase in phases]
        own = show_ms(sum(selves[stage].values())) if stage != "step" else ""
        more = [show_ms(busy.get(stage))] if busy else []
        share = f"{whole / step:.1%}" if step else ""
        rows.append((branch(stage, stages), *cells, show_ms(whole), own, *more, share))
    columns = ("stage", *phases, "total", "self", *(["busy"] if busy else []), "share")
    return Chart(
        "stages",
        title,
        tree_bars(shown, parts, "ms a step", marks),
        Table(columns, tuple(rows), caption="ms a step; total holds the children, self does not"),
        note=_how_timed(run, bool(busy)),
    )


def _how_timed(run: Run, busy: bool) -> str:
    observed = [step for step in run.steps if step.kind == "spanned" and not step.warmup]
    step = run.stage("step", "step")
    source = step.total_ms.source if step is not None and isinstance(step.total_ms, Figure) else "wall-clock"
    told = f"Span ({source}): mean over the middle half of {len(observed)} spanned steps; a bar holds its children's."
    if run.coverage is not None:
        told += f" Named stages cover {run.coverage:.1%} of the step."
    for row in run.overhead:
        if isinstance(row.ratio, Figure):
            told += f" {row.kind.capitalize()} steps take {row.ratio.value:.3f}x plain ones on the same batches."
    if busy:
        told += " Busy: the union of what the stage's kernels took on the device, from traced steps."
    return told


def _device_facts(device: Device) -> Facts:
    named = {
        "step (traced)": device.step_ms,
        "device busy": device.busy_ms,
        "exposed communication": device.exposed_ms,
        "idle, nothing queued": device.launch_bound_ms,
        "syncs a step": device.syncs,
    }
    facts = [Fact(name, *value_and_note(measured)) for name, measured in named.items()]
    return Facts((*facts, Fact("kernels a step", f"{device.kernels:,.0f}")))


def _device_table(run: Run, device: Device) -> Table:
    """Stages by what the device did; what it did not do for a stage is left empty."""
    sums = device_sums(run, device)
    seen = [stage for stage in STAGES if stage in sums]
    rows = []
    for stage in seen:
        syncs = sums[stage]["syncs"]
        times = device_times(device, stage, sums[stage])
        rows.append((branch(stage, seen), *times, f"{syncs:,.0f}" if syncs else ""))
    caption = (
        "ms a traced step, children included. Busy: union of kernels, copies and memsets by who launched them; "
        "exposed: communication while no other kernel ran; idle: no kernel while the host was there."
    )
    return Table(("stage", *COLUMNS.values()), tuple(rows), caption, folded="The device by stage")


def value_and_note(measured: Measured | None, what: str = "") -> tuple[str, str]:
    """A headline figure and how it was got; `absent` and why."""
    if not isinstance(measured, Figure):
        return "absent", measured.absent if measured is not None else what
    count = f"{len(measured.samples)} samples, " if len(measured.samples) > 1 else ""
    return show(measured), f"{count}{measured.source}"


def _layer_table(run: Run) -> Table:
    ordered = sorted(run.layers, key=lambda layer: -layer.self_ms)
    rows = tuple((layer.name, show_ms(layer.self_ms), f"{layer.ranges:.1f}") for layer in ordered)
    return Table(("layer and stage", "self ms a step", "entries"), rows, folded=f"All {len(rows)} ranges by layer")


def steps_section(run: Run) -> Section:
    """Every step that was made: its time, its loss."""
    title = "Step times by kind, ms"
    if not run.steps:
        chart = Chart("steps", title, absent="no step was completed")
        return Section("steps", "Steps", (chart, Chart("losses", "Loss", absent="no step was completed")))
    measured = [step for step in run.steps if not step.warmup]
    kinds = list(dict.fromkeys(step.kind for step in measured))
    series = [
        Series(kind, [s.index for s in measured if s.kind == kind], [s.ms for s in measured if s.kind == kind])
        for kind in kinds
    ]
    warm = len(run.steps) - len(measured)
    rows = tuple(
        (
            str(step.index),
            step.kind + (", warm-up" if step.warmup else ""),
            str(step.batch),
            f"{step.ms:,.1f}",
            "" if step.loss is None else f"{step.loss:.5f}",
            "" if step.grad_norm is None else f"{step.grad_norm:.4f}",
        )
        for step in run.steps
    )
    table = Table(("step", "kind", "batch", "ms", "loss", "gradient norm"), rows, texts=frozenset({0, 1}))
    chart = Chart(
        "steps",
        title,
        lines(series, Titles("ms", "step", "ms")) if measured else None,
        table,
        note=f"Without {warm} warm-up steps. Kinds take turns on the same batches; throughput comes from plain steps.",
        absent="" if measured else "only warm-up steps were completed",
    )
    return Section("steps", "Steps and losses", (chart, _loss_chart(run)))


def _loss_chart(run: Run) -> Chart:
    title = "Loss of each step"
    known = [step for step in run.steps if step.loss is not None]
    if not known:
        return Chart("losses", title, absent="no loss was told")
    points = Series("loss", [step.index for step in known], [step.loss for step in known if step.loss is not None])
    rows = tuple((str(step.index), f"{step.loss:.6f}") for step in known)
    return Chart(
        "losses",
        title,
        lines([points], Titles("loss", "step", "")),
        Table(("step", "loss"), rows, texts=frozenset()),
        note="Of every kind of step, warm-up included: each trains on.",
    )


def ranks_section(run: Run) -> Section:
    """How the ranks differ."""
    rows = spread_rows(run)
    if not run.ranks:
        count = run.environment.ranks if run.environment else 1
        why = "the run had one rank" if count == 1 else "no rank's facts were told"
        return Section("ranks", "Ranks", (Chart("spread", "Spread over ranks", absent=why),))
    spread = Chart("spread", "Time of each stage over ranks, ms a step", absent=NOT_OBSERVED)
    if rows:
        seen = [row.stage for row in rows]
        numbers = tuple(
            (branch(r.stage, seen), show_ms(r.least), show_ms(r.median), show_ms(r.most), f"rank {r.slowest}")
            for r in rows
        )
        spread = Chart(
            "spread",
            spread.title,
            ranges_over_ranks(rows, "ms a step"),
            Table(("stage", "least", "median", "most", "slowest"), numbers),
            note="From the fastest to the slowest rank, all phases together; the stroke is the median.",
        )
    return Section("ranks", "Ranks", (spread, _rank_table(run)))


RANK_COLUMNS = {
    "step_ms": "step ms",
    "data_ms": "data ms",
    "encoder_ms": "encoder ms",
    "patches": "patches",
    "useful_tokens": "useful tokens",
    "expert_tokens": "expert tokens",
    "grad_sync_ms": "grad_sync ms",
    "peak_bytes": "peak",
    "rss_bytes": "host RSS",
}


def _rank_table(run: Run) -> Table:
    def cell(name: str, value: float | None) -> str:
        if value is None:
            return "absent"
        return show_bytes(value) if name.endswith("bytes") else f"{value:,.1f}"

    rows = tuple((f"{r.rank}", r.host, *(cell(name, getattr(r, name)) for name in RANK_COLUMNS)) for r in run.ranks)
    caption = "Means a step. A rank that waits for a slower one does so in grad_sync."
    return Table(("rank", "host", *RANK_COLUMNS.values()), rows, caption=caption, texts=frozenset({0, 1}))
