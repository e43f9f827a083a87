"""From records to verdicts, attribution and refusals."""

import math
from typing import Any

import numpy as np
import pytest

from tests.unit.compared import SETTINGS, WORK, a_run
from vlmprof.compare import Band, NotComparable, band_of, compare, load_thresholds
from vlmprof.errors import Exit, UserError
from vlmprof.records.comparison import Comparison, Metric
from vlmprof.records.run import Run
from vlmprof.records.store import dump_json, read_comparison, write_whole

LIMITS = load_thresholds()


def runs(count: int, factor: float = 1.0, spread: float = 0.004, seed: int = 0, **facts: Any) -> list[Run]:
    random = np.random.default_rng(seed)
    return [a_run(factor * math.exp(random.normal(0, spread)), **facts) for _ in range(count)]


def judged(a: list[Run], b: list[Run], **options: Any) -> Comparison:
    return compare(a, b, thresholds=LIMITS, **options)


def metric(found: Comparison, name: str = "step_ms") -> Metric:
    return next(row for row in found.metrics if row.name == name)


def test_a_slow_down_beyond_noise_and_threshold_is_worse_and_a_speed_up_is_not() -> None:
    slower = judged(runs(8), runs(8, 1.05, seed=1))
    assert slower.verdict == metric(slower).verdict == "worse"
    low, high = metric(slower).interval or (0, 0)
    assert low < 0.05 < high
    assert metric(slower).change == pytest.approx(metric(slower).b / metric(slower).a - 1)
    faster = judged(runs(8, 1.05, seed=1), runs(8))
    assert faster.verdict == metric(faster).verdict == "better"


def test_what_is_sure_but_below_the_threshold_is_the_same() -> None:
    found = judged(runs(10, spread=0.001), runs(10, 1.006, spread=0.001, seed=1))
    assert (metric(found).p_adjusted or 1) < 0.01
    assert metric(found).verdict == found.verdict == "same"


def test_noise_that_could_hide_the_threshold_is_undecided_and_says_how_many_runs_are_missing() -> None:
    found = judged(runs(5, spread=0.02), runs(5, spread=0.02, seed=1))
    assert found.verdict == "undecided"
    missing = metric(found).runs_missing
    assert missing is not None
    assert missing > 5
    assert f"about {missing} more on each side" in metric(found).reason


def test_one_run_a_side_is_undecided_without_a_band_and_judged_with_one() -> None:
    one, slower = runs(1), [a_run(1.05)]
    assert metric(judged(one, slower)).verdict == "undecided"
    assert metric(judged(one, slower)).runs_missing == 4
    band = band_of(runs(10))
    assert band is not None
    assert band.runs == 10
    assert metric(judged(one, slower, band=band)).verdict == "worse"
    assert metric(judged(one, slower, band=band)).decided_by == "band"
    assert metric(judged(one, slower, band=Band({"step_ms": 0.03}, 10))).verdict == "undecided"
    assert band_of(runs(4)) is None


def test_one_run_is_judged_by_the_spread_of_the_runs_of_the_other_side() -> None:
    found = judged(runs(10), [a_run(1.05)])
    assert metric(found).decided_by == "prediction"
    assert metric(found).verdict == "worse"


def test_a_single_slow_run_does_not_make_a_side_worse() -> None:
    found = judged(runs(8), [*runs(7, seed=1), a_run(1.3)])
    assert metric(found).verdict != "worse"
    assert abs(metric(found).change or 1) < 0.01


def test_exact_figures_need_one_run_and_no_statistics() -> None:
    found = judged([a_run()], [a_run(saved=20_000)])
    saved = metric(found, "saved_activations")
    assert (saved.exact, saved.verdict, saved.change) == (True, "worse", 1.0)
    assert found.verdict == "worse"
    peak = metric(found, "memory_peak")
    assert peak.verdict == "worse"
    assert metric(found, "flops").reason == "identical"
    within = metric(judged([a_run()], [a_run(saved=10_010)]), "saved_activations")
    assert within.verdict == "same"
    assert "within the threshold" in within.reason


def test_figures_that_vary_within_a_side_are_not_exact() -> None:
    found = judged([a_run(saved=10_000), a_run(saved=10_001)], [a_run(), a_run()])
    assert not metric(found, "saved_activations").exact


