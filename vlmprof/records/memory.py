"""The parts of a run record about memory, FLOPs, experts and communication, and their assembly from counted steps."""

import math
import statistics
from collections.abc import Iterable, Sequence

from vlmprof.records.figures import Absent, Figure, Measured, Record, Source, figure
from vlmprof.records.journal import Event
from vlmprof.records.stage_tree import STAGES

__all__ = [
    "DeviceMemory",
    "Growth",
    "Memory",
    "Router",
    "RouterLayer",
    "StageMemory",
    "memory_of",
    "router_of",
    "stage_memory",
]

CATEGORIES = ("parameters", "gradients", "optimizer_state")


class StageMemory(Record):
    """Bytes of one stage (its own, without its children)."""

    parameters: Measured | None = None
    gradients: Measured | None = None
    optimizer_state: Measured | None = None
    saved_activations: Measured | None = None
    """Kept for backward, by storages that this stage was the first to save, in the micro-batch that saved most."""
    held_at_peak: Measured | None = None
    """What lived at the step's peak and was this stage's: made by it, or serving its parameters."""
    held_after: Measured | None = None
    """What of it lived when the step was over."""
    peak: Measured | None = None
    """The most that lived, of anybody's, while this stage ran in this phase."""


class Growth(Record):
    """Change of what is held after a step, from counted step to counted step."""

    bytes_per_step: Measured
    confidence: tuple[float, float] | None = None
    """95 % interval of the slope; absent with fewer than 3 counted steps."""
    leak: bool = False
    """The interval lies above 0 and the slope above 4 KiB a step."""
    by_stage: dict[str, float] = {}
    """Stages whose own holdings grow, bytes a counted step."""


class DeviceMemory(Record):
    """The CUDA allocator and the device around it, from counted steps; bytes."""

    reserved: Measured
    """Peak of what the allocator took from the driver."""
    fragmented: Measured
    """Reserved but not in use when most was in use: what no request of that moment fitted into."""
    graph_pools: Measured
    """Private pools of CUDA graphs."""
    outside: Measured
    """In use on the device but not PyTorch's: the CUDA context, NCCL's buffers, other processes."""
    retries: float
    """Times that the allocator gave back its cache to find room, over the whole run."""


class Memory(Record):
    """Bytes of the whole rank, from counted steps."""

    peak: Measured
    peak_stage: str = ""
    peak_phase: str = ""
    parameters: Measured
    gradients: Measured
    optimizer_state: Measured
    saved_activations: Measured
    held_after: Measured
    growth: Growth | None = None
    host_rss: Measured
    device: DeviceMemory | None = None
    limit: int | None = None
    """Of --memory-limit."""


class RouterLayer(Record):
    layer: int
    tokens_per_expert: tuple[float, ...]
    """Mean over counted steps."""
    imbalance: float
    """Most loaded expert over the mean; 1 is even."""
    entropy: float
    """Of the load, over its maximum log(experts): 1 is even, 0 is one expert only."""


class Router(Record):
    layers: tuple[RouterLayer, ...]
    imbalance: Measured
    """Over counted steps, of each the worst layer."""
    entropy: Measured
    dropped_tokens: Measured
    """Choices of a token a step that found no room in their expert."""
    bytes_sent: Measured
    """By the dispatcher's collectives, a step and rank."""


def _counted(samples: Sequence[float], source: Source = "tensor-bytes") -> Measured:
    return figure(samples, "bytes", source)


def _source(counted: Sequence[Event]) -> Source:
    """How these steps were counted: tensor by tensor, or by the device's allocator."""
    source: Source = counted[0]["memory"].get("source", "tensor-bytes")
    return source


def stage_memory(counted: Sequence[Event], stage: str, phases: Iterable[str]) -> dict[str, StageMemory]:
    """Phase -> memory of a stage. What belongs to no phase stands with the first one."""
    rows: dict[str, StageMemory] = {}
    source = _source(counted)
    for number, phase in enumerate(phases):
        saved = [_pick(step, "saved", stage, phase) for step in counted]
        peaks = [_pick(step, "stage_peaks", stage, phase) for step in counted]
        facts: dict[str, Measured] = {}
        if any(saved):
            facts["saved_activations"] = _counted(saved, source)
        if any(peaks):
            facts["peak"] = _counted(peaks, source)
        if number == 0:
            for category in CATEGORIES:
                sizes = [step["memory"]["held_after"].get(stage, {}).get(category, 0) for step in counted]
                if any(sizes):
                    facts[category] = _counted(sizes, source)
            for name in ("held_at_peak", "held_after"):
                sizes = [sum(step["memory"][name].get(stage, {}).values()) for step in counted]
                if any(sizes):
                    facts[name] = _counted(sizes, source)
        if facts:
            rows[phase] = StageMemory(**facts)
    return rows


def _pick(step: Event, name: str, stage: str, phase: str) -> float:
    return float(sum(size for s, p, size in step["memory"][name] if s == stage and p == phase))


