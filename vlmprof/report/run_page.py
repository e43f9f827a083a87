"""A run record as a page."""

import shlex

from vlmprof.records.figures import Absent, Figure
from vlmprof.records.run import Outcome, Run
from vlmprof.report.page import Block, Cell, Fact, Facts, Lines, Listing, Page, Prose, Section, Table, Tone
from vlmprof.report.run_memory import experts_section, held_chart, memory_section
from vlmprof.report.run_time import ranks_section, show, steps_section, time_section, value_and_note

__all__ = ["run_page"]


def run_page(run: Run) -> Page:
    """Everything that a run record knows, what a person asks first at the top."""
    failure = [_failure(run)] if run.outcome.status != "ok" else []
    findings = [Section("findings", "Findings", (_findings(run),))] if run.findings else []
    sections = (
        *failure,
        *findings,
        time_section(run),
        memory_section(run),
        ranks_section(run),
        experts_section(run),
        steps_section(run),
        _circumstances(run),
    )
    title = f"{run.workload.name} {run.workload.hash}".strip()
    return Page("run", title, _badge(run.outcome), _about(run), (_headline(run),), sections)


BADGES: dict[str, Tone] = {"ok": "good", "failed": "bad", "interrupted": "warn"}


def _badge(outcome: Outcome) -> Cell:
    kind = f": {outcome.failure_class or 'unknown'}" if outcome.status == "failed" else ""
    return Cell(outcome.status + kind, BADGES[outcome.status])


def _about(run: Run) -> tuple[tuple[str, str], ...]:
    rows: list[tuple[str, str]] = []
    environment, work = run.environment, run.effective_work
    if environment is None:
        rows.append(("where", "not known: the worker died before it could tell"))
    else:
        megatron = environment.packages.get("megatron-core")
        commit = f" ({megatron.commit[:10]})" if megatron is not None and megatron.commit else ""
        packages = [f"megatron-core {megatron.version}{commit}"] if megatron is not None else []
        packages += [f"torch {environment.packages['torch'].version}"] if "torch" in environment.packages else []
        rows.append(("where", ", ".join((environment.platform, environment.precision, *packages))))
    rows.append(("when", run.created))
    data = f"{run.data.realism} data"
    if work is not None:
        padding = f", {run.data.padding_share:.0%} padding" if run.data.padding_share is not None else ""
        data += f": {work.tokens:,.0f} tokens a step, {work.useful_tokens:,.0f} useful{padding}"
        if work.images:
            data += f"; {work.images:.1f} images of {work.image_patches / work.images:,.0f} patches"
    rows.append(("what", data))
    if run.workload.deviations:
        rows.append(("differs", f"from the published model: {'; '.join(run.workload.deviations)}"))
    if run.command:
        rows.append(("command", shlex.join(run.command)))
    return tuple(rows)


RATES = {
    "step_ms": "step (plain)",
    "tokens_per_second": "tokens",
    "useful_tokens_per_second": "useful tokens",
    "images_per_second": "images",
    "patches_per_second": "image patches",
}


def _headline(run: Run) -> Facts:
    facts = [
        Fact(RATES.get(name, name.replace("_", " ")), *value_and_note(measured))
        for name, measured in run.throughput.items()
    ]
    if all(fact.value == "absent" for fact in facts):
        facts = [Fact("step time and throughput", "absent", facts[0].note if facts else "no step was completed")]
    memory = run.memory
    facts.append(
        Fact("peak memory", *value_and_note(memory.peak))
        if memory is not None
        else Fact("peak memory", "absent", "no step was counted")
    )
    if run.flops is not None:
        mfu = run.flops.mfu
        note = f"MFU {mfu.value:.1%}" if isinstance(mfu, Figure) else f"MFU absent: {mfu.absent}"
        facts.append(Fact("model FLOP rate", value_and_note(run.flops.tflops_per_second)[0], note))
    else:
        plain = any(step.kind == "plain" and not step.warmup for step in run.steps)
        why = "the work of the steps was not told" if plain else "no plain step was completed"
        facts.append(Fact("model FLOP rate", "absent", why))
    return Facts(tuple(facts))


