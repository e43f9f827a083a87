import json
import statistics
from pathlib import Path

import pytest

from vlmprof.advice import RULES, advise
from vlmprof.errors import MachineError, UserError
from vlmprof.records import environment
from vlmprof.records.assemble import assemble
from vlmprof.records.figures import Absent, Figure, middle_half
from vlmprof.records.journal import Event, FileJournal, read_journal
from vlmprof.records.run import Outcome, Run
from vlmprof.records.schedule import alternate, plan_kinds, spread
from vlmprof.records.store import dump_json, read_run, write_whole
from vlmprof.report.terminal import bar, render_text

WORK = {
    "tokens": 1024,
    "useful_tokens": 500,
    "padding_tokens": 100,
    "images": 4,
    "image_patches": 400,
    "lengths": [200, 300],
    "patch_counts": [100, 300],
    "flops": {"model": 1e9, "useful": 8e8, "stages": {"head": {"forward": 1e8}}},
}


def step(index: int, kind: str, ms: float, ranges: list[object] | None = None, **facts: object) -> Event:
    return {
        "event": "step",
        "index": index,
        "batch": index // 2,
        "kind": kind,
        "warmup": False,
        "ms": ms,
        "loss": 2.0,
        "grad_norm": 1.0,
        "work": WORK,
        "ranges": ranges or [],
        "source": "wall-clock",
        **facts,
    }


def spanned(index: int, router: float, experts: float, own: float, other: float) -> Event:
    ranges = [
        ["step", None, "step", other, 1],
        ["decoder", None, "forward", own, 1],
        ["decoder.router", 0, "forward", router, 2],
        ["decoder.experts", 0, "forward", experts, 2],
        ["decoder.experts", 1, "backward", experts, 2],
    ]
    return step(index, "spanned", router + 2 * experts + own + other, ranges)


def a_run(**start: object) -> Run:
    events: list[Event] = [
        {"event": "start", "workload": {"name": "tiny", "hash": "0" * 8}, "realism": "real", **start}
    ]
    for index in range(0, 16, 2):
        events += [step(index, "plain", 98.0 + index), spanned(index + 1, 10.0, 20.0, 30.0 + index, 20.0)]
    return advise(assemble([*events, {"event": "done"}]))


def test_totals_are_selves_of_the_same_phase_and_selves_add_up() -> None:
    run = a_run()
    decoder = run.stage("decoder", "forward")
    router, experts = run.stage("decoder.router", "forward"), run.stage("decoder.experts", "forward")
    assert decoder is not None
    assert router is not None
    assert experts is not None
    for total, *parts in zip(
        decoder.total_ms.samples, decoder.self_ms.samples, router.self_ms.samples, experts.self_ms.samples, strict=True
    ):
        assert total == pytest.approx(sum(parts))
    whole = run.stage("step", "step")
    assert whole is not None
    selves = sum(row.self_ms.value for row in run.stages)
    assert selves == pytest.approx(whole.total_ms.value)
    assert run.coverage == pytest.approx(1 - 20.0 / whole.total_ms.value)


def test_a_backward_without_forward_time_of_its_own_still_counts_in_the_parent() -> None:
    row = a_run().stage("decoder", "backward")
    assert row is not None
    assert (row.total_ms.value, row.self_ms.value) == (20.0, 0.0)


def test_throughput_comes_from_plain_steps_only() -> None:
    run = a_run()
    figure = run.throughput["useful_tokens_per_second"]
    assert isinstance(figure, Figure)
    plain = [one.ms for one in run.steps if one.kind == "plain"]
    assert figure.value == pytest.approx(statistics.median(500 / ms * 1e3 for ms in plain))
    assert len(figure.samples) == len(plain)


def test_overhead_pairs_steps_by_batch() -> None:
    (row,) = a_run().overhead
    assert isinstance(row.ratio, Figure)
    assert row.ratio.samples[0] == pytest.approx(100.0 / 98.0)


def test_what_was_not_measured_is_absent_with_a_reason() -> None:
    run = assemble([{"event": "start"}, {"event": "begin", "index": 0}])
    assert run.outcome.status == "failed"
    assert run.outcome.step == 0
    assert run.coverage is None
    assert all(isinstance(figure, Absent) for figure in run.throughput.values())


def test_the_middle_half_sets_both_ends_aside() -> None:
    assert middle_half([5.0, 1.0, 100.0, 4.0]) == [0, 3]
    assert middle_half([7.0]) == [0]


