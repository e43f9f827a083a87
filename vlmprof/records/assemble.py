"""From a journal's events to a run record: pure, so a dead worker's journal gives as whole a record as a live one's."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from vlmprof.records.figures import Absent, Figure, Measured, Source, figure, middle_half
from vlmprof.records.flops import flops_of
from vlmprof.records.journal import Event
from vlmprof.records.kernels import coverage_kernels, device_of, with_kernels
from vlmprof.records.memory import memory_of, router_of, stage_memory
from vlmprof.records.ranks import merge_steps, rank_facts, spreads
from vlmprof.records.run import (
    DataRecord,
    EffectiveWork,
    Environment,
    HookPointRecord,
    LayerTime,
    Outcome,
    Overhead,
    Run,
    Stage,
    Step,
    WorkloadRecord,
)
from vlmprof.records.stage_times import self_times, totals_of
from vlmprof.records.stage_tree import PHASES, STAGES, range_name

__all__ = ["NOTES", "assemble", "failed"]

NOTES = ("garbage collection is held off inside steps and run between them",)


def assemble(
    events: Sequence[Event], outcome: Outcome | None = None, others: Mapping[int, Sequence[Event]] | None = None
) -> Run:
    """The record of a run.

    Args:
        events: of the launcher and rank 0.
        outcome: overrules what the journal says (the launcher knows how the worker ended).
        others: events of the other ranks.
    """
    ranks = {0: events, **(others or {})}
    start = _first(events, "start")
    model = _first(events, "model")
    plan = _first(events, "plan")
    environment = _first(events, "environment").get("environment")
    steps = merge_steps(ranks)
    measured = [step for step in steps if not step["warmup"]]
    plain = [step for step in measured if step["kind"] == "plain"]
    spanned = [step for step in measured if step["kind"] == "spanned"]
    # A trace without a single kernel is one that the profiler could not take: no 0 is made of it.
    traced = [step for step in measured if step["kind"] == "traced" and step.get("kernels", {}).get("kernels")]
    counting = [step for step in steps if step["kind"] == "counted"]
    counted = [step for step in counting if not step["warmup"]] or counting[-1:]
    missing, hook_points = model.get("missing", {}), model.get("hook_points", [])
    return Run(
        created=start.get("created", datetime.now(UTC).isoformat(timespec="seconds")),
        command=tuple(start.get("command", ())),
        workload=WorkloadRecord.model_validate(start.get("workload", {"name": "unknown"})),
        environment=Environment.model_validate(environment) if environment else None,
        data=_data(start, plan, plain or measured or steps),
        parameters=model.get("parameters", {}),
        effective_work=_effective_work(plain or measured or steps, model),
        steps=tuple(Step.model_validate(step) for step in steps),
        stages=tuple(_with_spread(_with_memory(with_kernels(_stages(spanned), traced), counted), ranks)),
        layers=tuple(_layers(spanned)),
        missing=missing if spanned or counted else {},
        hook_points=tuple(HookPointRecord.model_validate(point) for point in hook_points),
        ranks=rank_facts(ranks) if len(ranks) > 1 else (),
        throughput=_throughput(plain),
        memory=memory_of(counted, counting, start.get("memory_limit")),
        flops=flops_of(plain, *_device(environment)),
        router=router_of(counted),
        coverage=_coverage(spanned),
        coverage_kernels=coverage_kernels(traced),
        device=device_of(traced, [(stage, point) for stage, point in model.get("in_layers", [])]),
        traces=tuple(start.get("traces", ())),
        overhead=tuple(_overhead(measured, plain)),
        notes=tuple(start.get("notes", ())),
        outcome=outcome or _outcome(events),
    )


def _first(events: Iterable[Event], name: str) -> Event:
    return next((event for event in events if event["event"] == name), {})


def _data(start: Event, plan: Event, steps: Sequence[Event]) -> DataRecord:
    works = [step["work"] for step in steps if step.get("work")]
    tokens, padding = (sum(work[name] for work in works) for name in ("tokens", "padding_tokens"))
    return DataRecord(
        realism=plan.get("realism") or start.get("realism", "unknown"),
        source=plan.get("source", ""),
        padding_share=padding / tokens if tokens else None,
        skipped=plan.get("skipped", {}),
    )


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        "min": min(values),
        "median": statistics.median(values),
        "max": max(values),
        "mean": statistics.fmean(values),
    }


def _effective_work(steps: Sequence[Event], model: Event) -> EffectiveWork | None:
    works = [step["work"] for step in steps if step.get("work")]
    if not works:
        return None

    def mean(name: str) -> float:
        return statistics.fmean(work[name] for work in works)

    return EffectiveWork(
        tokens=mean("tokens"),
        useful_tokens=mean("useful_tokens"),
        padding_tokens=mean("padding_tokens"),
        images=mean("images"),
        image_patches=mean("image_patches"),
        sequence_lengths=_spread([length for work in works for length in work["lengths"]]),
        image_patch_counts=_spread([count for work in works for count in work["patch_counts"]]),
        trained_parameters=model.get("parameters", {}).get("trained"),
        model_flops=statistics.fmean(work["flops"]["model"] for work in works) if "flops" in works[0] else None,
    )


def _mean_over(samples: Sequence[float], kept: Sequence[int]) -> float:
    return statistics.fmean(samples[index] for index in kept)


def _stages(spanned: Sequence[Event]) -> list[Stage]:
    if not spanned:
        return []
    durations = [step["ms"] for step in spanned]
    kept = middle_half(durations)
    by_step = [self_times(step) for step in spanned]
    totals = [totals_of(times) for times in by_step]
    source = spanned[0]["source"]

    def timed(samples: Sequence[float]) -> Figure:
        return Figure(value=_mean_over(samples, kept), unit="ms", source=source, samples=tuple(samples))

    step_row = Stage(
        name="step",
        phase="step",
        total_ms=timed(durations),
        self_ms=timed([0.0] * len(durations)),  # all of it is its children's, `other` being one
        ranges=1,
        share=1.0,
    )
    rows = [step_row]
    whole = _mean_over(durations, kept)
    for stage in STAGES[1:]:
        for phase in PHASES:
            key = (stage, phase)
            if not any(key in one for one in totals):
                continue
            total = timed([one.get(key, 0.0) for one in totals])
            own = [times.get(key, (0.0, 0.0)) for times in by_step]
            rows.append(
                Stage(
                    name=stage,
                    phase=phase,
                    total_ms=total,
                    self_ms=timed([self_ms for self_ms, _ in own]),
                    ranges=statistics.fmean(count for _, count in own),
                    share=total.value / whole if whole else 0.0,
                )
            )
    return rows


def _with_memory(rows: list[Stage], counted: Sequence[Event]) -> list[Stage]:
    """Rows with their memory; a stage that was only counted gets rows without times."""
    if not counted:
        return rows
    phases: dict[str, list[str]] = {}
    for row in rows:
        phases.setdefault(row.name, []).append(row.phase)
    for step in counted:
        for name in ("stage_peaks", "saved"):
            for stage, phase, _ in step["memory"][name]:
                if phase not in phases.setdefault(stage, []):
                    phases[stage].append(phase)
    for step in counted:
        for name in ("held_at_peak", "held_after"):
            for stage in step["memory"][name]:
                phases.setdefault(stage, ["step"])  # it never ran, but holds parameters
    memory = {stage: stage_memory(counted, stage, names) for stage, names in phases.items()}
    untimed = Absent(absent="no spanned step was completed")
    known = {(row.name, row.phase) for row in rows}
    extra = [
        Stage.model_validate(
            {"name": stage, "phase": phase, "total_ms": untimed, "self_ms": untimed, "ranges": 0, "share": 0}
        )
        for stage in STAGES
        for phase in phases.get(stage, [])
        if (stage, phase) not in known
    ]
    return [row.model_copy(update={"memory": memory.get(row.name, {}).get(row.phase)}) for row in [*rows, *extra]]


def _with_spread(rows: list[Stage], ranks: Mapping[int, Sequence[Event]]) -> list[Stage]:
    found = spreads(ranks)
    return [row.model_copy(update={"ranks": found.get((row.name, row.phase))}) for row in rows]


def _device(environment: dict[str, Any] | None) -> tuple[str, str, int]:
    """(platform, precision, ranks)"""
    facts = environment or {}
    return facts.get("platform", "unknown"), facts.get("precision", "unknown"), facts.get("ranks", 1)


def _layers(spanned: Sequence[Event]) -> list[LayerTime]:
    if not spanned:
        return []
    kept = middle_half([step["ms"] for step in spanned])
    sums: dict[tuple[str, int, str], list[float]] = {}
    for index in kept:
        for stage, layer, phase, self_ms, count in spanned[index]["ranges"]:
            if layer is not None:
                entry = sums.setdefault((stage, layer, phase), [0.0, 0.0])
                entry[0] += self_ms
                entry[1] += count
    rows = []
    for (stage, layer, phase), (self_ms, count) in sums.items():
        name = range_name(stage, layer, phase)
        rows.append(LayerTime(name=name, self_ms=self_ms / len(kept), ranges=count / len(kept)))
    return rows


def _coverage(spanned: Sequence[Event]) -> float | None:
    """1 - other / step, over the steps whose times are reported."""
    if not spanned:
        return None
    kept = middle_half([step["ms"] for step in spanned])
    other = sum(
        self_ms for index in kept for (stage, _), (self_ms, _) in self_times(spanned[index]).items() if stage == "other"
    )
    whole: float = sum(spanned[index]["ms"] for index in kept)
    return 1.0 - other / whole


RATES = {
    "tokens_per_second": ("tokens", "tokens/s"),
    "useful_tokens_per_second": ("useful_tokens", "tokens/s"),
    "images_per_second": ("images", "images/s"),
    "patches_per_second": ("image_patches", "patches/s"),
}


def _throughput(plain: Sequence[Event]) -> dict[str, Measured]:
    source: Source = plain[0].get("source", "wall-clock") if plain else "wall-clock"
    figures: dict[str, Measured] = {"step_ms": figure([step["ms"] for step in plain], "ms", source)}
    for name, (work, unit) in RATES.items():
        rates = [step["work"][work] / step["ms"] * 1e3 for step in plain if step.get("work")]
        figures[name] = (
            figure(rates, unit, source)
            if rates or not plain
            else Absent(absent="the training script did not tell its batches: pass work= to profile.step()")
        )
    return figures


def _overhead(measured: Sequence[Event], plain: Sequence[Event]) -> list[Overhead]:
    reference = {step["batch"]: step["ms"] for step in plain}
    rows = []
    for kind in dict.fromkeys(step["kind"] for step in measured):
        if kind != "plain":
            ratios = [
                step["ms"] / reference[step["batch"]]
                for step in measured
                if step["kind"] == kind and step["batch"] in reference
            ]
            rows.append(
                Overhead(
                    kind=kind,
                    ratio=figure(ratios, "ratio", measured[0].get("source", "wall-clock"))
                    if ratios
                    else Absent(absent="no plain step trained on the same batch"),
                )
            )
    return rows


PLACE = ("step", "micro_batch", "stage", "layer", "phase", "shapes")


def failed(events: Sequence[Event], failure: Event, rank: int | None = None) -> Outcome:
    """The outcome of a rank that told what failed. Where its hooks know the place they are surer than its stack."""
    place = {name: value for name, value in place_of(events).items() if value is not None}
    return Outcome.model_validate({"status": "failed", "rank": rank, **failure["outcome"], **place})


def place_of(events: Sequence[Event]) -> dict[str, Any]:
    """The fields of an outcome that a `where` event knows: step, micro-batch, stage, shapes, who holds what."""
    event = _first(events, "where")
    facts = {name: event.get(name) for name in PLACE}
    memory = event.get("memory")
    if memory:
        facts |= {"held": memory["held"], "saved": memory["saved"]}
        if facts["shapes"] is not None and memory["tokens_per_expert"]:
            facts["shapes"] = {**facts["shapes"], "tokens_per_expert": dict(memory["tokens_per_expert"])}
    return facts


def _outcome(events: Sequence[Event]) -> Outcome:
    failure = _first(events, "failure")
    if failure:
        return failed(events, failure)
    if _first(events, "done"):
        return Outcome(status="ok")
    last: Any = next((event for event in reversed(events) if event["event"] == "begin"), {})
    return Outcome(status="failed", step=last.get("index"), message="the worker ended without a word")
