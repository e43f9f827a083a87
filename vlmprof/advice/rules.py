"""The rules. Each looks at a record and gives the figures of its finding, or None when it has nothing to say."""

import statistics
from collections.abc import Callable

from vlmprof.advice.device import DEVICE_RULES
from vlmprof.advice.memory import freed_by_freezing_vision, freed_by_full_recompute, freed_by_half_micro_batch
from vlmprof.advice.rule import Figures, Rule, Shown
from vlmprof.records.figures import Figure
from vlmprof.records.memory import Router
from vlmprof.records.run import Finding, Run

__all__ = ["RULES", "advise"]


def advise(run: Run) -> Run:
    """The record with its findings."""
    findings = []
    for rule in RULES:
        figures = rule.figures(run)
        if figures is not None:
            text = rule.text.format(**{name: Shown(value) for name, value in figures.items()})
            findings.append(Finding(rule=rule.name, level=rule.level, text=text, figures=figures))
    return run.model_copy(update={"findings": tuple(findings)})


def stage_ms(run: Run, stage: str) -> float:
    """Total of a stage over all phases, milliseconds a step; 0 where it was not seen."""
    rows = [row.total_ms for row in run.stages if row.name == stage]
    return sum(total.value for total in rows if isinstance(total, Figure))


def share(run: Run, stage: str) -> float:
    step = stage_ms(run, "step")
    return stage_ms(run, stage) / step if step else 0.0


def above(stage: str, limit: float) -> Callable[[Run], Figures | None]:
    """Figures when a stage takes more than `limit` of the observed step."""

    def figures(run: Run) -> Figures | None:
        found = share(run, stage)
        return {"share": found, "ms": stage_ms(run, stage)} if found > limit else None

    return figures


def vision_over_decoder(run: Run) -> Figures | None:
    vision, decoder = stage_ms(run, "encoder") + stage_ms(run, "projector"), stage_ms(run, "decoder")
    if not decoder or vision <= decoder:
        return None
    return {"vision_ms": vision, "decoder_ms": decoder, "ratio": vision / decoder}


def vision_share(run: Run) -> Figures | None:
    found = share(run, "encoder") + share(run, "projector")
    decoder = stage_ms(run, "decoder")
    vision = stage_ms(run, "encoder") + stage_ms(run, "projector")
    return {"share": found} if found > 0.15 and vision <= decoder else None


def recompute_share(run: Run) -> Figures | None:
    step = stage_ms(run, "step")
    rerun = sum(row.self_ms.value for row in run.stages if row.phase == "recompute" and isinstance(row.self_ms, Figure))
    return {"share": rerun / step, "ms": rerun} if step and rerun / step > 0.05 else None


def realism(kind: str) -> Callable[[Run], Figures | None]:
    return lambda run: {"realism": kind} if run.data.realism == kind else None


def padding(run: Run) -> Figures | None:
    found = run.data.padding_share
    return {"share": found} if found is not None and found > 0.25 else None


def low_coverage(run: Run) -> Figures | None:
    if run.coverage is None or run.coverage >= 0.97:
        return None
    return {"coverage": run.coverage, "other": 1 - run.coverage}


def costly_observer(run: Run) -> Figures | None:
    for row in run.overhead:
        if row.kind == "spanned" and isinstance(row.ratio, Figure) and row.ratio.value > 1.05:
            return {"kind": row.kind, "ratio": row.ratio.value}
    return None


def unsteady(run: Run) -> Figures | None:
    steps = [step.ms for step in run.steps if step.kind == "plain" and not step.warmup]
    if len(steps) < 4:
        return None
    quarters = statistics.quantiles(steps, n=4)
    spread = (quarters[2] - quarters[0]) / quarters[1]
    return {"spread": spread, "median_ms": quarters[1]} if spread > 0.15 else None


def rehearsal(run: Run) -> Figures | None:
    environment = run.environment
    return {"device": environment.device} if environment and environment.platform.startswith("cpu") else None


def no_pictures(run: Run) -> Figures | None:
    work = run.effective_work
    return {"tokens": work.tokens} if work and run.data.realism == "real" and not work.images else None


