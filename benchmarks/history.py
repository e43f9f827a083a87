"""How long `vlmprof history` takes on 1,000 records, and what its change points find and miss.

    python benchmarks/history.py [--record RUN] [--records 1000] [--trials 1000]

Records are copies of a real one (a run of `tiny` is made where none is named) with 2 % noise from run to run, a spike
now and then, and a level that changes twice. The second part is a simulation of the detector alone: how often it finds
a change, and how often it finds one where there is none, under noise that is normal, heavy-tailed (Student's t with 3
degrees of freedom), with outliers (one run in twenty, exponential, ten times the noise), and correlated (0.5).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from vlmprof.compare.changepoints import shifts
from vlmprof.compare.history import LEVEL

PLACE = "{:<54}{:>12}"
NOISE = 0.02


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = options.record or Path(folder, "run")
        if options.record is None:
            command = ["run", "--stage-breakdown", "--out", str(record)]
            subprocess.run([sys.executable, "-m", "vlmprof", *command], check=True, capture_output=True)
        content = json.loads((record / "run.json" if record.is_dir() else record).read_text(encoding="utf-8"))
        history = Path(folder, "history")
        size = write_history(content, history, options.records)
        print(PLACE.format("records", options.records))
        print(PLACE.format("of KiB each (mean)", f"{size / options.records / 1024:.0f}"))
        for attempt in ("first", "again"):
            print(PLACE.format(f"vlmprof history, seconds ({attempt})", f"{timed(history):.2f}"))
    simulate(options.trials)


def timed(history: Path) -> float:
    """Seconds of a whole process; and no torch in it."""
    program = (
        "import sys; from vlmprof.commands.main import main; code = main(['history', sys.argv[1]]);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program, str(history)], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    assert done.returncode in (0, 1), done.stderr
    return seconds


def write_history(content: dict[str, Any], folder: Path, count: int, seed: int = 0) -> int:
    """Records that differ as those of a real history do: returns their bytes."""
    rng = np.random.default_rng(seed)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    size = 0
    for number in range(count):
        run = json.loads(json.dumps(content))
        run["created"] = (begin + timedelta(hours=6 * number)).isoformat(timespec="seconds")
        level = 1.05 if count // 2 <= number < count * 3 // 4 else 1.0
        slow = level * float(np.exp(rng.normal(scale=NOISE))) * (1.5 if rng.random() < 0.01 else 1.0)
        for name, figure in run["throughput"].items():
            scale(figure, slow if name == "step_ms" else 1 / slow)
        for row in run["stages"]:
            own = slow * float(np.exp(rng.normal(scale=NOISE)))
            for name in ("total_ms", "self_ms"):
                scale(row[name], own)
        target = folder / f"{number:06d}"
        target.mkdir(parents=True)
        text = json.dumps(run, indent=1)
        size += len(text)
        (target / "run.json").write_text(text, encoding="utf-8")
    return size


def scale(figure: dict[str, Any], factor: float) -> None:
    """A figure and its samples, times a factor."""
    if "value" in figure:
        figure["value"] *= factor
        figure["samples"] = [sample * factor for sample in figure["samples"]]


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    """Independent normal."""
    return rng.normal(scale=NOISE, size=n)


def heavy(rng: np.random.Generator, n: int) -> np.ndarray:
    """Student's t with 3 degrees of freedom, of the same standard deviation."""
    return rng.standard_t(3, size=n) * NOISE / np.sqrt(3)


def outliers(rng: np.random.Generator, n: int) -> np.ndarray:
    """Normal, and one run in twenty much slower."""
    late = rng.exponential(10 * NOISE, n) * (rng.random(n) < 0.05)
    return np.asarray(normal(rng, n) + late)


def correlated(rng: np.random.Generator, n: int) -> np.ndarray:
    """Autoregressive, 0.5 from run to run, of the same standard deviation."""
    values = normal(rng, n)
    for index in range(1, n):
        values[index] = 0.5 * values[index - 1] + np.sqrt(0.75) * values[index]
    return values


def simulate(trials: int) -> None:
    """A table of how often a change point is found."""
    rng = np.random.default_rng(1)
    titles = ("none in 40", "none in 200", "spike in 40", "3% 20+20", "5% 30+10", "10% 30+4")
    print(f"\nchange points found, in % of {trials} series, level {LEVEL:g}")
    print(("{:<12}" + "{:>13}" * len(titles)).format("noise", *titles))
    for noise in (normal, heavy, outliers, correlated):
        found = [share(series, rng, trials) for series in cases(noise)]
        print(("{:<12}" + "{:>13.1f}" * len(found)).format(noise.__name__, *(100 * one for one in found)))


Noise = Callable[[np.random.Generator, int], np.ndarray]


def cases(noise: Noise) -> list[Callable[[np.random.Generator], np.ndarray]]:
    """One maker of a series for each column: the logarithms of its values."""

    def spike(rng: np.random.Generator) -> np.ndarray:
        values = noise(rng, 40)
        at = rng.integers(40)
        values[at : at + rng.integers(1, 4)] += 0.5
        return values

    def step(before: int, after: int, change: float) -> Callable[[np.random.Generator], np.ndarray]:
        level = np.repeat([0.0, np.log1p(change)], [before, after])
        return lambda rng: noise(rng, before + after) + level

    return [
        lambda rng: noise(rng, 40),
        lambda rng: noise(rng, 200),
        spike,
        step(20, 20, 0.03),
        step(30, 10, 0.05),
        step(30, 4, 0.10),
    ]


def share(series: Callable[[np.random.Generator], np.ndarray], rng: np.random.Generator, trials: int) -> float:
    """Of `trials` series, those with a change point."""
    return sum(bool(shifts(np.exp(series(rng)), LEVEL, 0.005)) for _ in range(trials)) / trials


if __name__ == "__main__":
    main()
