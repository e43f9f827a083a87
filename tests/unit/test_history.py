import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from tests.runs import a_run, write_run
from vlmprof.commands.main import main
from vlmprof.compare.history import find_history
from vlmprof.errors import NoAnswerError, UserError
from vlmprof.records.baseline import add
from vlmprof.records.history import History, MetricHistory
from vlmprof.records.store import dump_json, read_document
from vlmprof.records.summary import Summary, metrics_of
from vlmprof.report.history import sparkline


def times(count: int, change: float = 1.0, at: int = 0, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [100 * float(np.exp(rng.normal(scale=0.01))) * (change if at <= n else 1) for n in range(count)]


def write(folder: Path, steps: list[float], router: float = 10.0, **facts: object) -> Path:
    for number, ms in enumerate(steps):
        write_run(folder / f"run{number:03d}", a_run(number, ms, router, **facts))  # type: ignore[arg-type]
    return folder


def metric(history: History, name: str) -> MetricHistory:
    (series,) = history.series
    return next(one for one in series.metrics if one.name == name)


def test_the_first_run_of_a_new_level_is_named_with_what_it_measured(tmp_path: Path) -> None:
    write(tmp_path, times(30, 1.1, at=20))
    history = find_history(tmp_path)
    (change,) = metric(history, "step_ms").changes
    assert change.run == 20
    assert change.verdict == "worse"
    assert change.change == pytest.approx(0.1, abs=0.01)
    assert (change.runs_before, change.runs_after, change.last_before) == (20, 10, 19)
    run = history.series[0].runs[20]
    assert run.record == str(tmp_path / "run020" / "run.json")
    assert run.commit == "a" * 40
    (slower,) = metric(history, "tokens_per_second").changes
    assert (slower.run, slower.verdict) == (20, "worse")
    assert slower.change < 0


def test_the_stage_that_changed_is_found_where_the_step_hides_it(tmp_path: Path) -> None:
    for number, ms in enumerate(times(40, seed=3)):
        write_run(tmp_path / str(number), a_run(number, ms, router=10.0 if number < 20 else 14.0))
    history = find_history(tmp_path)
    assert metric(history, "step_ms").changes == ()
    (change,) = metric(history, "decoder.router/forward").changes
    assert change.run == 20
    assert change.change == pytest.approx(0.4, abs=0.05)


def test_runs_are_put_in_order_of_time_and_failed_ones_are_shown(tmp_path: Path) -> None:
    steps = times(24, 1.1, at=12)
    for number in reversed(range(24)):
        write_run(
            tmp_path / f"{99 - number}", a_run(number, steps[number], outcome="failed" if number == 3 else "done")
        )
    history = find_history(tmp_path)
    (series,) = history.series
    assert [run.created for run in series.runs] == sorted(run.created for run in series.runs)
    assert (series.runs[3].status, series.runs[3].failure_class) == ("failed", "oom")
    step = metric(history, "step_ms")
    assert step.values[3] is None
    assert [change.run for change in step.changes] == [12]


def test_workloads_and_platforms_are_series_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "a", times(10))
    write(tmp_path / "b", times(10), hash8="ffffffff")
    write(tmp_path / "c", times(10), environment={"platform": "h200-x1"})
    found = {(one.hash, one.platform): len(one.runs) for one in find_history(tmp_path).series}
    assert found == {("0123abcd", "cpu-x1"): 10, ("ffffffff", "cpu-x1"): 10, ("0123abcd", "h200-x1"): 10}


def test_a_run_that_died_before_it_told_its_platform_is_shown_with_its_workload(tmp_path: Path) -> None:
    write(tmp_path, times(10))
    dead = a_run(11, outcome="failed").model_copy(update={"environment": None, "throughput": {}, "stages": ()})
    write_run(tmp_path / "dead", dead)
    (series,) = find_history(tmp_path).series
    assert [run.status for run in series.runs] == ["ok"] * 10 + ["failed"]


@pytest.mark.parametrize(
    ("change", "back", "code"),
    [(1.1, 1.0, 1), (1.1, 1.1, 0), (0.9, 1.0, 0), (1.0, 1.0, 0), (1.012, 1.0, 0)],
    ids=["worse", "worse and mended", "better", "the same", "below the threshold"],
)
def test_the_exit_code_is_that_of_the_latest_level(tmp_path: Path, change: float, back: float, code: int) -> None:
    rng = np.random.default_rng(5)
    level = [1.0] * 20 + [change] * 20 + [change / back] * 20
    write(tmp_path, [100 * one * float(np.exp(rng.normal(scale=0.003))) for one in level])
    assert main(["history", str(tmp_path)]) == code


