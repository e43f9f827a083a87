"""Rules about an accelerator: who keeps it idle, what waits for it, whose memory is nobody's tensor."""

from vlmprof.advice.rule import Figures, Rule
from vlmprof.records.figures import Figure, Measured
from vlmprof.records.run import Run

__all__ = ["DEVICE_RULES"]

IDLE = 0.25
"""Share of a plain step without kernels above which the host is the bottleneck."""


def value(measured: Measured | None) -> float:
    return measured.value if isinstance(measured, Figure) else 0.0


def launch_bound(run: Run) -> Figures | None:
    """The share is of plain steps, which no profiler slows; which stage's launches, traced steps know."""
    if run.device is None or not isinstance(plain := run.throughput.get("step_ms"), Figure):
        return None
    waiting = run.stage("data", "step")
    for_data = value(waiting.launch_bound_ms) / value(run.device.step_ms) if waiting is not None else 0.0
    share = 1 - value(run.device.busy_ms) / plain.value - for_data
    idle = [row for row in run.stages if isinstance(row.launch_bound_ms, Figure) and row.name not in ("step", "data")]
    whole = sum(value(row.launch_bound_ms) for row in idle)
    if share < IDLE or not whole:
        return None
    worst = sorted(idle, key=lambda row: -value(row.launch_bound_ms))[:3]
    return {
        "share": share,
        "busy_ms": value(run.device.busy_ms),
        "step_ms": plain.value,
        "kernels": run.device.kernels,
        "stages": ", ".join(
            f"{row.name}/{row.phase} ({value(row.launch_bound_ms) / whole:.0%} of the idle time)" for row in worst
        ),
    }


def data_idle(run: Run) -> Figures | None:
    row = run.stage("data", "step")
    if run.device is None or row is None or value(row.launch_bound_ms) < 0.1 * value(run.device.step_ms):
        return None
    return {"ms": value(row.launch_bound_ms), "share": value(row.launch_bound_ms) / value(run.device.step_ms)}


def exposed(run: Run) -> Figures | None:
    if run.device is None or value(run.device.exposed_ms) < 0.05 * value(run.device.step_ms):
        return None
    tops = [row for row in run.stages if row.name != "step" and value(row.exposed_ms)]
    worst = max(tops, key=lambda row: value(row.exposed_ms), default=None)
    return {
        "ms": value(run.device.exposed_ms),
        "share": value(run.device.exposed_ms) / value(run.device.step_ms),
        "stage": f"{worst.name}/{worst.phase}" if worst else "other",
    }


def host_syncs(run: Run) -> Figures | None:
    rows = [row for row in run.stages if row.syncs and row.name.startswith(("encoder", "projector", "decoder"))]
    if not rows:
        return None
    worst = max(rows, key=lambda row: row.syncs or 0)
    return {
        "count": sum(row.syncs or 0 for row in rows),
        "stage": f"{worst.name}/{worst.phase}",
        "most": worst.syncs or 0,
    }


def hidden(run: Run) -> Figures | None:
    return {"stages": "; ".join(run.device.hidden)} if run.device is not None and run.device.hidden else None


def fragmentation(run: Run) -> Figures | None:
    memory = run.memory
    if memory is None or memory.device is None:
        return None
    lost, reserved = value(memory.device.fragmented), value(memory.device.reserved)
    if not memory.device.retries and lost < 0.2 * reserved:
        return None
    return {"lost": lost, "reserved": reserved, "retries": memory.device.retries}


def uncounted_kernels(run: Run) -> Figures | None:
    if run.coverage_kernels is None or run.coverage_kernels >= 0.99:
        return None
    return {"coverage": run.coverage_kernels}


def host_clock(run: Run) -> Figures | None:
    environment, timed = run.environment, run.stage("step", "step")
    if environment is None or timed is None or environment.platform.startswith(("cpu", "unknown")):
        return None
    on_host = isinstance(timed.total_ms, Figure) and timed.total_ms.source == "wall-clock"
    return {"device": environment.device} if on_host else None


def without_engine(run: Run) -> Figures | None:
    environment = run.environment
    if environment is None or environment.platform.startswith(("cpu", "unknown")):
        return None
    if run.workload.settings is None or "transformer-engine" in environment.packages:
        return None  # a model of the user's own, or all is well
    return {"device": environment.device}


DEVICE_RULES: tuple[Rule, ...] = (
    Rule(
        "launch-bound",
        "warning",
        launch_bound,
        "the step is launch-bound: kernels run {busy_ms:.0f} of {step_ms:.0f} ms, so the GPU is idle {share:.0%} of a "
        "plain step, waiting for the host to launch {kernels:.0f} kernels. Idle most in {stages}. Spans there show the "
        "host; judge kernels by `busy`. A larger micro-batch, CUDA graphs or fewer, larger operations help.",
    ),
    Rule(
        "data-idle",
        "warning",
        data_idle,
        "the GPU is idle {ms:.0f} ms a step ({share:.0%}) while the host waits for data: read ahead, or read less.",
    ),
    Rule(
        "exposed-communication",
        "warning",
        exposed,
        "communication runs {ms:.0f} ms a step ({share:.0%}) while nothing else does, most of it in {stage}: overlap "
        "it, or choose another dispatcher or expert-parallel size.",
    ),
    Rule(
        "host-syncs",
        "info",
        host_syncs,
        "the host waits for the device {count:.0f} times a step inside the model, {most:.0f} times in {stage}: what is "
        "launched behind such a wait comes late.",
    ),
    Rule("hidden-in-graphs", "info", hidden, "not timed on their own: {stages}."),
    Rule(
        "fragmentation",
        "warning",
        fragmentation,
        "{lost:bytes} of the {reserved:bytes} that the allocator reserved were in no use at the peak ({retries:.0f} "
        "retries): try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and fewer different picture sizes.",
    ),
    Rule(
        "kernel-coverage",
        "warning",
        uncounted_kernels,
        "only {coverage:.1%} of kernel time lies in a named stage: see `missing` and hook_points.",
    ),
    Rule(
        "host-clock",
        "warning",
        host_clock,
        "stage times are of the host's clock: on {device} they show where kernels are launched, not where they run.",
    ),
    Rule(
        "no-transformer-engine",
        "warning",
        without_engine,
        "Transformer Engine is not installed, so layers are Megatron's local ones and far slower than what is trained "
        "with on {device}: pip install 'vlmprof[gpu]'.",
    ),
)
