"""Spans of a step, the trace made of them, and the tables."""

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.documents import a_run
from tests.unit.test_attribution import histories, milliseconds
from vlmprof.commands.main import main
from vlmprof.errors import UserError
from vlmprof.interop.export import export_csv
from vlmprof.interop.perfetto import trace_of
from vlmprof.records.journal import Event, FileJournal
from vlmprof.records.stage_times import self_times
from vlmprof.records.store import dump_json
from vlmprof.stages.attribution import attribute
from vlmprof.stages.spans import SAMPLED_STEPS, SpanSampler, spans_of
from vlmprof.stages.tree import Range

RANGES = [
    Range("step", None, "step"),
    Range("decoder", 0, "forward"),
    Range("decoder.router", 0, "forward"),
    Range("decoder.experts", 0, "forward"),
    Range("decoder", 0, "backward"),
    Range("head", None, "forward"),
]


def nests(slices: list[tuple[float, float]], tolerance: float) -> bool:
    """Whether slices in the order of their begins lie within or beside one another, as a viewer needs it."""
    open_: list[float] = []
    for begin, end in slices:
        while open_ and open_[-1] <= begin + tolerance:
            open_.pop()
        if open_ and end > open_[-1] + tolerance:
            return False
        open_.append(end)
    return True


def selves(slices: list[tuple[str, float, float]]) -> dict[str, float]:
    """Self time by name: a slice without the slices right inside it."""
    times: dict[str, float] = defaultdict(float)
    open_: list[tuple[str, float]] = []
    for name, begin, end in slices:
        while open_ and open_[-1][1] <= begin:
            open_.pop()
        times[name] += end - begin
        if open_:
            times[open_[-1][0]] -= end - begin
        open_.append((name, end))
    return times


@given(histories())
def test_spans_hold_what_attribution_sums_up(events: list[tuple[float, int]]) -> None:
    spans = spans_of(events, RANGES, milliseconds)
    assert spans[0][5] == 0
    own: dict[Range, float] = defaultdict(float)
    above: list[int] = []
    for number, (stage, layer, phase, begin, end, depth) in enumerate(spans):
        del above[depth:]
        range_ = next(one for one in RANGES if (one.stage, one.layer, one.phase) == (stage, layer, phase))
        own[range_] += end - begin
        if above:
            parent = spans[above[-1]]
            assert parent[3] <= begin <= end <= parent[4]
            own[next(one for one in RANGES if (one.stage, one.layer, one.phase) == parent[:3])] -= end - begin
        above.append(number)
    for range_id, time in attribute(events, milliseconds).items():
        assert own[RANGES[range_id]] == pytest.approx(time.self_ms, abs=1e-4 * len(events))


def test_only_a_few_steps_are_kept() -> None:
    sampler = SpanSampler()
    events = [(0.0, 0), (1.0, -1)]
    kept = [sampler.facts(events, RANGES, milliseconds, 9.0) for _ in range(SAMPLED_STEPS + 2)]
    assert [bool(facts) for facts in kept] == [True] * SAMPLED_STEPS + [False, False]
    assert kept[0] == {"spans_began": 9.0, "spans": [("step", None, "step", 0.0, 1.0, 0)]}


def test_a_step_of_very_many_ranges_is_not_kept() -> None:
    events = [(0.0, 0), *[(1.0, 1), (1.0, -1)] * 60_000, (2.0, -1)]
    assert SpanSampler().facts(events, RANGES, milliseconds, 0.0) == {}


def test_marks_that_pass_in_another_order_still_nest() -> None:
    spans = spans_of([(0.0, 0), (5.0, 1), (4.0, 2), (6.0, -1), (5.5, -1), (7.0, -1)], RANGES, milliseconds)
    assert [span[3:5] for span in spans] == [(0.0, 7.0), (5.0, 6.0), (5.0, 6.0)]


def journal(began: float) -> list[Event]:
    """One rank with one sampled step."""
    marks = [(0.0, 0), (1.0, 1), (2.0, 2), (4.0, -1), (4.0, 3), (9.0, -1), (9.5, -1), (12.0, 4), (20.0, -1), (21.0, -1)]
    ranges = [
        [RANGES[key].stage, RANGES[key].layer, RANGES[key].phase, time.self_ms, time.count]
        for key, time in attribute(marks, milliseconds).items()
    ]
    step: Event = {"event": "step", "index": 7, "kind": "spanned", "warmup": False, "ms": 21.0, "ranges": ranges}
    return [
        {"event": "worker", "host": "node"},
        {**step, "spans_began": began, "spans": spans_of(marks, RANGES, milliseconds)},
        {**step, "index": 2, "warmup": True, "spans_began": began - 5, "spans": spans_of(marks, RANGES, milliseconds)},
        {"event": "step", "index": 8, "kind": "plain", "warmup": False, "ms": 20.0, "ranges": []},
    ]


