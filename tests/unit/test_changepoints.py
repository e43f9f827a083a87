"""The detector: what it finds, what it leaves alone, and that its chances are what it says."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vlmprof.compare.changepoints import MIN_RUNS, largest_of_all, shifts

NOISE = 0.02


def series(seed: int, *levels: tuple[int, float]) -> np.ndarray:
    """Values around levels, each held for so many runs, with 2 % noise from run to run."""
    rng = np.random.default_rng(seed)
    level = np.concatenate([np.full(runs, value) for runs, value in levels])
    return np.asarray(level * np.exp(rng.normal(scale=NOISE, size=len(level))))


def rate(level: float, *levels: tuple[int, float], trials: int = 200) -> float:
    return sum(bool(shifts(series(seed, *levels), level, 0.005)) for seed in range(trials)) / trials


def test_three_per_cent_in_two_per_cent_noise_over_twenty_and_twenty_is_found() -> None:
    assert rate(0.05, (20, 100.0), (20, 103.0)) >= 0.9


@pytest.mark.parametrize("runs", [20, 40, 200])
def test_a_history_without_a_change_gets_one_as_rarely_as_it_says(runs: int) -> None:
    assert rate(0.05, (runs, 100.0)) <= 0.09  # 0.05 plus 2.6 standard errors of 200 trials


def test_the_chance_of_the_largest_difference_is_that_of_a_simulation() -> None:
    rng = np.random.default_rng(0)
    n = 40
    values = rng.normal(size=(20_000, n))
    sums = np.abs(np.cumsum(values - values.mean(axis=1, keepdims=True), axis=1))[:, MIN_RUNS - 1 : n - MIN_RUNS]
    sizes = np.arange(MIN_RUNS, n - MIN_RUNS + 1)
    largest = (sums / np.sqrt(sizes * (n - sizes) / n)).max(axis=1)
    for z in (2.5, 3.0, 3.5):
        assert largest_of_all(z, n) == pytest.approx(float((largest > z).mean()), rel=0.2)


@given(st.integers(0, 39), st.integers(1, MIN_RUNS - 1), st.floats(1.1, 10.0), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_a_lone_spike_is_no_change_however_high(at: int, width: int, height: float, seed: int) -> None:
    values = series(seed, (40, 100.0))
    assume(not shifts(values, 0.01))
    values[at : at + width] *= height
    assert all(shift.p > 1e-4 for shift in shifts(values, 0.01))
    assert not any(shift.change > height / 2 for shift in shifts(values, 0.01))


def test_spikes_do_not_hide_a_change_nor_move_it() -> None:
    values = series(3, (30, 100.0), (30, 110.0))
    values[[5, 17, 44]] *= 4
    (shift,) = shifts(values, 0.01)
    assert abs(shift.at - 30) <= 1
    assert shift.change == pytest.approx(0.1, abs=0.03)


@given(
    st.integers(15, 40),
    st.integers(15, 40),
    st.sampled_from([0.7, 0.85, 1.2, 2.0]),
    st.floats(1e-3, 1e9),
    st.integers(),
)
@settings(max_examples=60, deadline=None)
def test_a_large_change_is_found_where_it_is_whatever_the_unit(
    before: int, after: int, factor: float, unit: float, seed: int
) -> None:
    values = series(abs(seed), (before, unit), (after, unit * factor))
    (shift,) = [shift for shift in shifts(values, 0.05) if abs(shift.at - before) <= 1]
    assert shift.change == pytest.approx(factor - 1, abs=0.05 * factor)


def test_several_changes_are_told_apart() -> None:
    found = shifts(series(1, (25, 100.0), (25, 110.0), (25, 104.0), (25, 120.0)), 0.01)
    assert [round(shift.at / 25) for shift in found] == [1, 2, 3]
    assert all(abs(shift.at - 25 * number) <= 2 for number, shift in enumerate(found, 1))


def test_bytes_that_are_the_same_every_run_change_when_they_do() -> None:
    values = np.array([1e8] * 12 + [1.02e8] * 6)
    (shift,) = shifts(values, 0.01)
    assert (shift.at, shift.before, shift.after) == (12, pytest.approx(1e8), pytest.approx(1.02e8))
    assert shifts(np.full(30, 1e8), 0.01) == []


@pytest.mark.parametrize("runs", [0, 1, 2, 2 * MIN_RUNS - 1])
def test_too_few_runs_have_no_level(runs: int) -> None:
    assert shifts(series(0, (runs, 100.0)), 0.05) == []


def test_a_change_that_is_too_small_to_matter_is_not_told() -> None:
    values = np.array([1000.0, 1000.1] * 20 + [1003.0, 1003.1] * 20)
    assert shifts(values, 0.01)
    assert shifts(values, 0.01, least=0.005) == []
