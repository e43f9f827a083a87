"""What docs/measurements.md says, measured anew: python benchmarks/gpu.py [SECTION...] > docs/measurements.md

Needs one CUDA device with Transformer Engine and about 100 GiB. Sections: observer, truth, bare, sweep; default: all.
All in one process: what differs between two rows is what they are named after.
"""

import functools
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

from vlmprof import profile
from vlmprof.advice import advise
from vlmprof.records.assemble import assemble
from vlmprof.records.environment import package_versions
from vlmprof.records.figures import Figure
from vlmprof.records.journal import MemoryJournal
from vlmprof.records.run import Run
from vlmprof.records.schedule import PlannedStep
from vlmprof.stages import observers
from vlmprof.stages.hooks import Hooks
from vlmprof.stages.observers import Keep, Named
from vlmprof.training.loading import Loader
from vlmprof.training.loop import Share, build, let_go, read_micro_batch, train, useful_loss
from vlmprof.training.parallel import megatron_world
from vlmprof.training.worker import platform_name
from vlmprof.workload.packing import plan_steps
from vlmprof.workload.samples import open_source
from vlmprof.workload.settings import load_workload
from vlmprof.workload.spec import Workload

DEVICE = torch.device("cuda", 0)
PAIRS = 150
STEPS = 4
"""Plain steps of a row."""

GPU_BOUND = (
    "model.encoder.num_layers=4",
    "model.decoder.num_layers=2",
    "model.decoder.num_moe_experts=8",
    "model.decoder.moe_router_topk=8",
    "model.decoder.moe_ffn_hidden_size=8192",
    "micro_batch_size=4",
)
LAUNCH_BOUND = ("model.encoder.num_layers=8", "global_batch_size=1")
WORKLOADS = (("launch-bound", LAUNCH_BOUND), ("GPU-bound", GPU_BOUND))
"""The deeper one first: Megatron's tracker of the router's losses is as long as the first model of a process."""


def workload_of(*assignments: str, kind: str = "real") -> Workload:
    """`h200-reference` with some settings changed."""
    return load_workload("h200-reference", list(assignments), {"data.kind": kind})


def trained(workload: Workload, schedule: list[PlannedStep], folder: Path | None = None) -> tuple[Run, list[Any]]:
    """The record and the journal's events of a run in this process."""
    journal = MemoryJournal()
    settings = workload.model_dump(mode="json")
    journal.tell("start", workload={"name": workload.name, "hash": workload.hash8, "settings": settings})
    name = torch.cuda.get_device_name(DEVICE)
    environment = {"platform": f"{platform_name(name)}-x1", "device": name, "precision": "bf16", "ranks": 1}
    packages = {package: {"version": version} for package, version in package_versions().items()}
    journal.tell("environment", environment={**environment, "threads": 1, "packages": packages, "host": {}})
    try:
        with megatron_world(workload, DEVICE):
            train(workload, open_source(workload), schedule, torch.bfloat16, DEVICE, journal, keep=Keep(folder))
        journal.tell("done")
    except torch.OutOfMemoryError as error:
        journal.tell("failure", outcome={"class": "oom", "message": str(error)})
    gc.collect()
    torch.cuda.empty_cache()
    return advise(assemble(journal.events)), journal.events


def value(measured: Any) -> float:
    """Of a figure; NaN where it is absent."""
    return measured.value if isinstance(measured, Figure) else float("nan")


def interval(ratios: Sequence[float]) -> str:
    """Median and its 95 % interval, by 5,000 resamples of the pairs."""
    random = np.random.default_rng(0)
    picks = random.choice(np.asarray(ratios), (5000, len(ratios)))
    low, high = np.quantile(np.median(picks, axis=1), (0.025, 0.975))
    return f"{statistics.median(ratios):.4f} [{low:.4f} .. {high:.4f}]"


