import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runs import a_run, write_run
from vlmprof.commands.main import main
from vlmprof.errors import MachineError, NoAnswerError, UserError
from vlmprof.records.baseline import Baseline, add, baseline_path, drop, find_baseline, list_baselines
from vlmprof.records.run import Run
from vlmprof.records.slim import fingerprint, slim
from vlmprof.records.store import dump_json

NOW = datetime(2026, 2, 1, 12, tzinfo=UTC)


def accept(store: Path, *runs: Run) -> Baseline:
    return add(store, runs, "ada", "nightly of Monday", NOW)


def test_what_was_accepted_is_found_again_with_its_history(tmp_path: Path) -> None:
    accept(tmp_path, a_run(0), a_run(1))
    accept(tmp_path, a_run(2))
    found = find_baseline(tmp_path, a_run(9))
    assert [run.created for run in found.runs] == [a_run(number).created for number in range(3)]
    entry = found.entries[2]
    assert (entry.who, entry.why, entry.when) == ("ada", "nightly of Monday", "2026-02-01T12:00:00+00:00")
    assert entry.commit == "a" * 40
    assert entry.command == ("vlmprof", "run", "--out", ".../7")
    assert (tmp_path / "cpu-x1" / "tiny-0123abcd.json").is_file()


def test_the_file_has_a_line_an_entry_so_that_a_diff_shows_what_was_added(tmp_path: Path) -> None:
    accept(tmp_path, a_run(0))
    path = baseline_path(tmp_path, a_run(0))
    before = path.read_text().splitlines()
    accept(tmp_path, a_run(1))
    after = path.read_text().splitlines()
    assert before[1] + "," == after[1]
    assert len(after) == len(before) + 1


def test_nothing_of_the_machine_is_kept_and_what_comparing_needs_is(tmp_path: Path) -> None:
    run = a_run(0)
    kept = accept(tmp_path, run).runs[0]
    text = baseline_path(tmp_path, run).read_text()
    assert "ada/" not in text
    assert "/home" not in text
    assert kept.steps == run.steps
    assert kept.stages == run.stages
    assert kept.memory == run.memory
    assert kept.throughput == run.throughput
    assert kept.effective_work == run.effective_work
    assert slim(kept) == kept
    assert fingerprint(kept) == fingerprint(run)


def test_a_dropped_run_stays_in_the_file_and_no_longer_counts(tmp_path: Path) -> None:
    first = accept(tmp_path, a_run(0), a_run(1)).entries[0].id
    path, after = drop(tmp_path, first[:6], "bob", "the machine was busy", NOW)
    assert path == baseline_path(tmp_path, a_run(0))
    assert [run.created for run in after.runs] == [a_run(1).created]
    (mark,) = [entry.dropped for entry in find_baseline(tmp_path, a_run(0)).entries if entry.dropped]
    assert (mark.who, mark.why) == ("bob", "the machine was busy")
    with pytest.raises(UserError, match="no accepted run"):
        drop(tmp_path, first, "bob", "again", NOW)
    assert len(accept(tmp_path, a_run(0)).entries) == 3  # it may be accepted anew
    with pytest.raises(UserError, match="no accepted run"):
        drop(tmp_path, "", "bob", "all", NOW)


def with_value(run: Run, **changes: object) -> Run:
    return run.model_copy(update=changes)


def nan_step(run: Run) -> Run:
    steps = (run.steps[0].model_copy(update={"ms": float("nan")}), *run.steps[1:])
    return with_value(run, steps=steps)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], "name at least one run"),
        ([a_run(5, outcome="failed")], "failed: only a run that ended well"),
        ([a_run(5, steps=1)], "has 1 plain steps: a baseline needs 3"),
        ([a_run(5), a_run(5)], "is named twice"),
        ([a_run(0)], "is in the baseline already"),
        ([nan_step(a_run(5))], "a figure that is no number"),
        ([a_run(5), a_run(6, hash8="ffffffff")], "belong to different baselines"),
        ([a_run(5, steps=7)], "has plain steps 7, the baseline's runs have 6"),
        ([a_run(5, environment={"precision": "bf16"})], "has precision bf16, the baseline's runs have fp32"),
        ([with_value(a_run(5), environment=None)], "does not say its platform"),
        ([a_run(5, hash8="")], "does not say its workload's hash"),
    ],
)
def test_a_run_that_is_none_to_compare_with_is_refused_with_all_others(
    tmp_path: Path, runs: list[Run], expected: str
) -> None:
    accept(tmp_path, a_run(0))
    before = baseline_path(tmp_path, a_run(0)).read_bytes()
    with pytest.raises(UserError, match=expected) as error:
        accept(tmp_path, *([a_run(4)] if runs else []), *runs)
    assert "\n" not in str(error.value)
    assert baseline_path(tmp_path, a_run(0)).read_bytes() == before
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["tiny-0123abcd.json"]


def test_a_refused_first_run_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        accept(tmp_path / "store", a_run(0, outcome="failed"))
    assert not (tmp_path / "store").exists()