def _findings(run: Run) -> Listing:
    return Listing(tuple(Cell(one.text, "warn" if one.level == "warning" else "") for one in run.findings))


def place_of(outcome: Outcome, several_ranks: bool) -> str:
    """Where it failed: `rank 1, step 7, micro-batch 2, in decoder.experts of layer 3 (backward)`."""
    where = [f"rank {outcome.rank}"] if several_ranks and outcome.rank is not None else []
    where += [f"step {outcome.step}"] if outcome.step is not None else []
    where += [f"micro-batch {outcome.micro_batch}"] if outcome.micro_batch is not None else []
    if outcome.stage:
        layer = f" of layer {outcome.layer}" if outcome.layer is not None else ""
        phase = f" ({outcome.phase})" if outcome.phase else ""
        where.append(f"in {outcome.stage}{layer}{phase}")
    return ", ".join(where)


def _failure(run: Run) -> Section:
    outcome = run.outcome
    place = place_of(outcome, len(run.ranks) > 1)
    if outcome.status == "interrupted":
        when = "before the first step" if outcome.step is None else f"at step {outcome.step}"
        text = f"It was interrupted {when}: what was measured up to then is below."
        return Section("failure", "Interrupted", (Prose(text, "warn"),))
    rows = {
        "class": outcome.failure_class or "unknown",
        "where": place or "not known",
        "message": outcome.message or "none",
        "meaning": outcome.reading or "",
        "signature": outcome.signature or "",
    }
    known = tuple((name, text) for name, text in rows.items() if text)
    blocks: list[Block] = [Table(("", ""), known, texts=frozenset({0, 1}))]
    if outcome.evidence:
        blocks.append(Lines(outcome.evidence, "evidence"))
    if outcome.shapes:
        shapes = tuple((name, str(value)) for name, value in outcome.shapes.items())
        blocks.append(Table(("of the micro-batch", ""), shapes, texts=frozenset({0, 1})))
    chart = held_chart(outcome)
    return Section("failure", "What went wrong", (*blocks, *([chart] if chart else [])))


def _circumstances(run: Run) -> Section:
    """What else must be known to read the figures, folded away."""
    blocks: list[Block] = []
    environment = run.environment
    if environment is not None:
        rows = [
            ("device", environment.device),
            ("ranks", str(environment.ranks)),
            ("threads", str(environment.threads)),
        ]
        rows += [(str(name), str(value)) for name, value in environment.host.items()]
        rows += [
            (name, " ".join(filter(None, (package.version, package.path, package.commit))))
            for name, package in environment.packages.items()
        ]
        rows += sorted(environment.variables.items())
        blocks.append(_pairs("fact", rows, "Machine and packages"))
    if run.parameters:
        counts = [(name, f"{count:,}") for name, count in run.parameters.items()]
        blocks.append(_pairs("parameters of", counts, "Parameters"))
    if run.flops is not None:
        rows = [
            (f"{stage}/{phase}", show(measured))
            for stage, phases in run.flops.stages.items()
            for phase, measured in phases.items()
        ]
        blocks.append(_pairs("FLOPs a step of", rows, "FLOPs by stage, analytic"))
    if run.workload.settings:
        blocks.append(_pairs("setting", _flat(run.workload.settings), "Settings of the workload"))
    ratios: list[tuple[str, str]] = [
        (row.kind, f"{row.ratio.value:.3f}" if not isinstance(row.ratio, Absent) else f"absent: {row.ratio.absent}")
        for row in run.overhead
    ]
    if ratios:
        blocks.append(_pairs("kind of step", ratios, "What observing costs, times a plain step"))
    if run.notes:
        blocks.append(Listing(tuple(Cell(note, "dim") for note in run.notes)))
    return Section("circumstances", "Circumstances", tuple(blocks) or (Prose("Nothing more is known.", "dim"),))


def _pairs(title: str, rows: list[tuple[str, str]], folded: str) -> Table:
    return Table((title, ""), tuple(rows), texts=frozenset({0, 1}), folded=folded)


def _flat(settings: dict[str, object], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", str(value)))
    return rows
