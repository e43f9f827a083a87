"""What observing costs: spanned steps (hooks and NVTX ranges on) against plain ones over the same batches, interleaved
in one run, and microseconds a range. Goal on `tiny`: a ratio of at most 1.02.

    python benchmarks/overhead.py [STEPS]
"""

import json
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

PLACE = "{:<34}{:>10}"


def main(steps: int) -> None:
    """Run `tiny` once and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["run", "--stage-breakdown", "--steps", str(steps), "--json", "--out", f"{folder}/run"]
        done = subprocess.run([sys.executable, "-m", "vlmprof", *command], check=True, capture_output=True, text=True)
    record: dict[str, Any] = json.loads(done.stdout)
    ratios = np.array(record["overhead"][0]["ratio"]["samples"])
    by_kind = {
        kind: {step["batch"]: step["ms"] for step in record["steps"] if step["kind"] == kind and not step["warmup"]}
        for kind in ("plain", "spanned")
    }
    differences = [by_kind["spanned"][batch] - by_kind["plain"][batch] for batch in by_kind["plain"]]
    ranges = sum(stage["ranges"] for stage in record["stages"])
    resampled = np.median(np.random.default_rng(0).choice(ratios, (10_000, len(ratios))), axis=1)
    low, high = np.quantile(resampled, (0.025, 0.975))
    print(PLACE.format("pairs", len(ratios)))
    print(PLACE.format("plain step, ms (median)", f"{statistics.median(by_kind['plain'].values()):.1f}"))
    print(PLACE.format("spanned / plain (median)", f"{np.median(ratios):.4f}"))
    print(PLACE.format("  95 % interval (bootstrap)", f"{low:.4f}..{high:.4f}"))
    print(PLACE.format("ranges a step", f"{ranges:.0f}"))
    print(PLACE.format("microseconds a range (median)", f"{statistics.median(differences) / ranges * 1e3:.2f}"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