def test_a_record_is_written_whole_and_read_again(tmp_path: Path) -> None:
    run = a_run()
    write_whole(tmp_path / "run.json", dump_json(run))
    assert read_run(tmp_path) == run == read_run(tmp_path / "run.json")
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "there is no run record"),
        ("{", "is not valid JSON"),
        ("[]", "is not a vlmprof document"),
        ("{}", "no vlmprof document"),
        ('{"schema": "vlmprof.bisect/1"}', "is vlmprof.bisect/1, but a vlmprof.run is needed"),
        ('{"schema": "vlmprof.run/2"}', "newer than the vlmprof.run/1 that this vlmprof reads: upgrade vlmprof"),
        ('{"schema": "vlmprof.run/1"}', "is not a whole run record"),
    ],
)
def test_a_bad_record_is_one_sentence(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError) as error:
        read_run(tmp_path)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_field_of_a_later_minor_form_is_passed_over(tmp_path: Path) -> None:
    content = json.loads(dump_json(a_run()))
    content["of_the_future"] = {"a": 1}
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert read_run(tmp_path) == a_run()


def test_a_place_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be written"):
        write_whole(tmp_path / "gone" / "run.json", "{}")
    assert list(tmp_path.iterdir()) == []


def test_a_journal_cut_off_in_the_middle_keeps_what_was_whole(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    with FileJournal(path) as journal:
        journal.tell("begin", index=0)
        journal.tell("step", index=0)
    with path.open("ab") as file:
        file.write(b'{"event": "st')
    events, position = read_journal(path)
    assert [event["event"] for event in events] == ["begin", "step"]
    with path.open("ab") as file:
        file.write(b'ep", "index": 1}\n')
    assert [event["index"] for event in read_journal(path, position)[0]] == [1]


def test_kinds_replay_the_same_batches_and_take_turns_at_going_first() -> None:
    plan = [step for step in plan_kinds(4, 2, ("spanned",)) if not step.warmup]
    assert [step.batch for step in plan] == [2, 2, 3, 3, 4, 4, 5, 5]
    assert [step.kind for step in plan] == ["plain", "spanned", "spanned", "plain"] * 2
    assert all(step.kind == "plain" for step in plan_kinds(3, 1, ()))


def test_the_gpus_driver_is_told_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "DRIVER", tmp_path / "version")
    assert "driver" not in environment.host_facts()
    (tmp_path / "version").write_text("580.1\n")
    assert environment.host_facts()["driver"] == "580.1"


@pytest.mark.parametrize(
    ("steps", "most", "chosen"), [(2, 3, {0, 1}), (3, 5, {0, 1, 2}), (1, 5, {0}), (10, 5, {0, 2, 4, 7, 9}), (9, 1, {0})]
)
def test_a_kind_that_costs_more_is_spread_over_the_run(steps: int, most: int, chosen: set[int]) -> None:
    assert spread(steps, most) == chosen


def test_attached_profiles_alternate_without_end() -> None:
    steps = [next(plan) for plan in [alternate(2)] for _ in range(6)]
    assert [step.kind for step in steps] == ["plain", "plain", "plain", "spanned", "plain", "spanned"]


def test_every_finding_carries_its_figures() -> None:
    run = a_run(realism="mock")
    rules = {finding.rule: finding for finding in run.findings}
    assert rules["mock-data"].level == "warning"
    assert rules["coverage"].figures["coverage"] == pytest.approx(run.coverage)
    assert f"{run.coverage:.1%}" in rules["coverage"].text
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_table_is_plain_text_with_a_tree_and_bars() -> None:
    text = render_text(a_run(), breakdown=True, width=110)
    assert "├─ decoder" in text
    assert "│  └─ experts" in text
    assert "█" in text
    assert "\x1b" not in text
    assert "coverage" in text


def test_a_failure_is_shown_with_its_place() -> None:
    outcome = Outcome(status="failed", failure_class="crash", stage="decoder.router", layer=2, phase="forward", step=4)
    text = render_text(a_run().model_copy(update={"outcome": outcome}), breakdown=True)
    assert "failed: crash, step 4, in decoder.router of layer 2 (forward)" in text


def test_bars_are_proportional_and_never_vanish() -> None:
    assert bar(1.0, 8) == "█" * 8
    assert bar(0.5, 8) == "████"
    assert bar(0.0001, 8) == "▏"
    assert bar(0.0, 8) == ""


def test_a_stage_that_only_holds_parameters_counts_in_memory() -> None:
    memory = {
        "peak": 300,
        "peak_where": ["head", "forward"],
        "held_at_peak": {"encoder": {"parameters": 100}, "head": {"tensors": 200}},
        "held_after": {"encoder": {"parameters": 100}},
        "stage_peaks": [["head", "forward", 300]],
        "saved": [],
        "sent": {},
        "rss": 1,
        "tokens_per_expert": [],
        "dropped": 0,
    }
    run = assemble([{"event": "start"}, step(0, "counted", 1.0, memory=memory), {"event": "done"}])
    row = run.stage("encoder", "step")
    assert row is not None
    assert row.memory is not None
    assert row.memory.parameters is not None
    assert row.memory.parameters.value == 100
