"""The run record, `vlmprof.run/1`: everything that is known of one measured execution."""

from typing import Annotated, Any, Literal

from pydantic import Field

from vlmprof.records.figures import Absent, Measured, Record
from vlmprof.records.flops import Flops
from vlmprof.records.memory import Memory, Router, StageMemory
from vlmprof.records.ranks import RankFacts, Spread

__all__ = ["RUN_SCHEMA", "Device", "Finding", "Outcome", "Run", "Stage", "Step"]

RUN_SCHEMA = "vlmprof.run/1"
StepKind = Literal["plain", "spanned", "traced", "counted"]
Phase = Literal["forward", "backward", "recompute", "step"]
FailureClass = Literal["oom", "host-oom", "nan", "hang", "cuda-fault", "crash", "killed", "setup", "hardware"]


class WorkloadRecord(Record):
    name: str
    hash: str = ""
    settings: dict[str, Any] | None = None
    """The whole typed workload; absent for a model of the user's own (`vlmprof.attach`)."""
    deviations: tuple[str, ...] = ()


class Package(Record):
    version: str
    path: str = ""
    commit: str = ""
    """Of the git checkout that `path` lies in; a trailing + says that it has changes."""


class Environment(Record):
    """What the run ran on. `platform` is what runs are compared by; the rest are caveats."""

    platform: str
    device: str
    precision: str
    ranks: int
    threads: int
    packages: dict[str, Package]
    host: dict[str, Any]
    variables: dict[str, str] = {}
    """Environment variables that change how torch, NCCL, TE or Megatron run."""
    bridge: tuple[str, ...] = ()
    """What the CPU bridge put in place; empty on a GPU."""


class DataRecord(Record):
    realism: Literal["real", "mock", "text-only", "unknown"]
    source: str = ""
    padding_share: float | None = None
    skipped: dict[str, int] = {}
    """Samples left out by --skip-bad-samples, by reason."""


class EffectiveWork(Record):
    """Per step, over the plain steps: means, and how sizes are spread. Runs compare only where this is equal."""

    tokens: float
    useful_tokens: float
    padding_tokens: float
    images: float
    image_patches: float
    sequence_lengths: dict[str, float] = {}
    """Unpadded lengths: min, median, max, mean."""
    image_patch_counts: dict[str, float] = {}
    trained_parameters: int | None = None
    model_flops: float | None = None


class Step(Record):
    index: int
    batch: int
    """Which batch it trained on: kinds of one run replay the same ones."""
    kind: StepKind
    warmup: bool = False
    ms: float
    loss: float | None = None
    grad_norm: float | None = None


class Stage(Record):
    """One stage and phase, summed over layers and micro-batches, per step."""

    name: str
    phase: Phase
    total_ms: Measured
    """With its children of the same phase."""
    self_ms: Measured
    ranges: float
    """Entries a step."""
    share: float
    """`total_ms` over the observed step, 0 to 1."""
    busy_ms: Measured | None = None
    """Kernels, copies and memsets that this stage and what lies in it launched, as an interval union; traced steps."""
    busy_self_ms: Measured | None = None
    """Of what this stage itself launched, without what lies in it."""
    exposed_ms: Measured | None = None
    """Communication kernels of this stage and below while no other kernel ran."""
    launch_bound_ms: Measured | None = None
    """The device idle while the host was in this stage itself."""
    syncs: float | None = None
    """Calls of this stage itself that made the host wait for the device, a traced step."""
    memory: StageMemory | None = None
    ranks: Spread | None = None
    """Over ranks, where there are several; the times above are then means over them."""


class LayerTime(Record):
    name: str
    """Range name, e.g. `decoder.3.router/forward`."""
    self_ms: float
    ranges: float


class Overhead(Record):
    """What a step kind costs against plain steps over the same batches: the ratio of times, one sample a batch."""

    kind: StepKind
    ratio: Measured


class Device(Record):
    """The accelerator over whole traced steps."""

    step_ms: Measured
    """Wall time of a traced step."""
    busy_ms: Measured
    """Interval union of all its kernels, copies and memsets."""
    exposed_ms: Measured
    launch_bound_ms: Measured
    """Idle while the host had nothing queued: the sum over stages of `launch_bound_ms`."""
    syncs: Measured
    """Calls that made the host wait for the device."""
    kernels: float
    """Launched a step."""
    hidden: tuple[str, ...] = ()
    """Stages whose kernels ran inside a CUDA graph and could not be told apart, in part or whole: `stage: reason`."""

    def hides(self, stage: str) -> bool:
        """Whether all of a stage is hidden so: it has no times, which is not 0."""
        return any(one.startswith(f"{stage}:") for one in self.hidden)


class Finding(Record):
    rule: str
    level: Literal["info", "warning"]
    text: str
    figures: dict[str, float | str] = {}


class HookPointRecord(Record):
    stage: str
    point: str
    found: int


class Outcome(Record):
    status: Literal["ok", "failed", "interrupted"]
    failure_class: Annotated[FailureClass | None, Field(alias="class")] = None
    signature: str | None = None
    """The same for the same failure on every run and machine."""
    reading: str | None = None
    """What its numbers mean, in plain words."""
    message: str | None = None
    step: int | None = None
    stage: str | None = None
    layer: int | None = None
    phase: str | None = None
    micro_batch: int | None = None
    rank: int | None = None
    shapes: dict[str, Any] | None = None
    """Of the micro-batch that failed: images, patches, tokens, tokens per expert."""
    held: dict[str, dict[str, int]] | None = None
    """Stage -> category -> bytes when it failed, where they were counted."""
    saved: dict[str, int] | None = None
    """Stage -> bytes saved for backward when it failed."""
    evidence: tuple[str, ...] = ()


class Run(Record):
    schema_: Annotated[str, Field(alias="schema")] = RUN_SCHEMA
    created: str
    """UTC, ISO 8601."""
    command: tuple[str, ...] = ()
    workload: WorkloadRecord
    environment: Environment | None = None
    """Absent when the worker died before it could tell."""
    data: DataRecord
    parameters: dict[str, int] = {}
    """Parameters by part of the model: total, trained, encoder, projector, decoder."""
    effective_work: EffectiveWork | None = None
    steps: tuple[Step, ...] = ()
    stages: tuple[Stage, ...] = ()
    layers: tuple[LayerTime, ...] = ()
    missing: dict[str, str] = {}
    """Stage -> why it could not be observed."""
    hook_points: tuple[HookPointRecord, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    throughput: dict[str, Measured] = {}
    memory: Memory | None = None
    flops: Flops | None = None
    router: Router | Absent | None = None
    coverage: float | None = None
    coverage_kernels: float | None = None
    """Share of kernel time that a named stage launched."""
    device: Device | None = None
    """Of traced steps; absent on a CPU."""
    traces: tuple[str, ...] = ()
    """Files of the run folder: Chrome traces, memory snapshots."""
    overhead: tuple[Overhead, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    outcome: Outcome

    def stage(self, name: str, phase: str) -> Stage | None:
        """The row of one stage and phase."""
        return next((row for row in self.stages if row.name == name and row.phase == phase), None)