def skipped(run: Run) -> Figures | None:
    count = sum(run.data.skipped.values())
    return {"count": float(count)} if count else None


WORTH_BYTES = 2**20


def ran_out(figures: Callable[[Run], Figures | None], activations: bool) -> Callable[[Run], Figures | None]:
    """Figures of a run that ran out of memory only; of activations only where they are held: not in the optimizer."""

    def when_it_helps(run: Run) -> Figures | None:
        if run.outcome.failure_class != "oom" or (activations and run.outcome.phase == "step"):
            return None
        found = figures(run)
        return found if found is not None and float(found["freed"]) >= WORTH_BYTES else None

    return when_it_helps


def leak(run: Run) -> Figures | None:
    growth = run.memory.growth if run.memory else None
    if growth is None or not growth.leak or growth.confidence is None or not isinstance(growth.bytes_per_step, Figure):
        return None
    stages = sorted(growth.by_stage, key=lambda stage: -growth.by_stage[stage])
    return {
        "slope": growth.bytes_per_step.value,
        "low": growth.confidence[0],
        "high": growth.confidence[1],
        "stages": ", ".join(stages) or "no single stage",
    }


def expert_imbalance(run: Run) -> Figures | None:
    if not isinstance(run.router, Router):
        return None
    worst = max(run.router.layers, key=lambda layer: layer.imbalance)
    if worst.imbalance <= 1.5:
        return None
    return {"imbalance": worst.imbalance, "layer": float(worst.layer), "entropy": worst.entropy}


def dropped(run: Run) -> Figures | None:
    count = run.router.dropped_tokens if isinstance(run.router, Router) else None
    return {"count": count.value} if isinstance(count, Figure) and count.value else None


def uneven_ranks(run: Run) -> Figures | None:
    """Encoder time that differs over ranks, with the patches that explain it."""
    rows = [row for row in run.ranks if row.encoder_ms is not None and row.patches is not None]
    if len(rows) < 2:
        return None
    slow = max(rows, key=lambda row: row.encoder_ms or 0.0)
    fast = min(rows, key=lambda row: row.encoder_ms or 0.0)
    ratio = (slow.encoder_ms or 0.0) / (fast.encoder_ms or 1.0)
    if ratio < 1.2 or (slow.patches or 0.0) <= (fast.patches or 0.0):
        return None  # then it is not the pictures
    return {
        "ratio": ratio,
        "slow": float(slow.rank),
        "fast": float(fast.rank),
        "patches": (slow.patches or 0.0) / max(fast.patches or 0.0, 1.0),
    }


def uneven_experts(run: Run) -> Figures | None:
    rows = [row for row in run.ranks if row.expert_tokens]
    if len(rows) < 2:
        return None
    loads = {row.rank: row.expert_tokens or 0.0 for row in rows}
    most = max(loads, key=lambda rank: loads[rank])
    ratio = loads[most] / statistics.fmean(loads.values())
    return {"ratio": ratio, "rank": float(most)} if ratio > 1.15 else None