def test_other_work_under_the_same_hash_is_refused(tmp_path: Path) -> None:
    accept(tmp_path, a_run(0))
    other = a_run(1)
    assert other.effective_work is not None
    work = other.effective_work.model_copy(update={"useful_tokens": 499.0})
    with pytest.raises(UserError, match=r"has useful_tokens 499\.0, the baseline's runs have 500\.0"):
        accept(tmp_path, with_value(other, effective_work=work))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is not valid JSON"),
        ('{"schema": "vlmprof.baseline/1", "platform": "cpu-x1"', "is not valid JSON"),
        ('{"schema": "vlmprof.baseline/2"}', "newer than the vlmprof.baseline/1"),
        ('{"schema": "vlmprof.run/1"}', "is vlmprof.run/1, but a vlmprof.baseline is needed"),
        ('{"schema": "vlmprof.baseline/1", "platform": 3}', "is not a whole baseline: platform"),
        (
            '{"schema": "vlmprof.baseline/1", "platform": "h200-x1", "workload": "tiny", "hash": "0123abcd"}',
            "was moved",
        ),
    ],
)
def test_a_damaged_baseline_is_one_sentence_and_never_overwritten(tmp_path: Path, text: str, expected: str) -> None:
    path = baseline_path(tmp_path, a_run(0))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for use in (lambda: find_baseline(tmp_path, a_run(0)), lambda: accept(tmp_path, a_run(0))):
        with pytest.raises(UserError) as error:
            use()
        assert expected in str(error.value)
        assert "\n" not in str(error.value)
    assert path.read_text() == text


def test_an_empty_store_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(NoAnswerError, match="vlmprof baseline add RUN"):
        find_baseline(tmp_path, a_run(0))
    with pytest.raises(UserError, match="there is no store") as error:
        find_baseline(tmp_path / "gone", a_run(0))
    assert error.value.exit_code == 2
    only = accept(tmp_path, a_run(0)).entries[0].id
    drop(tmp_path, only, "ada", "why not", NOW)
    with pytest.raises(NoAnswerError):
        find_baseline(tmp_path, a_run(0))


@given(st.text(), st.text(min_size=1), st.text(min_size=1))
@settings(max_examples=200, deadline=None)
def test_no_name_in_a_record_leads_out_of_the_store(workload: str, hash8: str, platform: str) -> None:
    run = a_run(0, workload=workload, hash8=hash8, environment={"platform": platform}, steps=1)
    if platform == "unknown":
        return
    store = Path("/store")
    path = baseline_path(store, run)
    assert len(path.relative_to(store).parts) == 2
    assert ".." not in path.parts
    assert path == Path(str(path)).resolve()
    assert max(len(part) for part in path.parts) < 200


def test_what_differs_beneath_the_platform_is_a_caveat(tmp_path: Path) -> None:
    host = {"system": "Linux 6.1", "cpu": "Xeon", "load_average": 9.0}
    found = accept(tmp_path, a_run(0), a_run(1, environment={"host": host, "threads": 2, "variables": {}}))
    assert set(found.caveats) == {"cpu: EPYC, Xeon", "threads: 1, 2", "TORCH_HOME: .../.torch, not set"}
    content: dict[str, Any] = json.loads(baseline_path(tmp_path, a_run(0)).read_text())
    assert content["caveats"] == list(found.caveats)


def test_the_working_folder_comes_before_what_is_shipped(working_folder: Path) -> None:
    shipped = list_baselines(None)
    assert any(baseline.workload == "tiny" and baseline.platform == "cpu-x1" for baseline in shipped.values())
    accept(working_folder / "baselines", a_run(0))
    assert [run.created for run in find_baseline(None, a_run(1)).runs] == [a_run(0).created]
    assert len(list_baselines(None)) == len(shipped) + 1


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(UserError, match="cannot be written") as error:
        accept(tmp_path / "store", a_run(0))
    assert not isinstance(error.value, MachineError)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(write_run(tmp_path / str(number), a_run(number))) for number in range(3)]
    store = ["--store", str(tmp_path / "store")]
    assert main(["baseline", "add", *folders, "--why", "good ones", "--who", "ada", *store]) == 0
    assert "accepted runs: 3" in capsys.readouterr().out
    assert main(["baseline", "list", *store]) == 0
    assert "tiny-0123abcd.json" in capsys.readouterr().out.replace("\n", "")
    assert main(["baseline", "show", "tiny", "--json", *store]) == 0
    (document,) = json.loads(capsys.readouterr().out).values()
    assert [entry["why"] for entry in document["entries"]] == ["good ones"] * 3
    assert main(["baseline", "drop", document["entries"][0]["id"], "--why", "busy", "--who", "bob", *store]) == 0
    assert "dropped by bob" in " ".join(capsys.readouterr().out.split())
    assert main(["baseline", "show", "large", *store]) == 2
    assert main(["baseline", "add", str(tmp_path / "gone"), "--why", "x", *store]) == 2
    (tmp_path / "empty").mkdir()
    assert main(["baseline", "show", "--store", str(tmp_path / "empty")]) == 4
    (tmp_path / "0" / "run.json").write_text(dump_json(a_run(0))[:2000])
    capsys.readouterr()
    assert main(["baseline", "add", folders[1], folders[0], "--why", "x", *store]) == 2
    assert "it is damaged or cut off" in capsys.readouterr().err
