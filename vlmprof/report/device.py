"""An accelerator's time on the terminal: what kernels of each stage took beside its span, and when there were none."""

from rich.text import Text

from vlmprof.records.figures import Figure
from vlmprof.records.run import Device, Run, Stage
from vlmprof.records.stage_tree import STAGES, ancestors
from vlmprof.report.fitted import Column, FittedTable
from vlmprof.report.tree import branch

__all__ = ["COLUMNS", "device_notes", "device_sums", "device_table", "device_times"]

COLUMNS = {
    "busy_ms": "busy",
    "total_ms": "span",
    "exposed_ms": "exposed",
    "launch_bound_ms": "idle",
    "syncs": "syncs",
}


def device_sums(run: Run, device: Device) -> dict[str, dict[str, float]]:
    """Stage -> figure of `COLUMNS` over all phases, children included in their parents."""
    sums: dict[str, dict[str, float]] = {}
    for row in run.stages:
        for name in COLUMNS:
            # Busy, span and exposed hold what lies below already; idle and waits are of the stage itself.
            above = ancestors(row.name) if name in ("launch_bound_ms", "syncs") else ()
            for stage in (row.name, *above):
                line = sums.setdefault(stage, dict.fromkeys(COLUMNS, 0.0))
                line[name] = line.get(name, 0.0) + _value(row, name)
    step = sums.setdefault("step", dict.fromkeys(COLUMNS, 0.0))
    step.update({name: _of(device, name) for name in ("busy_ms", "exposed_ms", "launch_bound_ms", "syncs")})
    return sums


def device_times(device: Device, stage: str, line: dict[str, float]) -> list[str]:
    """The cells of a stage under `COLUMNS` but the last, which is no time: empty where the device did nothing for it,
    `hidden` where that cannot be told. `line`: of `device_sums`."""
    busy, *others = (_ms(line[name]) for name in COLUMNS if name != "syncs")
    return [busy or ("hidden" if device.hides(stage) else ""), *others]


def device_table(run: Run, device: Device) -> FittedTable:
    """Milliseconds by stage over all phases, children included in their parents."""
    sums = device_sums(run, device)
    whole = _of(device, "busy_ms")
    columns = map(Column, ("busy", "share", "span", "exposed", "idle", "syncs"), (0, 3, 5, 2, 4, 1))
    table = FittedTable([Column("device", left=True), *columns])
    seen = [stage for stage in STAGES if stage in sums]
    for stage in seen:
        line = sums[stage]
        busy, *others = device_times(device, stage, line)
        table.add_row(
            Text(branch(stage, seen), style="bold" if stage == "step" else ""),
            busy,
            f"{line['busy_ms'] / whole:.1%}" if line["busy_ms"] and whole else "",
            *others,
            f"{line['syncs']:.0f}" if line["syncs"] else "",
        )
    return table


def device_notes(run: Run, device: Device) -> Text:
    """How these figures were got, and what could not be told apart."""
    share = _of(device, "busy_ms") / max(_of(device, "step_ms"), 1e-9)
    steps = len(device.busy_ms.samples) if isinstance(device.busy_ms, Figure) else 0
    text = Text(style="dim")
    text.append(
        f"ms a step, mean of {steps} traced steps; busy: union of kernels, copies and memsets by who launched them; "
        f"idle: no kernel while the host was there; the GPU is busy {share:.0%} of a traced step with "
        f"{device.kernels:,.0f} kernels"
    )
    if run.coverage_kernels is not None:
        text.append(f"; {run.coverage_kernels:.2%} of kernel time in a named stage")
    if run.traces:
        text.append(f"; open {run.traces[0]} of the run folder in ui.perfetto.dev")
    for stage in device.hidden:
        text.append(f"\nhidden: {stage}", style="not dim")
    return text


def _value(row: Stage, name: str) -> float:
    measured = getattr(row, name)
    if isinstance(measured, Figure):
        return measured.value
    return float(measured) if isinstance(measured, int | float) else 0.0


def _of(device: Device, name: str) -> float:
    measured = getattr(device, name)
    return measured.value if isinstance(measured, Figure) else 0.0


def _ms(value: float) -> str:
    return "" if not value else f"{value:,.2f}" if value < 10 else f"{value:,.1f}"