def test_stages_add_up_and_the_moved_one_explains_the_change() -> None:
    found = judged(runs(5), runs(5, router_ms=30.0, seed=1))
    first = found.stages[0]
    assert (first.name, first.phase, first.moved) == ("decoder.router", "forward", True)
    assert first.change_ms == pytest.approx(20, rel=0.1)
    assert (first.share_of_change or 0) > 0.9
    assert math.fsum(row.share_of_change or 0 for row in found.stages) == pytest.approx(1)
    assert math.fsum(row.change_ms for row in found.stages) == pytest.approx(found.observed_change_ms)
    other = next(row for row in found.stages if row.name == "other")
    assert found.unexplained_ms == pytest.approx(other.change_ms)


def test_memory_is_put_on_its_stage_and_adds_up_to_the_peak() -> None:
    found = judged([a_run()], [a_run(saved=20_000)])
    assert [(row.category, row.stage, row.change_bytes) for row in found.memory] == [
        ("held_at_peak", "decoder.experts", 10_000),
        ("saved_activations", "decoder.experts", 10_000),
    ]
    assert found.memory_change_bytes == 10_000
    assert found.memory_unexplained_bytes == 0


def test_steps_are_paired_by_batch_so_that_batches_do_not_pass_for_noise() -> None:
    """B has two batches less, among them the slowest: unpaired it would look faster."""
    found = judged(runs(5, spread=0.001), runs(5, spread=0.001, seed=1, batches=2))
    assert abs(metric(found).change or 1) < 0.002
    assert any("different numbers of steps" in note for note in found.caveats)


@pytest.mark.parametrize(
    ("facts", "name", "values"),
    [
        ({"environment": {"platform": "h200-x1"}}, "platform", "cpu-x1 against h200-x1"),
        ({"environment": {"precision": "bf16"}}, "precision", "fp32 against bf16"),
        ({"realism": "mock"}, "realism", "real against mock"),
        ({"settings": {**SETTINGS, "knobs": {**SETTINGS["knobs"], "freeze_vision": True}}}, "freezing", "vision"),
        ({"work": {**WORK, "useful_tokens": 900}, "hash8": "1" * 8}, "useful-tokens", "500 against 900"),
        ({"work": {**WORK, "lengths": [1, 2]}, "hash8": "1" * 8}, "sequence-lengths", "against 1 / 1.5 / 1.5 / 2"),
    ],
)
def test_what_does_not_compare_is_refused_by_name_with_both_values_and_can_be_allowed(
    facts: dict[str, Any], name: str, values: str
) -> None:
    with pytest.raises(NotComparable) as error:
        judged([a_run()], [a_run(**facts)])
    assert error.value.exit_code == Exit.NO_ANSWER
    assert values in str(error.value)
    assert f"--allow {name}" in str(error.value)
    found = judged([a_run()], [a_run(**facts)], allow=[name])
    assert [one.name for one in found.allowed] == [name]


def test_every_difference_is_named_at_once() -> None:
    with pytest.raises(NotComparable) as error:
        judged([a_run()], [a_run(realism="mock", environment={"platform": "h200-x1", "precision": "bf16"})])
    assert all(flag in str(error.value) for flag in ("--allow platform", "--allow precision", "--allow realism"))
    assert "--normalize" not in str(error.value)


def test_runs_of_one_side_must_compare_with_each_other() -> None:
    with pytest.raises(NotComparable, match="cpu-x1 and h200-x1 against cpu-x1"):
        judged([a_run(), a_run(environment={"platform": "h200-x1"})], [a_run()])


def test_normalized_by_useful_tokens_twice_the_work_in_twice_the_time_is_the_same() -> None:
    double = {**WORK, "useful_tokens": 1000, "tokens": 2048, "flops": {**WORK["flops"], "model": 2e9}}
    a, b = runs(8, spread=0.001), runs(8, 2.0, spread=0.001, seed=1, work=double, hash8="1" * 8)
    with pytest.raises(NotComparable, match="--normalize useful-tokens"):
        judged(a, b)
    found = judged(a, b, normalize="useful-tokens")
    assert metric(found).verdict == "same"
    assert metric(found).unit == "ms / 1,000 tokens"
    assert {one.name for one in found.allowed} == {"useful-tokens", "model-flops"}
    assert metric(found, "memory_peak").unit == "bytes"