def memory_of(counted: Sequence[Event], every: Sequence[Event], limit: int | None) -> Memory | None:
    """The whole rank's memory; None where no step was counted. `every` has the counted warm-up step, too."""
    if not counted:
        return None
    facts = [step["memory"] for step in counted]
    source = _source(counted)

    def held(category: str) -> Measured:
        sizes = [sum(row.get(category, 0) for row in fact["held_after"].values()) for fact in facts]
        return _counted(sizes, source)

    highest = max(facts, key=lambda fact: float(fact["peak"]))
    return Memory(
        peak=_counted([fact["peak"] for fact in facts], source),
        peak_stage=highest["peak_where"][0],
        peak_phase=highest["peak_where"][1],
        parameters=held("parameters"),
        gradients=held("gradients"),
        optimizer_state=held("optimizer_state"),
        saved_activations=_counted(
            [sum(row[2] for row in fact["saved"] if row[1] == "forward") for fact in facts], source
        ),
        held_after=_counted([_total_after(step) for step in counted], source),
        growth=_growth(every),
        host_rss=_counted([fact["rss"] for fact in facts], "os"),
        device=_device([fact["device"] for fact in facts if fact.get("device")]),
        limit=limit,
    )


def _device(facts: Sequence[Event]) -> DeviceMemory | None:
    if not facts:
        return None
    figures = {
        name: _counted([fact[name] for fact in facts], "allocator")
        for name in ("reserved", "fragmented", "graph_pools", "outside")
    }
    return DeviceMemory(**figures, retries=facts[-1]["retries"])


def _total_after(step: Event) -> float:
    return float(sum(sum(row.values()) for row in step["memory"]["held_after"].values()))


LEAK_BYTES = 4096


def _growth(every: Sequence[Event]) -> Growth | None:
    """Slope of what is held after counted steps, the very first of the run aside (it allocates what lasts)."""
    steps = every[1:]
    if len(steps) < 2:
        return None
    slope, confidence = _slope([_total_after(step) for step in steps])
    by_stage = {}
    for stage in STAGES:
        own = [float(step["memory"]["held_after"].get(stage, {}).get("tensors", 0)) for step in steps]
        stage_slope, _ = _slope(own)
        if stage_slope > LEAK_BYTES:
            by_stage[stage] = stage_slope
    return Growth(
        bytes_per_step=Figure(value=slope, unit="bytes", source=_source(every)),
        confidence=confidence,
        leak=confidence is not None and confidence[0] > 0 and slope > LEAK_BYTES,
        by_stage=by_stage,
    )


T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
"""Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond 10 the normal 1.96 + 2.4 / df is close."""


def _slope(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Least-squares slope by index, and its 95 % interval where there are at least three values."""
    indices = range(len(values))
    fit = statistics.linear_regression(indices, values)
    freedom = len(values) - 2
    if freedom < 1:
        return fit.slope, None
    residual = sum((y - fit.intercept - fit.slope * x) ** 2 for x, y in zip(indices, values, strict=True))
    spread = sum((x - statistics.fmean(indices)) ** 2 for x in indices)
    error = math.sqrt(residual / freedom / spread) * T_95.get(freedom, 1.96 + 2.4 / freedom)
    return fit.slope, (fit.slope - error, fit.slope + error)


def router_of(counted: Sequence[Event]) -> Router | Absent | None:
    """How the experts are loaded; None where no step was counted."""
    if not counted:
        return None
    by_step = [dict(step["memory"]["tokens_per_expert"]) for step in counted]
    layers = sorted({layer for one in by_step for layer in one})
    if not layers:
        return Absent(absent="no router gave a routing map")
    rows = []
    for layer in layers:
        loads = [one[layer] for one in by_step if layer in one]
        mean = tuple(statistics.fmean(values) for values in zip(*loads, strict=True))
        rows.append(RouterLayer(layer=layer, tokens_per_expert=mean, imbalance=imbalance(mean), entropy=entropy(mean)))
    sent = [step["memory"]["sent"] for step in counted if step["memory"]["sent"] is not None]
    return Router(
        layers=tuple(rows),
        imbalance=figure([max(map(imbalance, one.values())) for one in by_step], "ratio", "counted"),
        entropy=figure([min(map(entropy, one.values())) for one in by_step], "ratio", "counted"),
        dropped_tokens=figure([step["memory"]["dropped"] for step in counted], "tokens", "counted"),
        bytes_sent=_counted(
            [sum(size for stage, size in one.items() if stage.startswith("decoder.dispatcher")) for one in sent]
        )
        if sent
        else Absent(absent="bytes of collectives are counted on the CPU only"),
    )


def imbalance(load: Sequence[float]) -> float:
    """Maximum over mean; 1 for an empty load."""
    return max(load) / statistics.fmean(load) if sum(load) else 1.0


def entropy(load: Sequence[float]) -> float:
    """Shannon entropy of the load over log(experts); 1 for one expert."""
    total = sum(load)
    if len(load) < 2 or not total:
        return 1.0
    shares = [count / total for count in load if count]
    return -sum(share * math.log(share) for share in shares) / math.log(len(load))