def test_memory_counts_and_a_level_that_a_baseline_accepts_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(24):
        run = a_run(number, times(24)[number], peak=100_000 if number < 12 else 102_000)
        write_run(tmp_path / "runs" / f"{number}", run)
    assert main(["history", str(tmp_path / "runs")]) == 1
    assert "peak memory +2.0%" in capsys.readouterr().out
    now = datetime(2026, 2, 1, tzinfo=UTC)
    add(tmp_path / "store", [a_run(number, peak=102_000) for number in (20, 21)], "ada", "more experts", now)
    assert main(["history", str(tmp_path / "runs"), "--store", str(tmp_path / "store")]) == 0
    assert "accepted" in capsys.readouterr().out
    assert main(["history", str(tmp_path / "runs"), "--since", "2026-01-01T12:00:00"]) == 0


def test_one_metric_or_one_stage_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, times(20))
    assert main(["history", str(tmp_path), "--metric", "decoder.router", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in document["series"][0]["metrics"]] == ["decoder.router/forward"]
    assert main(["history", str(tmp_path), "--metric", "rooter"]) == 2
    assert "no record has a metric 'rooter'" in capsys.readouterr().err


def test_the_document_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "runs", times(20, 1.2, at=10))
    main(["history", str(tmp_path / "runs"), "--json"])
    (tmp_path / "history.json").write_text(capsys.readouterr().out)
    again = read_document(tmp_path / "history.json", History, "vlmprof.history/1", "history")
    assert again == find_history(tmp_path / "runs")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"schema": "vlmprof.run/1"', "it is damaged or cut off"),
        ('{"schema": "vlmprof.run/2"}', "newer than the vlmprof.run/1"),
        ('{"schema": "vlmprof.run/1", "created": 5}', "is not a whole run record: created"),
        ("[]", "is not a"),
    ],
)
def test_one_bad_record_is_named(tmp_path: Path, text: str, expected: str) -> None:
    write(tmp_path, times(10))
    (tmp_path / "run003" / "run.json").write_text(text)
    with pytest.raises(UserError) as error:
        find_history(tmp_path)
    assert expected in str(error.value)
    assert "run003" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "0.0", "-4.0"])
def test_a_step_time_that_is_none_is_named(tmp_path: Path, value: str) -> None:
    write(tmp_path, times(10))
    file = tmp_path / "run003" / "run.json"
    content = json.loads(file.read_text())
    content["throughput"]["step_ms"]["value"] = float(value)
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"run003.*step_ms is .*, which no run measures"):
        find_history(tmp_path)


def test_a_date_that_is_none_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "x", a_run(0), created="yesterday")
    with pytest.raises(UserError, match="'yesterday', which is no time"):
        find_history(tmp_path)


def test_nothing_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        find_history(tmp_path / "gone")
    with pytest.raises(UserError, match="holds no run record"):
        find_history(tmp_path)
    write(tmp_path, times(1))
    with pytest.raises(NoAnswerError, match=r"at most 1 good runs.*needs 8 or more"):
        find_history(tmp_path)
    with pytest.raises(UserError, match=r"no record in .* since 2030"):
        find_history(tmp_path, since=datetime(2030, 1, 1, tzinfo=UTC))


def test_other_json_files_are_passed_over_and_loose_records_are_not(tmp_path: Path) -> None:
    write(tmp_path, times(10))
    (tmp_path / "run000" / "trace.json").write_text('{"traceEvents": [')
    (tmp_path / "loose.json").write_text(dump_json(a_run(50)))
    assert len(find_history(tmp_path).series[0].runs) == 11


def test_the_short_form_of_a_record_has_the_figures_of_the_whole(tmp_path: Path) -> None:
    run = a_run(0)
    values = metrics_of(Summary.model_validate_json(dump_json(run)))
    router = run.stage("decoder.router", "forward")
    assert router is not None
    assert run.memory is not None
    assert values == {
        "step_ms": run.throughput["step_ms"].value,  # type: ignore[union-attr]
        "tokens_per_second": run.throughput["tokens_per_second"].value,  # type: ignore[union-attr]
        "useful_tokens_per_second": run.throughput["useful_tokens_per_second"].value,  # type: ignore[union-attr]
        "memory_peak": 1000.0,
        **{f"{row.name}/{row.phase}": row.self_ms.value for row in run.stages if row.name != "step" and row.ranges},  # type: ignore[union-attr]
        "decoder/forward": 0.0,
        "decoder/backward": 0.0,
    }


def test_sparklines() -> None:
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5, None, 5]) == "▅▅·▅"
    assert sparkline([1.0] * 10 + [2.0] * 10, [10]) == "▁" * 10 + "|" + "█" * 10
    assert len(sparkline(list(range(1, 1001)), width=30)) == 30
    assert sparkline([]) == sparkline([None]) == ""
