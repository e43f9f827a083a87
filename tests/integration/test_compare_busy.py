"""Twenty comparisons of the real `tiny` with itself, while something else now and then takes a core: none is worse."""

import itertools
import subprocess
import sys

import pytest

from vlmprof.compare import compare, load_thresholds
from vlmprof.records.run import Run
from vlmprof.records.store import read_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NEIGHBOUR = """
import random, time
while True:
    end = time.monotonic() + random.uniform(0.2, 2)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(0.2, 2))
"""
RUNS = 8


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("busy")
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) as neighbour:
        try:
            for number in range(RUNS):
                command = [sys.executable, "-m", "vlmprof", "run", "--steps", "6", "--warmup", "1"]
                subprocess.run([*command, "--out", str(folder / str(number))], check=True, capture_output=True)
        finally:
            neighbour.kill()
    return [read_run(folder / str(number)) for number in range(RUNS)]


def splits(runs: list[Run]) -> list[tuple[list[Run], list[Run]]]:
    """Eight of four against four, interleaved as --ab does; each run against all others; four pairs."""
    turns = list(itertools.product((0, 1), repeat=RUNS // 2))[:RUNS]
    halves = [
        (
            [runs[2 * pair + turn] for pair, turn in enumerate(order)],
            [runs[2 * pair + 1 - turn] for pair, turn in enumerate(order)],
        )
        for order in turns
    ]
    single = [([*runs[:number], *runs[number + 1 :]], [runs[number]]) for number in range(RUNS)]
    pairs = [([runs[number]], [runs[number + 1]]) for number in range(0, RUNS, 2)]
    return [*halves, *single, *pairs]


def test_twenty_comparisons_with_itself_find_nothing_worse(runs: list[Run]) -> None:
    found = [compare(a, b, thresholds=load_thresholds()) for a, b in splits(runs)]
    assert len(found) == 20
    told = [(row.name, row.verdict, row.change, one.a.runs) for one in found for row in one.metrics]
    assert not [row for row in told if row[1] == "worse"]
    assert all(one.losses and one.losses.reading == "identical" for one in found)
    print([(row.change, row.interval, row.verdict) for one in found for row in one.metrics if row.name == "step_ms"])
