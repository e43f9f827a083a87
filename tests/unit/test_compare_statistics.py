"""The maths, against scipy and against what must hold for any numbers."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vlmprof.compare.ab import levels
from vlmprof.compare.statistics import _pseudo_values, evidence, holm, interval, runs_needed

LEVEL = 0.009
SAMPLES = st.lists(st.floats(-1, 1).map(lambda value: round(value, 6)), min_size=2, max_size=12)


def sample(count: int, mean: float = 0.0, seed: int = 0, spread: float = 0.02) -> list[float]:
    drawn: list[float] = np.random.default_rng(seed).normal(mean, spread, count).tolist()
    return drawn


def test_few_runs_are_welchs() -> None:
    a, b = sample(4), sample(5, 0.03, seed=1)
    found = evidence(a, b, LEVEL)
    wanted = stats.ttest_ind(b, a, equal_var=False)
    assert found.decided_by == "welch"
    assert found.p["welch"] == pytest.approx(wanted.pvalue)
    assert found.one_sided == pytest.approx(wanted.pvalue / 2)
    assert found.interval == pytest.approx(tuple(wanted.confidence_interval()))


def test_mann_whitney_is_left_out_where_it_can_tell_nothing() -> None:
    assert "mann-whitney" not in evidence(sample(3), sample(3, 1.0), LEVEL).p
    assert evidence(sample(4), sample(4, 1.0), LEVEL).p["mann-whitney"] == pytest.approx(2 / 70)


@pytest.mark.parametrize("count", [4, 8, 60])
def test_runs_that_are_all_alike_differ_by_nothing(count: int) -> None:
    found = evidence([1.0] * count, [1.0] * count, LEVEL)
    assert (found.change, found.interval) == (0, (0, 0))
    assert set(found.p.values()) == {1.0}


def test_eight_runs_a_side_are_permuted_and_seven_are_not() -> None:
    """Sides apart from each other: hardly an arrangement is as extreme as the one seen."""
    found = evidence(sample(8), sample(8, 1.0, seed=1), LEVEL)
    assert found.decided_by == "permutation"
    assert found.one_sided == pytest.approx(1 / 5000, rel=2)
    assert evidence(sample(7), sample(8, 1.0, seed=1), LEVEL).decided_by == "welch"


def test_outliers_make_no_false_alarms_of_few_runs() -> None:
    """By simulation: one run in ten is a fifth slower, on both sides."""

    def struck(seed: int) -> list[float]:
        random = np.random.default_rng(seed)
        return (random.normal(0, 0.02, 6) + 0.2 * (random.random(6) < 0.1)).tolist()

    found = [evidence(struck(2 * n), struck(2 * n + 1), 0.009) for n in range(1000)]
    assert np.mean([one.change > 0 and one.one_sided <= 0.009 for one in found]) < 0.01


@pytest.mark.parametrize("count", [6, 8, 10, 20])
@pytest.mark.parametrize("change", [0.1, 0.5, 2.0])
def test_no_slow_down_is_too_large_to_be_found(count: int, change: float) -> None:
    """A run of the slow side among fast ones must not pass for an outlier."""
    assert evidence(sample(count), sample(count, change, seed=1), LEVEL).one_sided <= 0.0022


def test_random_arrangements_agree_with_all_of_them() -> None:
    a, b = sample(9, seed=3), sample(9, 0.012, seed=4)
    found = evidence(a, b, LEVEL)
    pseudo = _pseudo_values(np.array(a), np.array(b))
    assert pseudo is not None

    def welch(x: Any, y: Any, axis: int) -> Any:
        return stats.ttest_ind(y, x, axis=axis, equal_var=False).statistic

    exact = stats.permutation_test(pseudo, welch, vectorized=True, n_resamples=np.inf, alternative="greater")
    assert found.decided_by == "permutation"
    assert found.one_sided == pytest.approx(exact.pvalue, abs=0.02)


def test_many_runs_are_students_and_agree_with_welch_where_noise_is_normal() -> None:
    found = evidence(sample(100), sample(100, 0.01, seed=1), LEVEL)
    assert found.decided_by == "robust-t"
    assert found.p["robust-t"] == pytest.approx(found.p["welch"], abs=0.02)
    assert found.change == pytest.approx(0.01, abs=0.005)
    assert 0 < found.p["mann-whitney"] < 0.01


@given(SAMPLES, SAMPLES)
@settings(deadline=None, max_examples=60)
def test_swapping_the_sides_turns_the_sign_and_nothing_else(a: list[float], b: list[float]) -> None:
    there, back = evidence(a, b, LEVEL), evidence(b, a, LEVEL)
    assert there.change == pytest.approx(-back.change, abs=1e-12)
    assert 0 <= there.one_sided <= 1
    assert there.interval is not None
    assert back.interval is not None
    assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]), abs=1e-9)
    assert there.interval[0] <= there.change <= there.interval[1]
    assert interval(a, b) is not None


@given(SAMPLES)
@settings(deadline=None, max_examples=30)
def test_a_side_does_not_differ_from_itself(a: list[float]) -> None:
    found = evidence(a, a, LEVEL)
    assert found.change == 0
    assert found.one_sided >= 0.25


def test_outliers_move_the_mean_and_not_the_estimate() -> None:
    a, b = sample(10), [*sample(8, seed=1), 0.25, 0.2]
    assert np.mean(b) - np.mean(a) > 0.03
    assert abs(evidence(a, b, LEVEL).change) < 0.02


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_with_equal_weights_is_holms(p: list[float]) -> None:
    order = sorted(range(len(p)), key=p.__getitem__)
    wanted, before = [0.0] * len(p), 0.0
    for rank, index in enumerate(order):
        before = max(before, min(1.0, (len(p) - rank) * p[index]))
        wanted[index] = before
    assert holm(p, [1.0] * len(p)) == pytest.approx(wanted)


def test_holm_gives_the_weighty_one_nearly_the_whole_level() -> None:
    assert holm([0.008, 0.5], [0.9, 0.1])[0] == pytest.approx(0.008 / 0.9)
    assert holm([0.008, 0.0005], [0.9, 0.1]) == pytest.approx([0.008, 0.005])


def test_runs_needed_find_what_they_promise() -> None:
    """By simulation: a slow-down of 5 % at 2 % of noise is found nine times in ten with that many runs."""
    count = runs_needed(0.05, 0.02, 0.015, LEVEL)
    found = [evidence(sample(count, seed=n), sample(count, 0.05, seed=n + 10**6), LEVEL) for n in range(100)]
    assert 0.8 <= np.mean([one.one_sided <= LEVEL for one in found]) <= 1
    assert runs_needed(0.0, 0.02, 0.015, LEVEL) > runs_needed(0.05, 0.02, 0.015, LEVEL)


@given(st.integers(3, 60))
@settings(deadline=None)
def test_looks_spend_the_level_and_no_more(rounds: int) -> None:
    found = levels(rounds, 0.01)
    assert math.fsum(found.values()) == pytest.approx(0.01)
    assert max(found) == rounds
    assert min(found) >= 3
    assert len(found) == 1 or min(found.values()) == found[min(found)]