def check_trace_format(trace: dict[str, Any]) -> None:
    """The rules of the Trace Event Format for the events that we use."""
    assert isinstance(trace["traceEvents"], list)
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
        else:
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        assert slices == sorted(slices, key=lambda one: one[0])
        assert nests(slices, 0.05)


def test_the_trace_has_ranks_as_processes_and_nested_slices_that_add_up() -> None:
    ranks = {0: journal(1000.0), 1: journal(1000.002)}
    trace = json.loads(json.dumps(trace_of(ranks, {"workload": "tiny"})))
    check_trace_format(trace)
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == {0: "rank 0 on node", 1: "rank 1 on node"}
    for rank, told in ranks.items():
        slices = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == rank]
        times: dict[tuple[str, str], float] = defaultdict(float)
        for name, ms in selves([(json.dumps(e["args"]), e["ts"], e["ts"] + e["dur"]) for e in slices]).items():
            place = json.loads(name)
            key = ("other", "step") if place["stage"] == "step" else (place["stage"], place["phase"])
            times[key] += ms / 1e3
        expected = {key: ms for key, (ms, _) in self_times(told[1]).items()}
        assert times == pytest.approx(expected, abs=1e-3)
    first = [e["ts"] for e in trace["traceEvents"] if e["ph"] == "X" and e["args"]["stage"] == "step"]
    assert first == pytest.approx([0.0, 2000.0], abs=1.0)


@given(st.integers(0, 3), st.sampled_from(["spans", "spans_began"]), st.sampled_from([None, "x", [1], [[1, 2]]]))
def test_a_damaged_journal_is_told_in_one_sentence(rank: int, name: str, value: Any) -> None:
    told = journal(0.0)
    told[1][name] = value
    if name == "spans" and value is None:
        with pytest.raises(UserError):
            trace_of({rank: told}, {})
        return
    with pytest.raises(UserError, match="damaged"):
        trace_of({rank: told}, {})


def a_folder(folder: Path, spans: bool = True) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(dump_json(a_run(ranks=2)))
    for rank in range(2):
        with FileJournal(folder / f"rank{rank}.jsonl") as file:
            for event in journal(5.0 + rank):
                kept = event if spans else {key: value for key, value in event.items() if key != "spans"}
                file.tell(kept["event"], **{key: value for key, value in kept.items() if key != "event"})
    return folder


def test_the_command_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_folder(tmp_path / "run")
    assert main(["export", str(folder), "--format", "perfetto", "-o", "trace.json"]) == 0
    check_trace_format(json.loads(Path("trace.json").read_text()))
    assert "trace.json" in capsys.readouterr().out


def test_a_record_without_spans_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_folder(tmp_path / "run", spans=False)
    (tmp_path / "imported").mkdir()
    (tmp_path / "imported" / "run.json").write_text(dump_json(a_run()))
    for folder in ("run", "imported", "imported/run.json"):
        assert main(["export", str(tmp_path / folder), "--format", "perfetto", "-o", "trace.json"]) == 2
        error = capsys.readouterr().err
        assert "holds no spans" in error
        assert error.count("\n") == 1
    assert not Path("trace.json").exists()
    assert main(["export", str(tmp_path / "run"), "--format", "xml"]) == 2
    assert "perfetto and csv" in capsys.readouterr().err


def test_tables_are_written_all_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_folder(tmp_path / "run")
    assert main(["export", str(folder), "--format", "csv", "-o", "tables"]) == 0
    capsys.readouterr()
    run = a_run(ranks=2)
    with Path("tables/stages.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["stage"], row["phase"]) for row in rows] == [(row.name, row.phase) for row in run.stages]
    with Path("tables/ranks.csv").open() as file:
        assert [row["rank"] for row in csv.DictReader(file)] == ["0", "1"]
    before = {path.name: path.read_bytes() for path in Path("tables").iterdir()}
    assert main(["export", str(folder), "--format", "csv", "-o", "tables"]) == 2
    assert "there already" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("tables").iterdir()} == before


def test_tables_that_fail_half_way_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    folder = a_folder(tmp_path / "run")
    out = tmp_path / "out" / "tables"
    out.parent.mkdir()
    real, calls = pd.DataFrame.to_csv, []

    def full(frame: Any, *rest: Any, **named: Any) -> Any:
        calls.append(frame)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return real(frame, *rest, **named)

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(UserError, match="No space left"):
        export_csv(folder, out)
    assert not list(out.parent.iterdir())