def observer() -> None:
    """Plain steps, steps with hooks and NVTX alone, steps with events as well: on the same batches, by turns."""
    print("\n## 1. What observing costs\n")
    print(f"Ratio to plain steps on the same batches: median of {PAIRS} pairs, 95 % interval. `busy`: a traced step.")
    print("Mock data: processes that read pictures would disturb the host, and are not what is measured here.\n")
    print("| workload | plain step | busy | ranges a step | NVTX / plain | NVTX and events / plain |")
    print("|---|---|---|---|---|---|")
    make = observers.make_observers

    def with_named(*arguments: Any) -> Any:
        made = make(*arguments)
        made["traced"], made["counted"] = Named(arguments[3], Hooks(arguments[3], arguments[2])), made["traced"]
        return made

    for name, assignments in WORKLOADS:
        schedule = [PlannedStep("plain", 0, warmup=True)] * 3 + [PlannedStep("counted", 0)]
        # In random order: a kind has no predecessor of its own, whose leavings it would bear.
        random = np.random.default_rng(0)
        for number in range(PAIRS):
            kinds = random.permutation(["plain", "traced", "spanned"]).tolist()
            schedule += [PlannedStep(kind, number % 10) for kind in kinds]
        profile.make_observers = with_named
        journal = MemoryJournal()
        workload = workload_of(*assignments, kind="mock")
        try:
            with megatron_world(workload, DEVICE):
                train(workload, open_source(workload), schedule, torch.bfloat16, DEVICE, journal)
        finally:
            profile.make_observers = make
        steps = [event for event in journal.events if event["event"] == "step" and not event["warmup"]]
        busy = next(step["kernels"]["busy_ms"] for step in steps if step["kind"] == "counted")
        rounds = [step for step in steps if step["kind"] != "counted"]
        by_round = [{step["kind"]: step for step in rounds[at : at + 3]} for at in range(0, len(rounds), 3)]
        ranges = sum(row[4] for row in by_round[0]["spanned"]["ranges"])
        plain = statistics.median(one["plain"]["ms"] for one in by_round)
        ratios = {kind: [one[kind]["ms"] / one["plain"]["ms"] for one in by_round] for kind in ("traced", "spanned")}
        print(
            f"| {name} | {plain:.1f} ms | {busy:.1f} ms | {ranges:.0f} | {interval(ratios['traced'])} | "
            f"{interval(ratios['spanned'])} |",
            flush=True,
        )
        gc.collect()
        torch.cuda.empty_cache()


def plan(plain: int, spanned: bool = False, traced: int = 1) -> list[PlannedStep]:
    """Few steps that tell all: three to warm up, plain ones with others on the same batches, a counted one last."""
    schedule = [PlannedStep("plain", batch, warmup=True) for batch in range(3)]
    for batch in range(3, 3 + plain):
        schedule.append(PlannedStep("plain", batch))
        if spanned:
            schedule.append(PlannedStep("spanned", batch))
        if batch - 3 < traced:
            schedule.append(PlannedStep("traced", batch))
    return [*schedule, PlannedStep("counted", 3, warmup=True), PlannedStep("counted", 3)]


def truth() -> None:
    """Where the time of h200-reference goes: busy beside span, and how much of both has a name."""
    folder = Path(mkdtemp())
    run, _ = trained(workload_of(), plan(4, spanned=True, traced=4), folder)
    from vlmprof.report.terminal import render_text

    print("\n## 2. Where the time goes: `h200-reference`\n")
    print(f"`coverage` {run.coverage:.4f}, `coverage_kernels` {run.coverage_kernels:.4f}.\n\n```text")
    print(render_text(run, breakdown=True, width=110).rstrip() + "\n```", flush=True)


def bare() -> None:
    """Megatron's own calls without vlmprof, against plain steps of the harness: by turns, in this process."""
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func

    workload = workload_of()
    count, warm = STEPS, 2

    def loop() -> float:
        batches = [*itertools.islice(plan_steps(workload, open_source(workload)), count + warm)]
        model, optimizer = build(workload, torch.bfloat16, DEVICE)
        model.config.finalize_model_grads_func = finalize_model_grads
        model.config.grad_scale_func = optimizer.scale_loss
        share = Share.of_this_rank(workload)
        read = functools.partial(read_micro_batch, workload, share, torch.bfloat16, batches)
        loader = Loader(len(batches), share.micro_batches, read, DEVICE)
        forward_backward = get_forward_backward_func()

        def forward_step(data: Any, model: Any) -> Any:
            batch = next(data)
            return model(batch), lambda losses: useful_loss(batch.loss_mask, losses)

        for number in range(count + warm):
            if number == warm:
                torch.cuda.synchronize()
                began = time.perf_counter()
            model.zero_grad_buffer()
            optimizer.zero_grad()
            reports = forward_backward(
                forward_step_func=forward_step,
                data_iterator=loader.next_step(),
                model=[model],
                num_microbatches=share.micro_batches,
                seq_length=workload.data.seq_length,
                micro_batch_size=workload.knobs.micro_batch_size,
                forward_only=False,
            )
            torch.stack([report["loss"] for report in reports]).tolist()
            optimizer.step()
        torch.cuda.synchronize()
        took = (time.perf_counter() - began) / count * 1e3
        let_go(model, optimizer)
        return took

    def harness() -> float:
        schedule = [PlannedStep("plain", batch, warmup=batch < warm) for batch in range(count + warm)]
        run, events = trained(workload, schedule)
        if run.outcome.status != "ok":
            raise RuntimeError(f"the harness failed: {run.outcome.message}")
        # By the wall as well: from the first measured step's begin until the last one has passed.
        began = next(event["time"] for event in events if event["event"] == "begin" and event["index"] == warm)
        ended = next(event["time"] for event in reversed(events) if event["event"] == "step")
        return float(ended - began) / count * 1e3

    times: dict[str, list[float]] = {"bare": [], "harness": []}
    for turn in range(3):
        for name in ("bare", "harness") if turn % 2 == 0 else ("harness", "bare"):
            if name == "bare":
                with megatron_world(workload, DEVICE):
                    times[name].append(loop())
            else:
                times[name].append(harness())
            gc.collect()
            torch.cuda.empty_cache()
    print("\n## 3. The harness against a bare loop of Megatron's calls\n")
    print(f"Mean of {count} steps of `h200-reference`, three runs each, by turns; ms a step.\n")
    for name, samples in times.items():
        print(f"- {name}: {', '.join(f'{ms:.0f}' for ms in samples)}")
    ratios = [a / b for a, b in zip(times["bare"], times["harness"], strict=True)]
    print(f"- throughput of the harness over the bare loop: {interval(ratios)}", flush=True)


