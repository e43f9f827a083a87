"""What a bisect of a metric holds commits against, and what it makes of comparisons."""

from pathlib import Path
from typing import Any

from tests.unit.compared import a_run
from vlmprof.bisect.metrics import MOST, Yardstick, thresholds_file
from vlmprof.bisect.plans import make_plan
from vlmprof.bisect.recipes import load_recipe
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
    stick = yardstick(symptom="step_ms", rounds=5)
    Path("limits.toml").write_text(thresholds_file(stick.plan, threshold))
    a, b = ([a_run(factor * own) for own in wobble] for factor in (1.0, slow))
    found = compare(a, b, thresholds=load_thresholds(Path("limits.toml")))
    assert [row.name for row in found.metrics] == ["step_ms"]
    held = stick.hold(kept("comparison.json", found))
    assert held is not None
    return held


def test_the_bad_end_sets_the_threshold_unless_it_was_given() -> None:
    bad = probe("bad end", Observation(), Held(verdict="worse", change=0.031), "bad")
    exact, given, back, times = (
        yardstick(**facts)
        for facts in (
            {"symptom": "memory_peak"},
            {"symptom": "memory_peak", "threshold": 0.02},
            {"symptom": "memory_peak", "find_fix": True},
            {"symptom": "step_ms", "rounds": 5},
        )
    )
    for one in (exact, given, back, times):
        one.learn(bad)
    assert [one.threshold for one in (exact, given, back, times)] == [0.015, 0.02, None, 0.015]
    back.learn(probe("good end", Observation(), Held(verdict="worse", change=6.0), "bad"))
    assert back.threshold == 3.0
    times.learn(probe("bad end", Observation(), Held(verdict="worse", change=0.02), "bad"))
    assert times.threshold == 0.015  # a half would be less than compare takes for a change
    assert [(one.role, one.plan.without) for one in (exact, back)] == [("good end", "a"), ("bad end", "b")]


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
    faster = in_turns(0.9, 0.1, threshold=0.05)  # may be much faster: undecided, but surely no slower
    assert (faster.verdict, "between" in faster.text) == ("same", True)


def test_one_run_of_what_varies_says_how_to_tell() -> None:
    stick = yardstick(symptom="host_rss")
    stick.learn(probe("good end", kept("good.json", a_run(rss=5e8))))
    held = stick.hold(kept("more.json", a_run(rss=6e8)))
    assert held is not None
    assert (held.verdict, "--rounds N" in held.text) == ("undecided", True)


def test_only_what_is_hunted_is_judged_in_turns() -> None:
    plan = PLAN.model_copy(update={"symptom": "memory_peak", "rounds": 4})
    for threshold, wanted in ((0.2, 0.2), (None, 0.01), (7.0, MOST)):
        Path("limits.toml").write_text(thresholds_file(plan, threshold))
        limits = load_thresholds(Path("limits.toml"))
        assert (limits.changes["memory_peak"], limits.only) == (wanted, ("memory_peak",))


def test_added_parameters_are_a_change_of_bytes_and_no_refusal() -> None:
    stick = yardstick(symptom="saved_activations")
    more = a_run(saved=12_000)
    stick.learn(probe("good end", kept("good.json", a_run())))
    held = stick.hold(kept("more.json", more.model_copy(update={"parameters": {"trained": 2000}})))
    assert held is not None
    assert held.verdict == "worse"


def test_the_probe_of_a_plan(tmp_path: Path) -> None:
    from tests.repositories import Repo
    from vlmprof.bisect import open_repository

    repo = Repo(tmp_path / "repo")
    repo.line(2)
    where = open_repository(repo.folder)

    def plan(**flags: Any) -> Plan:
        return make_plan(where, "main~1..main", load_recipe("", flags), tmp_path / "state")

    exact, times = plan(symptom="memory_peak", nproc=2), plan(symptom="step_ms", threshold="5%")
    assert (exact.rounds, times.rounds, times.threshold) == (0, 10, 0.05)
    assert {"--stage-breakdown", "--nproc"} <= set(exact.run_arguments)
    assert "--stage-breakdown" not in plan(symptom="oom").run_arguments
    assert dict(zip(times.run_arguments[::2], times.run_arguments[1::2], strict=True))["--steps"] == "10"
    assert "--stage-breakdown" not in times.run_arguments
    assert plan(symptom="memory_peak", rounds=4).rounds == 4


def test_a_workload_is_kept_as_it_was_understood(tmp_path: Path) -> None:
    """Its base and its data lie where the bisect was asked for; probes start elsewhere."""
    from tests.repositories import Repo
    from vlmprof.bisect import open_repository
    from vlmprof.workload.settings import load_workload

    repo = Repo(tmp_path / "repo")
    repo.line(2)
    Path("pictures").mkdir()
    Path("common.toml").write_text('base = "tiny"\n[data]\nkind = "path"\npath = "pictures"\n')
    Path("mine.toml").write_text('base = "common.toml"\n[knobs]\nglobal_batch_size = 2\n')
    wanted = load_workload("mine.toml")
    recipe = load_recipe("", {"workload": "mine.toml", "set": ("seq_length=192",)})
    arguments = make_plan(open_repository(repo.folder), "main~1..main", recipe, tmp_path / "state").run_arguments
    again = make_plan(open_repository(repo.folder), "main~1..main", recipe, tmp_path / "state").run_arguments
    assert arguments == again
    kept_one = load_workload(arguments[arguments.index("--workload") + 1])
    assert (kept_one.name, kept_one.knobs, kept_one.data.seq_length) == ("mine", wanted.knobs, 192)
    assert Path(kept_one.data.path) == Path("pictures").resolve()
    assert kept_one.hash8 == load_workload("mine.toml", ["seq_length=192"]).hash8