RULES: tuple[Rule, ...] = (
    Rule(
        "vision-over-decoder",
        "warning",
        vision_over_decoder,
        "encoder and projector take {vision_ms:.0f} ms a step, the decoder {decoder_ms:.0f}: {ratio:.1f} times as "
        "much. Look at picture sizes, freezing and the encoder's own layout before the dispatcher.",
    ),
    Rule(
        "vision-share",
        "info",
        vision_share,
        "encoder and projector take {share:.0%} of the step: text-only or mock data would hide that.",
    ),
    Rule(
        "mock-data",
        "warning",
        realism("mock"),
        "the data is {realism}: one small picture a sequence says nothing of real throughput. Use --data real or your "
        "own --data PATH before drawing a conclusion.",
    ),
    Rule(
        "text-only-data",
        "warning",
        realism("text-only"),
        "the data is {realism}: the encoder never ran, so this is not the throughput of a VLM.",
    ),
    Rule(
        "data-bound",
        "warning",
        above("data", 0.15),
        "waiting for data takes {share:.0%} of the step ({ms:.0f} ms): pictures are read and resized inside the step.",
    ),
    Rule(
        "dispatcher-share",
        "warning",
        above("decoder.dispatcher", 0.20),
        "the token dispatcher takes {share:.0%} of the step ({ms:.0f} ms): compare --set dispatcher=allgather and "
        "alltoall, and the expert-parallel size.",
    ),
    Rule(
        "head-share",
        "info",
        above("head", 0.25),
        "output layer and loss take {share:.0%} of the step ({ms:.0f} ms): a small model has a heavy vocabulary.",
    ),
    Rule(
        "recompute-share",
        "info",
        recompute_share,
        "recomputation takes {share:.0%} of the step ({ms:.0f} ms): once the model fits, selective recompute is "
        "usually the better steady state.",
    ),
    Rule(
        "padding",
        "info",
        padding,
        "{share:.0%} of the tokens are padding: they cost decoder time and bear no loss. Compare by useful tokens.",
    ),
    Rule(
        "oom-recompute",
        "warning",
        ran_out(freed_by_full_recompute, activations=True),
        "--set recompute=full would free about {freed:bytes}: the layers have saved {saved:bytes} for backward, and "
        "would keep {kept:bytes} of inputs.",
    ),
    Rule(
        "oom-freeze-vision",
        "warning",
        ran_out(freed_by_freezing_vision, activations=False),
        "--set freeze_vision=true would free about {freed:bytes}: {saved:bytes} that the encoder saved for backward "
        "and {lasting:bytes} of its gradients and optimizer state.",
    ),
    Rule(
        "oom-micro-batch",
        "warning",
        ran_out(freed_by_half_micro_batch, activations=True),
        "--set micro_batch_size={to:.0f}, not {from:.0f}, would free about {freed:bytes} of the {saved:bytes} saved "
        "for backward.",
    ),
    Rule(
        "leak",
        "warning",
        leak,
        "memory grows by {slope:bytes} a counted step (95 % interval {low:bytes} to {high:bytes}), held by: {stages}.",
    ),
    Rule(
        "expert-imbalance",
        "info",
        expert_imbalance,
        "the most loaded expert of layer {layer:.0f} gets {imbalance:.1f} times the mean (entropy {entropy:.2f}): see "
        "what balance is worth with --set force_balanced_routing=true.",
    ),
    Rule(
        "uneven-encoder",
        "warning",
        uneven_ranks,
        "the encoder takes {ratio:.1f} times as long on rank {slow:.0f} as on rank {fast:.0f}, which has {patches:.1f} "
        "times fewer patches: pictures are unevenly spread, and all ranks wait for the slowest.",
    ),
    Rule(
        "uneven-experts",
        "warning",
        uneven_experts,
        "rank {rank:.0f} works on {ratio:.1f} times the mean of expert tokens: the others wait for it in combine.",
    ),
    Rule("dropped-tokens", "warning", dropped, "{count:.0f} choices of a token a step found no room in their expert."),
    Rule("skipped-samples", "warning", skipped, "{count:.0f} samples were left out because their picture is bad."),
    Rule(
        "coverage",
        "warning",
        low_coverage,
        "only {coverage:.1%} of the step lies in a named stage; {other:.1%} is `other`: see `missing` and hook_points.",
    ),
    Rule(
        "observer-cost",
        "warning",
        costly_observer,
        "{kind} steps take {ratio:.2f} times a plain step: trust the shares, take times from plain steps.",
    ),
    Rule(
        "unsteady",
        "info",
        unsteady,
        "plain steps spread by {spread:.0%} of their median ({median_ms:.0f} ms): the machine is busy or batches "
        "differ much; use more --steps.",
    ),
    Rule(
        "no-pictures",
        "warning",
        no_pictures,
        "none of the {tokens:.0f} tokens a step stands for a picture: the encoder never ran, so this is not the "
        "throughput of a VLM.",
    ),
    *DEVICE_RULES,
    Rule(
        "cpu-rehearsal",
        "info",
        rehearsal,
        "measured on the {device}: where work happens is real, but shares of the time are those of a CPU.",
    ),
)
