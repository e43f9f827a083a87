"""What a bisect of a metric holds commits against, and what it makes of comparisons."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.compared import a_run
from vlmprof.bisect.metrics import Yardstick, half_of, thresholds_file
from vlmprof.bisect.recipes import load_recipe, make_plan
from vlmprof.compare import compare, load_thresholds
from vlmprof.records.bisect import CommitRecord, Held, Observation, Plan, Probe, VerdictName
from vlmprof.records.store import dump_json

PLAN = Plan(repository="r", range="a..b", old="a", new="b")


def yardstick(**facts: Any) -> Yardstick:
    return Yardstick(PLAN.model_copy(update=facts))


def probe(role: str, seen: Observation, held: Held | None = None, verdict: VerdictName = "good") -> Probe:
    return Probe(commit=CommitRecord(sha="c"), role=role, verdict=verdict, reason="", observation=seen, held=held)


def kept(name: str, document: Any) -> Observation:
    Path(name).write_text(dump_json(document))
    return Observation(exit_code=0, record=name)


def in_turns(slow: float, noise: float, *, threshold: float | None = None) -> Held:
    """Five runs a side, `slow` times the time, `noise` from run to run."""
    wobble = [1 + noise * step for step in (-1, -0.5, 0, 0.5, 1)]
    Path("limits.toml").write_text(thresholds_file("step_ms", threshold))
    a, b = ([a_run(factor * own) for own in wobble] for factor in (1.0, slow))
    found = compare(a, b, thresholds=load_thresholds(Path("limits.toml")))
    held = yardstick(symptom="step_ms", rounds=5).hold(kept("comparison.json", found))
    assert held is not None
    return held


def test_half_of_a_change_is_one_digit_and_no_more_than_half() -> None:
    assert [half_of(change) for change in (0.09, 0.123, 0.5, 7.0)] == [0.04, 0.06, 0.2, 0.5]


def test_the_bad_end_sets_the_threshold_unless_it_was_given() -> None:
    bad = probe("bad end", Observation(), Held(verdict="worse", change=0.09), "bad")
    free, given, back = (
        yardstick(symptom="memory_peak", **facts) for facts in ({}, {"threshold": 0.02}, {"find_fix": True})
    )
    for one in (free, given, back):
        one.learn(bad)
    assert (free.threshold, given.threshold, back.threshold) == (0.04, 0.02, None)
    back.learn(probe("good end", Observation(), Held(verdict="worse", change=0.011), "bad"))
    assert back.threshold == 0.01  # a half would be less than compare takes for a change


def test_bytes_are_held_against_the_good_end() -> None:
    stick = yardstick(symptom="saved_activations", threshold=0.1)
    good, little, much = (kept(f"{saved}.json", a_run(saved=saved)) for saved in (10_000, 10_500, 12_000))
    stick.learn(probe("good end", good))
    verdicts = [held.verdict for seen in (good, little, much) if (held := stick.hold(seen))]
    assert verdicts == ["same", "same", "worse"]
    assert "decoder.experts" in getattr(stick.hold(much), "place", "")


def test_what_cannot_be_held_is_undecided_with_the_reason() -> None:
    stick = yardstick(symptom="memory_peak")
    stick.learn(probe("good end", kept("good.json", a_run())))
    Path("half.json").write_text('{"schema": "vlmprof.run/1"')
    for seen, reason in (
        (kept("other.json", a_run(realism="mock")), "mock"),
        (Observation(record="half.json"), "half.json"),
        (Observation(record="gone.json"), "gone.json"),
    ):
        held = stick.hold(seen)
        assert held is not None
        assert held.verdict == "undecided"
        assert reason in held.text
    assert stick.hold(Observation()) is None


def test_times_in_turns() -> None:
    assert in_turns(1.2, 0.01).verdict == "worse"
    assert in_turns(1.2, 0.01, threshold=0.3).verdict == "same"
    assert in_turns(1.02, 0.2, threshold=0.05).verdict == "undecided"
    faster = in_turns(0.8, 0.08, threshold=0.1)  # may be much faster, and is surely no slower
    assert faster.verdict in ("same", "better")


def test_one_run_of_what_varies_says_how_to_tell() -> None:
    stick = yardstick(symptom="host_rss")
    stick.learn(probe("good end", kept("good.json", a_run(rss=5e8))))
    held = stick.hold(kept("more.json", a_run(rss=6e8)))
    assert held is not None
    assert (held.verdict, "--rounds N" in held.text) == ("undecided", True)


@pytest.mark.parametrize("metric", ["step_ms", "memory_peak"])
def test_only_the_hunted_threshold_counts(metric: str) -> None:
    Path("limits.toml").write_text(thresholds_file(metric, 0.2))
    limits = load_thresholds(Path("limits.toml"))
    assert {name for name, change in limits.changes.items() if change < 0.9} == {metric}
    assert limits.changes[metric] == 0.2
    assert limits.step_share == pytest.approx(0.99 if metric == "step_ms" else 0.01)


def test_the_probe_of_a_plan(tmp_path: Path) -> None:
    from tests.repositories import Repo
    from vlmprof.bisect import open_repository

    repo = Repo(tmp_path / "repo")
    repo.line(2)
    where = open_repository(repo.folder)

    def plan(**flags: Any) -> Plan:
        return make_plan(where, "main~1..main", load_recipe("", flags))

    exact, times = plan(symptom="memory_peak", nproc=2), plan(symptom="step_ms", threshold="5%")
    assert (exact.rounds, times.rounds, times.threshold) == (0, 10, 0.05)
    assert {"--stage-breakdown", "--nproc"} <= set(exact.run_arguments)
    assert "--stage-breakdown" not in plan(symptom="oom").run_arguments
    assert dict(zip(times.run_arguments[::2], times.run_arguments[1::2], strict=True))["--steps"] == "10"
    assert "--stage-breakdown" not in times.run_arguments
    assert plan(symptom="memory_peak", rounds=4).rounds == 4