def test_layout_version_and_knobs_are_caveats() -> None:
    other = {**SETTINGS, "layout": {"ep": 2}}
    packages = {"megatron-core": {"version": "0.17.1", "commit": "a" * 40}}
    host = {"system": "Linux", "driver": "580.1"}
    variables = {"CUDA_HOME": "/usr/local/cuda", "NCCL_ALGO": "Ring"}
    stored = {"host": {**host, "driver": "570.2"}, "variables": {"CUDA_HOME": ".../cuda", "NCCL_ALGO": "Tree"}}
    changed = {"packages": packages, "host": host, "variables": variables}
    found = judged([a_run(environment=stored)], [a_run(settings=other, hash8="1" * 8, environment=changed)])
    assert "layout.ep: 1 against 2" in found.caveats
    assert "megatron-core: 0.16.1 against 0.17.1 (aaaaaaaaaa)" in found.caveats
    assert "host driver: 570.2 against 580.1" in found.caveats
    assert "NCCL_ALGO: Tree against Ring" in found.caveats
    assert not any(note.startswith("CUDA_HOME") for note in found.caveats)  # baselines keep no folders
    assert found.b.commit == "a" * 40


def test_what_one_side_does_not_tell_is_a_caveat() -> None:
    found = judged([a_run()], [a_run(realism="unknown")])
    assert any(note.startswith("B does not tell data (A: real)") for note in found.caveats)


def test_sides_run_one_after_the_other_and_a_busy_machine_are_caveats() -> None:
    later = a_run(created="2026-01-02T00:00:00+00:00", environment={"host": {"load_average": 6.0, "cores": 2}})
    found = judged([a_run()], [later])
    assert any("A was run before B, not interleaved" in note for note in found.caveats)
    assert any("busy during 1 of 1 runs of B (load up to 3.0 a core)" in note for note in found.caveats)


def test_a_failed_run_is_refused_with_what_failed() -> None:
    with pytest.raises(NotComparable, match=r"run 2 of B failed \(oom in decoder.experts\): no memory"):
        judged([a_run()], [a_run(), a_run(failed={"class": "oom", "message": "no memory", "stage": "decoder.experts"})])


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_a_time_that_is_none_is_refused(value: float) -> None:
    bad = a_run()
    broken = bad.steps[3].model_copy(update={"ms": value})
    with pytest.raises(UserError, match="the time of step 3 is") as error:
        judged([a_run()], [bad.model_copy(update={"steps": (*bad.steps[:3], broken, *bad.steps[4:])})])
    assert error.value.exit_code == Exit.INPUT


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="there are platform, precision, realism"):
        judged([a_run()], [a_run()], allow=["colour"])
    with pytest.raises(UserError, match="there is useful-tokens"):
        judged([a_run()], [a_run()], normalize="images")
    with pytest.raises(UserError, match="no run to compare"):
        judged([], [a_run()])


def test_loss_curves() -> None:
    curve = [3.0, 2.9, 2.8, 2.7, 2.6, 2.5]
    same = judged([a_run(losses=curve)], [a_run(losses=curve)]).losses
    assert same is not None
    assert (same.reading, same.first_difference) == ("identical", None)
    rounded = [*curve[:3], *(value * (1 + 2e-7) for value in curve[3:])]
    near = judged([a_run(losses=curve)], [a_run(losses=rounded)]).losses
    assert near is not None
    assert (near.reading, near.first_difference) == ("rounding", 9)
    parted = judged([a_run(losses=curve)], [a_run(losses=[*curve[:3], 2.9, 2.9, 2.9])])
    assert parted.losses is not None
    assert (parted.losses.reading, parted.losses.first_difference) == ("diverged", 9)
    assert "the losses part at step 9" in parted.summary


def test_a_comparison_is_written_and_read_again(tmp_path: Any) -> None:
    found = judged(runs(5), runs(5, 1.1))
    write_whole(tmp_path / "c.json", dump_json(found))
    assert read_comparison(tmp_path / "c.json") == found


def test_the_overall_verdict_is_the_gravest() -> None:
    found = judged(runs(8, 1.1), runs(8, seed=1, saved=20_000))
    assert metric(found).verdict == "better"
    assert found.verdict == "worse"


def test_twenty_comparisons_of_a_thing_with_itself_find_nothing_worse() -> None:
    noisy = [runs(10, spread=0.02, seed=number) for number in range(40)]
    verdicts = [row.verdict for a, b in zip(noisy[::2], noisy[1::2], strict=True) for row in judged(a, b).metrics]
    assert "worse" not in verdicts
    assert "undecided" in verdicts