SWEEP: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("real data (reference)", (), "real"),
    ("mock data", (), "mock"),
    ("text only", (), "text-only"),
    ("recompute=selective", ("recompute=selective",), "real"),
    ("recompute=full", ("recompute=full",), "real"),
    ("micro-batch 2", ("micro_batch_size=2",), "real"),
    ("micro-batch 4", ("micro_batch_size=4",), "real"),
    ("freeze_vision", ("freeze_vision=true",), "real"),
    ("cuda_graph=transformer_engine, attn moe_router moe_preprocess", ("cuda_graph=transformer_engine",), "real"),
    ("cuda_graph=local, moe_router moe_preprocess", ("cuda_graph=local",), "real"),
)


def sweep() -> None:
    """The settings that the guidance speaks of, one changed at a time. `local` graphs last: Megatron captures them once
    a process."""
    print("\n## 4. The guidance's lessons, measured\n")
    print(f"Four sequences a step; median of {STEPS} plain steps; busy of a traced one; peak as the allocator says.\n")
    print(
        "| setting | step ms | / reference | busy ms | busy share | tokens/s | useful tokens/s | peak GiB | kernels |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    reference = 0.0
    hidden: list[str] = []
    for name, assignments, kind in SWEEP:
        workload = workload_of(*assignments, kind=kind)
        run, _ = trained(workload, plan(STEPS))
        if run.outcome.status != "ok" or run.device is None or run.memory is None:
            print(f"| {name} | {run.outcome.failure_class}: {(run.outcome.message or '')[:100]} |", flush=True)
            continue
        step, busy = value(run.throughput["step_ms"]), value(run.device.busy_ms)
        reference = reference or step
        rates = [value(run.throughput[rate]) for rate in ("tokens_per_second", "useful_tokens_per_second")]
        print(
            f"| {name} | {step:.0f} | {step / reference:.3f} | {busy:.0f} | {busy / step:.0%} | {rates[0]:,.0f} | "
            f"{rates[1]:,.0f} | {value(run.memory.peak) / 2**30:.1f} | {run.device.kernels:,.0f} |",
            flush=True,
        )
        hidden += [f"- {name}: {stage}" for stage in run.device.hidden]
    if hidden:
        print("\nStages inside CUDA graphs, named as hidden in the record:\n\n" + "\n".join(hidden))


SECTIONS = {"observer": observer, "truth": truth, "bare": bare, "sweep": sweep}


def main(names: Sequence[str]) -> int:
    """Print the named sections, or all."""
    unknown = [name for name in names if name not in SECTIONS]
    if unknown or not torch.cuda.is_available():
        print(f"no section '{unknown[0]}'" if unknown else "this needs a CUDA device", file=sys.stderr)
        return 2 if unknown else 5
    torch.cuda.set_device(DEVICE)
    torch.set_num_threads(1)
    versions = package_versions()
    print("# Measurements on a GPU\n\nPrinted by `python benchmarks/gpu.py`.\n")
    print(f"{torch.cuda.get_device_name(DEVICE)}; torch {torch.__version__}; {time.strftime('%Y-%m-%d')}; ", end="")
    print(", ".join(f"{n} {versions[n]}" for n in ("megatron-core", "transformer-engine", "triton") if n in versions))
    for name in names or SECTIONS:
        began = time.perf_counter()
        SECTIONS[name]()
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
