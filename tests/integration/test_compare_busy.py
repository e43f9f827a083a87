"""The real `tiny` compared with itself, while something else now and then takes a core: what is promised holds."""

import itertools
import subprocess
import sys

import pytest

from vlmprof.compare import compare, load_thresholds
from vlmprof.records.comparison import Comparison
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


def compared(a: list[Run], b: list[Run]) -> Comparison:
    return compare(a, b, thresholds=load_thresholds())


def worse(found: list[Comparison]) -> list[tuple[str, float | None]]:
    return [(row.name, row.change) for one in found for row in one.metrics if row.verdict == "worse"]


def test_halves_are_worse_than_their_other_half_as_seldom_as_promised(runs: list[Run]) -> None:
    """All 70 ways of four against four. Whatever the eight times are, one way has all the slow ones on one side, and
    steps taken for independent runs would find half of the ways worse."""
    found = []
    for chosen in itertools.combinations(range(RUNS), RUNS // 2):
        rest = [number for number in range(RUNS) if number not in chosen]
        found.append(compared([runs[number] for number in chosen], [runs[number] for number in rest]))
    assert len(found) == 70
    told = worse(found)
    assert {name for name, _ in told} <= {"step_ms"}
    assert len(told) <= 2
    assert all(one.losses and one.losses.reading == "identical" for one in found)


def test_of_lone_runs_at_most_an_outlier_is_worse(runs: list[Run]) -> None:
    """Each against all others: nothing but its distance tells a lone run from one that a neighbour struck."""
    found = [compared([*runs[:number], *runs[number + 1 :]], [runs[number]]) for number in range(RUNS)]
    assert len(worse(found)) <= 1


def test_one_against_one_is_never_worse(runs: list[Run]) -> None:
    found = [compared([runs[number]], [runs[number + 1]]) for number in range(0, RUNS, 2)]
    assert not worse(found)
