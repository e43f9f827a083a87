"""The parts of a run's page about memory and experts."""

from vlmprof.records.figures import Absent, Figure
from vlmprof.records.memory import Memory, Router
from vlmprof.records.run import Outcome, Run
from vlmprof.records.stage_tree import STAGES
from vlmprof.report.charts import Titles, heat_map, tree_bars
from vlmprof.report.memory import COLUMNS, SOURCES, memory_sums
from vlmprof.report.page import Block, Chart, Fact, Facts, Section, Table
from vlmprof.report.run_time import value_and_note
from vlmprof.report.tree import branch
from vlmprof.sizes import axis_unit, show_bytes

__all__ = ["experts_section", "held_chart", "memory_section"]

NOT_COUNTED = "no counted step was completed: run with --stage-breakdown"


def memory_section(run: Run) -> Section:
    """Who holds the memory when most of it is in use."""
    blocks: list[Block] = [_facts(run.memory)] if run.memory is not None else []
    return Section("memory", "Memory", (*blocks, _stage_chart(run)))


def _facts(memory: Memory) -> Facts:
    where = f"in {memory.peak_stage} ({memory.peak_phase})" if memory.peak_stage else ""
    peak, how = value_and_note(memory.peak)
    facts = [Fact("peak", peak, ", ".join(filter(None, (where, how))))]
    for name in ("parameters", "gradients", "optimizer_state", "saved_activations", "held_after"):
        facts.append(Fact(name.replace("_", " "), *value_and_note(getattr(memory, name))))
    growth = memory.growth
    if growth is None:
        facts.append(Fact("growth a step", "absent", "fewer than 3 counted steps"))
    else:
        value, note = value_and_note(growth.bytes_per_step)
        if growth.confidence is not None:
            low, high = growth.confidence
            note = f"95 % interval {show_bytes(low)} to {show_bytes(high)}"
        facts.append(Fact("growth a step", value, note, "warn" if growth.leak else ""))
    facts.append(Fact("host RSS", *value_and_note(memory.host_rss)))
    if memory.device is not None:
        device = memory.device
        facts += [
            Fact("reserved", *value_and_note(device.reserved)),
            Fact("fragmented", *value_and_note(device.fragmented)),
            Fact("CUDA graphs' pools", *value_and_note(device.graph_pools)),
            Fact("not PyTorch's", *value_and_note(device.outside)),
            Fact("allocator retries", f"{device.retries:g}", tone="warn" if device.retries else ""),
        ]
    if memory.limit is not None:
        facts.append(Fact("limit", show_bytes(memory.limit), "--memory-limit"))
    return Facts(tuple(facts))


def _stage_chart(run: Run) -> Chart:
    sums = memory_sums(run)
    size, unit = axis_unit(sums.get("step", {}).get("held_at_peak", 0.0))
    title = f"Memory at the peak by stage, {unit}"
    if not sums:
        known = run.memory is not None
        return Chart("memory-stages", title, absent="the record knows the whole rank only" if known else NOT_COUNTED)
    stages = [stage for stage in STAGES if stage in sums]
    shown = [stage for stage in stages if stage != "step"]
    rows = tuple(
        (branch(s, stages), *(show_bytes(sums[s][name]) if sums[s].get(name) else "" for name in COLUMNS))
        for s in stages
    )
    peak = run.memory.peak if run.memory is not None else None
    source = SOURCES.get(peak.source, peak.source) if isinstance(peak, Figure) else ""
    return Chart(
        "memory-stages",
        title,
        tree_bars(shown, _at_peak(sums, shown, size), unit),
        Table(("stage", *COLUMNS.values()), rows, caption="at peak: what lived then and was the stage's"),
        note=f"{source.capitalize()}; a bar holds its children's. Made by the stage, or serving its parameters.",
    )


LASTING = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer state"}
REST = "activations and the rest"


def _at_peak(sums: dict[str, dict[str, float]], stages: list[str], size: int) -> dict[str, list[float]]:
    """What lasts and the rest, in units of `size` bytes; the whole alone where not all that lasts was there then."""
    whole = [sums[stage].get("held_at_peak", 0.0) / size for stage in stages]
    parts = {title: [sums[stage].get(name, 0.0) / size for stage in stages] for name, title in LASTING.items()}
    rest = [all_ - sum(part[row] for part in parts.values()) for row, all_ in enumerate(whole)]
    if min(rest, default=0.0) < -1e-3:
        return {"held": whole}
    return {**parts, REST: [max(value, 0.0) for value in rest]}


def held_chart(outcome: Outcome) -> Chart | None:
    """Who held what when memory ran out; None where it was not counted."""
    held, saved = outcome.held or {}, outcome.saved or {}
    if not held:
        return None
    names = {**LASTING, "tensors": "tensors"}
    size, unit = axis_unit(max(sum(row.values()) for row in held.values()))
    ordered = [s for s in STAGES if s in held] + [s for s in held if s not in STAGES]
    parts = {title: [held[stage].get(name, 0) / size for stage in ordered] for name, title in names.items()}
    largest = sorted(held, key=lambda one: -sum(held[one].values()))
    rows = tuple(
        (
            stage,
            *(show_bytes(held[stage][name]) if held[stage].get(name) else "" for name in names),
            show_bytes(saved[stage]) if saved.get(stage) else "",
            show_bytes(sum(held[stage].values())),
        )
        for stage in largest
    )
    return Chart(
        "held",
        f"Held when it ran out, {unit} by stage",
        tree_bars(ordered, parts, unit),
        Table(("stage", *names.values(), "saved for backward", "total"), rows, caption="the largest first"),
        note="Each stage's own, without what lies in it. Saved for backward is part of tensors.",
    )


def experts_section(run: Run) -> Section:
    """How the tokens spread over experts."""
    title = "Tokens of each expert by layer, a counted step"
    router = run.router
    if not isinstance(router, Router):
        why = router.absent if isinstance(router, Absent) else NOT_COUNTED
        return Section("experts", "Experts", (Chart("experts-map", title, absent=why),))
    facts = Facts(
        (
            Fact("most loaded / mean", *value_and_note(router.imbalance)),
            Fact("entropy of the load", *value_and_note(router.entropy)),
            Fact("dropped choices", *value_and_note(router.dropped_tokens)),
            Fact("sent by the dispatcher", *value_and_note(router.bytes_sent)),
        )
    )
    widest = max(len(layer.tokens_per_expert) for layer in router.layers)
    loads = [layer.tokens_per_expert for layer in router.layers]
    rows = tuple(
        (str(layer.layer), f"{layer.imbalance:.2f}", f"{layer.entropy:.3f}", *(f"{n:,.0f}" for n in tokens))
        for layer, tokens in zip(router.layers, loads, strict=True)
    )
    columns = ("layer", "most / mean", "entropy", *(f"e{number}" for number in range(widest)))
    plot = heat_map(
        [str(layer.layer) for layer in router.layers],
        [str(number) for number in range(widest)],
        loads,
        Titles("layer", "expert", "tokens"),
    )
    note = "Entropy over its maximum: 1 is even, 0 is one expert only."
    return Section("experts", "Experts", (facts, Chart("experts-map", title, plot, Table(columns, rows), note)))
