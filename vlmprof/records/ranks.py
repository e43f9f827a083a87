"""Several ranks in one record: steps merged, the spread of every stage over ranks, and their loads side by side."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vlmprof.records.figures import Record
from vlmprof.records.journal import Event
from vlmprof.records.stage_times import Key, self_times, totals_of

__all__ = ["RankFacts", "Spread", "merge_steps", "rank_facts", "spreads"]

Ranks = Mapping[int, Sequence[Event]]
"""Rank -> its events."""


class Spread(Record):
    """Total time of a stage and phase over ranks, mean a step, in milliseconds."""

    min: float
    median: float
    max: float
    slowest: int
    """The rank of `max`."""


class RankFacts(Record):
    """What explains why one rank is slower than another: means a step."""

    rank: int
    host: str = ""
    step_ms: float | None = None
    data_ms: float | None = None
    encoder_ms: float | None = None
    grad_sync_ms: float | None = None
    """Where it waits for the slower ones."""
    patches: float | None = None
    useful_tokens: float | None = None
    expert_tokens: float | None = None
    """Tokens that its own experts worked on."""
    peak_bytes: float | None = None
    rss_bytes: float | None = None


def merge_steps(ranks: Ranks) -> list[Event]:
    """One event a step that every rank completed: the longest time, self times as means over ranks, the global loss."""
    by_rank = {rank: {e["index"]: e for e in events if e["event"] == "step"} for rank, events in ranks.items()}
    if len(by_rank) == 1:
        return list(next(iter(by_rank.values())).values())
    first = by_rank[min(by_rank)]
    return [
        _merge([own[index] for own in by_rank.values()])
        for index in first
        if all(index in own for own in by_rank.values())
    ]


def _merge(steps: Sequence[Event]) -> Event:
    merged = dict(steps[0])
    merged["ms"] = max(step["ms"] for step in steps)
    totals: dict[tuple[str, int | None, str], list[float]] = {}
    for step in steps:
        for stage, layer, phase, self_ms, count in step["ranges"]:
            entry = totals.setdefault((stage, layer, phase), [0.0, 0.0])
            entry[0] += self_ms
            entry[1] += count
    merged["ranges"] = [[*key, self_ms / len(steps), count / len(steps)] for key, (self_ms, count) in totals.items()]
    if merged["ranges"]:
        # Ranks take turns at waiting: the step whose parts these are lasted as long as the ranks' mean.
        merged["ms"] = statistics.fmean(step["ms"] for step in steps)
    tokens = sum(step.get("loss_tokens", 0) for step in steps)
    if tokens:
        merged["loss"] = sum(step["loss_sum"] for step in steps) / tokens
    if all(step.get("memory") for step in steps):
        merged["memory"] = _merge_memory([step["memory"] for step in steps])
    if all(step.get("kernels") for step in steps):
        merged["kernels"] = _merge_kernels([step["kernels"] for step in steps])
    return merged


def _merge_kernels(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Device time as means over ranks, stage by stage: as the spans beside it are."""
    count = len(facts)
    merged = {
        name: sum(fact[name] for fact in facts) / count
        for name, value in facts[0].items()
        if isinstance(value, int | float)
    }
    rows: dict[tuple[str, str], list[float]] = {}
    launches: dict[str, float] = {}
    for fact in facts:
        for stage, phase, *values in fact["rows"]:
            before = rows.get((stage, phase), [0.0] * len(values))
            rows[stage, phase] = [one + other / count for one, other in zip(before, values, strict=True)]
        for stage, number in fact["graph_launches"].items():
            launches[stage] = launches.get(stage, 0.0) + number / count
    entered = sorted({(stage, point) for fact in facts for stage, point in fact["entered"]})
    return {
        **merged,
        "rows": [[*key, *row] for key, row in rows.items()],
        "graph_launches": launches,
        "entered": entered,
    }


def _merge_memory(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rank with the highest peak stands for all; routing is summed where it is the rank's own tokens."""
    highest = dict(max(facts, key=lambda fact: float(fact["peak"])))
    tokens: dict[int, list[int]] = {}
    for fact in facts:
        for layer, counts in fact["tokens_per_expert"]:
            before = tokens.get(layer, [0] * len(counts))
            tokens[layer] = [one + other for one, other in zip(before, counts, strict=True)]
    highest["tokens_per_expert"] = [[layer, counts] for layer, counts in sorted(tokens.items())]
    highest["dropped"] = sum(fact["dropped"] for fact in facts)
    return highest


def _measured(events: Sequence[Event], kind: str) -> list[Event]:
    return [e for e in events if e["event"] == "step" and e["kind"] == kind and not e["warmup"]]


def _mean_totals(events: Sequence[Event]) -> dict[Key, float]:
    steps = [totals_of(self_times(step)) for step in _measured(events, "spanned")]
    keys = {key for step in steps for key in step}
    return {key: statistics.fmean(step.get(key, 0.0) for step in steps) for key in keys}


def spreads(ranks: Ranks) -> dict[Key, Spread]:
    """(stage, phase) -> spread over ranks; empty for one rank."""
    if len(ranks) < 2:
        return {}
    means = {rank: _mean_totals(events) for rank, events in ranks.items()}
    found = {}
    for key in {key for table in means.values() for key in table}:
        values = {rank: table.get(key, 0.0) for rank, table in means.items()}
        slowest = max(values, key=lambda rank: values[rank])
        found[key] = Spread(
            min=min(values.values()),
            median=statistics.median(values.values()),
            max=values[slowest],
            slowest=slowest,
        )
    return found


def rank_facts(ranks: Ranks) -> tuple[RankFacts, ...]:
    """One row a rank."""
    return tuple(_facts(rank, events) for rank, events in sorted(ranks.items()))


def _facts(rank: int, events: Sequence[Event]) -> RankFacts:
    plain, counted = _measured(events, "plain"), _measured(events, "counted")
    totals = _mean_totals(events)
    own = [step["own"] for step in plain if step.get("own")]
    memory = [step["memory"] for step in counted if step.get("memory")]

    def stage(name: str) -> float | None:
        values = [value for (one, _), value in totals.items() if one == name]
        return sum(values) if values else None

    def mean(values: Sequence[float]) -> float | None:
        return statistics.fmean(values) if values else None

    return RankFacts(
        rank=rank,
        host=next((e.get("host", "") for e in events if e["event"] == "worker"), ""),
        step_ms=mean([step["ms"] for step in plain]),
        data_ms=stage("data"),
        encoder_ms=stage("encoder"),
        grad_sync_ms=stage("grad_sync"),
        patches=mean([one["patches"] for one in own]),
        useful_tokens=mean([one["useful_tokens"] for one in own]),
        expert_tokens=mean([fact["expert_tokens"] for fact in memory if fact.get("expert_tokens") is not None]),
        peak_bytes=mean([fact["peak"] for fact in memory]),
        rss_bytes=mean([fact["rss"] for fact in memory]),
    )
