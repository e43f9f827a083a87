"""How often `vlmprof compare` finds a slow-down, and how often it cries wolf: simulated records through the real thing.

    python benchmarks/detection.py [COMPARISONS]

Every simulated run has a true slowness of its own: 2 % from run to run, normal, heavy-tailed (Student's t with 3
degrees of freedom, scaled to 2 %) or normal with outliers (5 to 10 % of runs are 10 to 30 % slower, as on a shared
machine). Its steps vary by 1 % more, and its other metrics go along: kernel time follows the step, exposed
communication varies most, the allocator's peak and the host's memory little.
"""

import math
import sys
import time
from collections.abc import Sequence
from itertools import product
from multiprocessing import Pool

import numpy as np

from vlmprof.compare import compare, load_thresholds
from vlmprof.records.figures import Absent, Figure, Measured, Source
from vlmprof.records.memory import Memory
from vlmprof.records.run import DataRecord, Device, EffectiveWork, Environment, Outcome, Run, Step, WorkloadRecord

NOISE = 0.02
STEPS = 8
KINDS = ("normal", "heavy-tailed", "outliers")
CASES = ((10, 0.05), (20, 0.03), (10, 0.0), (20, 0.0))
"""(runs a side, slow-down of B); the last two are A/A."""
NOT = Absent(absent="not simulated")
ENVIRONMENT = Environment(platform="h200-x1", device="cuda", precision="bf16", ranks=1, threads=1, packages={}, host={})
WORK = EffectiveWork(tokens=4096, useful_tokens=2048, padding_tokens=512, images=4, image_patches=1024)


def slowness(random: np.random.Generator, kind: str, runs: int, rate: float) -> np.ndarray:
    """Logarithm of each run's slowness."""
    if kind == "heavy-tailed":
        return random.standard_t(3, runs) * NOISE / math.sqrt(3)
    plain = random.normal(0, NOISE, runs)
    if kind == "outliers":
        struck = random.random(runs) < rate
        plain = plain + np.log1p(struck * random.uniform(0.1, 0.3, runs))
    return plain


def figure(random: np.random.Generator, value: float, unit: str, source: Source, within: float) -> Measured:
    """A sample a step, about `value`; `within` is their relative spread."""
    samples = value * np.exp(random.normal(0, within, STEPS))
    return Figure(value=float(np.median(samples)), unit=unit, source=source, samples=tuple(samples.tolist()))


def a_run(random: np.random.Generator, slow: float) -> Run:
    """A record of `STEPS` plain, traced and counted steps over the same batches."""
    batches = 500 * np.exp(np.linspace(-0.2, 0.2, STEPS))
    times = batches * np.exp(slow + random.normal(0, 0.01, STEPS))
    steps = [
        Step(index=3 * batch + turn, batch=batch, kind=kind, ms=float(times[batch]))
        for batch in range(STEPS)
        for turn, kind in enumerate(("plain", "traced", "counted"))
    ]
    return Run(
        created="2026-01-01T00:00:00+00:00",
        workload=WorkloadRecord(name="simulated", hash="0" * 8),
        environment=ENVIRONMENT,
        data=DataRecord(realism="real"),
        effective_work=WORK,
        steps=tuple(steps),
        device=Device(
            step_ms=NOT,
            busy_ms=figure(random, 400 * math.exp(0.8 * slow + random.normal(0, 0.004)), "ms", "kernel", 0.01),
            exposed_ms=figure(random, 20 * math.exp(slow + random.normal(0, 0.05)), "ms", "kernel", 0.05),
            launch_bound_ms=NOT,
            syncs=NOT,
            kernels=5000,
        ),
        memory=Memory(
            peak=figure(random, 6e10 * math.exp(random.normal(0, 0.002)), "bytes", "allocator", 0.0),
            parameters=NOT,
            gradients=NOT,
            optimizer_state=NOT,
            saved_activations=NOT,
            held_after=figure(random, 3e10 * math.exp(random.normal(0, 0.001)), "bytes", "allocator", 0.0),
            host_rss=figure(random, 8e9 * math.exp(random.normal(0, 0.01)), "bytes", "os", 0.001),
        ),
        outcome=Outcome(status="ok"),
    )


def trial(case: tuple[str, int, float, int]) -> tuple[str, bool, bool]:
    """(verdict of the step time, whether it holds the true change, whether any metric is worse) of one comparison."""
    kind, runs, effect, seed = case
    random = np.random.default_rng(seed)
    rate = random.uniform(0.05, 0.10)
    sides: list[Sequence[Run]] = [
        [a_run(random, slow + shift) for slow in slowness(random, kind, runs, rate)]
        for shift in (0.0, math.log1p(effect))
    ]
    found = compare(*sides, thresholds=THRESHOLDS)
    step = next(row for row in found.metrics if row.name == "step_ms")
    covered = step.interval is not None and step.interval[0] <= effect <= step.interval[1]
    return step.verdict, covered, any(row.verdict == "worse" for row in found.metrics)


THRESHOLDS = load_thresholds()


def main(comparisons: int) -> None:
    """Simulate, and print a row a case."""
    begun = time.monotonic()
    print(f"{comparisons} comparisons a row, {NOISE:.0%} from run to run; +- is one standard error")
    row = "{:<14} {:>8} {:>9}   {:>16} {:>16} {:>10}"
    print(row.format("noise", "runs", "slow-down", "step time worse", "anything worse", "covered"))
    with Pool() as pool:
        for (runs, effect), kind in product(CASES, KINDS):
            cases = [
                (kind, runs, effect, 1_000_000 * KINDS.index(kind) + 10_000 * runs + n) for n in range(comparisons)
            ]
            found = pool.map(trial, cases, chunksize=10)
            step = sum(verdict == "worse" for verdict, _, _ in found) / comparisons
            anything = sum(any_worse for _, _, any_worse in found) / comparisons
            covered = sum(covers for _, covers, _ in found) / comparisons
            shares = [
                f"{share:.2%} +- {math.sqrt(share * (1 - share) / comparisons):.2%}" for share in (step, anything)
            ]
            print(row.format(kind, f"{runs} v {runs}", f"{effect:.0%}", *shares, f"{covered:.1%}"), flush=True)
    print(f"{time.monotonic() - begun:.0f} seconds")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
