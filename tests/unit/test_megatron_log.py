import json
from pathlib import Path

import pytest

from tests.unit.training_logs import ARGUMENTS, MEMORY_LINES, absent, bar, megatron, nemo, note, read
from vlmprof.commands.main import main
from vlmprof.errors import Exit, UserError
from vlmprof.interop import import_megatron_log, read_megatron_log
from vlmprof.records.figures import Figure
from vlmprof.records.run import Run
from vlmprof.records.store import read_run
from vlmprof.report.terminal import render_text


def test_the_first_three_iterations_are_warm_up(tmp_path: Path) -> None:
    run = read(tmp_path, "".join(megatron(index, 1000.0 + index) for index in range(1, 11)), warmup=None)
    assert [step.index for step in run.steps if step.warmup] == [1, 2, 3]
    measured = run.throughput["step_ms"]
    assert isinstance(measured, Figure)
    assert measured.samples == tuple(1000.0 + index for index in range(4, 11))
    assert note(run, "warm-up") == (
        "set aside as warm-up: iterations 1 to 3 (the first 3 of a log; change it: --warmup N)"
    )


def test_a_longer_slow_start_is_warm_up_too(tmp_path: Path) -> None:
    times = [9000.0, 3100.0, 5000.0, 3500.0, 3001.0, *[1000.0] * 10, 9000.0]
    run = read(tmp_path, "".join(megatron(index, ms) for index, ms in enumerate(times, start=1)), warmup=None)
    assert [step.index for step in run.steps if step.warmup] == [1, 2, 3, 4, 5]
    assert "more than 3 times the median" in note(run, "warm-up")


@pytest.mark.parametrize(("wanted", "expected"), [(0, []), (1, [1]), (4, [1, 2, 3, 4])])
def test_warmup_overrides(tmp_path: Path, wanted: int, expected: list[int]) -> None:
    times = [9000.0, *[1000.0] * 9]
    run = read(tmp_path, "".join(megatron(index, ms) for index, ms in enumerate(times, start=1)), warmup=wanted)
    assert [step.index for step in run.steps if step.warmup] == expected
    assert note(run, "--warmup" if expected else "no iteration is set aside")


def test_a_log_of_warm_up_only_says_how_to_count_it(tmp_path: Path) -> None:
    run = read(tmp_path, megatron(1) + megatron(2), warmup=None)
    assert all("--warmup 0" in absent(measured) for measured in run.throughput.values())
    assert all(step.warmup for step in run.steps)


def test_a_line_may_cover_several_iterations(tmp_path: Path) -> None:
    run = read(tmp_path, "".join(megatron(index) for index in range(10, 60, 10)), warmup=None)
    assert [(step.index, step.warmup) for step in run.steps] == [
        (10, True), (20, False), (30, False), (40, False), (50, False),
    ]  # fmt: skip
    assert note(run, "a line covers 10 iterations")
    run = read(tmp_path, "".join(megatron(index) for index in range(2, 10, 2)), warmup=None)
    assert [step.warmup for step in run.steps] == [True, True, False, False]


def test_nemo_tells_one_iteration_of_several_and_does_not_average(tmp_path: Path) -> None:
    run = read(tmp_path, nemo(9) + nemo(19) + nemo(29), warmup=None)
    assert [step.warmup for step in run.steps] == [False, False, False]
    assert note(run, "the log tells one of 10 iterations")
    run = read(tmp_path, "".join(nemo(step) for step in range(6)), warmup=None)
    assert [step.index for step in run.steps if step.warmup] == [0, 1, 2]


def test_the_interval_of_a_single_line_is_the_argument(tmp_path: Path) -> None:
    run = read(tmp_path, "  log_interval ................. 100\n" + megatron(100), warmup=1)
    assert note(run, "a line covers 100 iterations")


def test_lines_that_ranks_repeat_are_one_step(tmp_path: Path) -> None:
    text = megatron(1) + megatron(1, 1001.0) + megatron(2) + megatron(2, 1002.0)
    run = read(tmp_path, text)
    assert [(step.index, step.ms) for step in run.steps] == [(1, 1001.0), (2, 1002.0)]
    assert note(run, "2 lines repeat an iteration")
    assert not note(run, "resumed")


def test_a_labelled_rank_that_lags_is_no_resumed_run(tmp_path: Path) -> None:
    text = f"0: {megatron(1)}1: {megatron(1)}0: {megatron(2)}0: {megatron(3)}1: {megatron(2)}1: {megatron(3)}"
    run = read(tmp_path, text)
    assert [step.index for step in run.steps] == [1, 2, 3]
    assert note(run, "3 lines repeat")
    assert not note(run, "resumed")


def test_a_repeated_line_fills_in_what_the_first_lacked(tmp_path: Path) -> None:
    first = "iteration 5/ 9 | elapsed time per iteration (ms): 10.0 | grad norm: 1.5 |\n"
    (step,) = read(tmp_path, first + "iteration 5/ 9 | elapsed time per iteration (ms): 11.0 | lm loss: 2.0 |\n").steps
    assert (step.ms, step.loss, step.grad_norm) == (11.0, 2.0, 1.5)


def test_a_resumed_run_keeps_its_later_values(tmp_path: Path) -> None:
    text = "".join(megatron(index, 1000.0) for index in range(1, 9))
    text += "".join(megatron(index, 2000.0) for index in range(5, 8))
    run = read(tmp_path, text)
    assert [(step.index, step.ms) for step in run.steps] == [
        *((index, 1000.0) for index in range(1, 5)),
        *((index, 2000.0) for index in range(5, 8)),
    ]
    assert note(run, "resumed at iteration 5 after iteration 8: the later values stand")


def test_many_resumptions_are_counted_not_listed(tmp_path: Path) -> None:
    run = read(tmp_path, (megatron(1) + megatron(2)) * 20)
    assert [step.index for step in run.steps] == [1, 2]
    assert sum("resumed" in one for one in run.notes) == 6
    assert note(run, "14 times more")


def test_a_nan_that_a_resumed_run_got_past_is_no_failure(tmp_path: Path) -> None:
    text = megatron(1) + megatron(2) + megatron(3, loss="NaN") + megatron(2) + megatron(3) + megatron(4)
    assert read(tmp_path, text).outcome.status == "ok"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (megatron(3, loss="nan"), "the loss is nan at iteration 3"),
        (megatron(3, loss="inf"), "the loss is inf at iteration 3"),
        (megatron(3, nans=2), "Megatron counts 2 nan iterations at iteration 3"),
        (nemo(3, loss="nan"), "the loss is nan at iteration 3"),
    ],
)
def test_a_nan_is_a_failed_run(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(megatron(1) + megatron(2) + line + megatron(4, loss="nan"))
    record, folder = import_megatron_log(path, tmp_path / "out")
    outcome = record.outcome
    assert (outcome.status, outcome.failure_class, outcome.step) == ("failed", "nan", 3)
    assert outcome.message == message
    assert outcome.evidence == (line.replace(" [2026-01-01 12:00:00.123456] ", "").strip(),)
    assert read_run(folder) == record
    assert f"failed: nan, step 3: {message}" in render_text(record, breakdown=False, width=300)


def test_skipped_iterations_are_told_and_are_no_failure(tmp_path: Path) -> None:
    run = read(tmp_path, megatron(10, skipped=10) + megatron(20))
    assert run.outcome.status == "ok"
    assert note(run, "10 iterations skipped the optimizer")


def test_a_progress_bar_with_its_refreshes_is_a_step_each(tmp_path: Path) -> None:
    # A bar moves on first, with the figures of the step before, and is then drawn again with its own.
    text = "".join(
        bar(done, f"{done - 1}.000", old) + bar(done, f"{done}.000", old + 1) for done, old in ((1, 5), (2, 6))
    )
    text += bar(1, "2e+3", 9.0, epoch=1) + bar(2, "2e+3", 9.5, epoch=1, end="")
    run = read(tmp_path, text)
    assert [(step.index, step.ms) for step in run.steps] == [(1, 6000.0), (2, 7000.0), (11, 9000.0), (12, 9500.0)]
    assert not note(run, "resumed")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"hello\n", bytes(range(256)) * 100, b"\x1f\x8b", b"\x1f\x8b\x08"])
def test_a_file_without_iterations_says_which_forms_are_understood(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(content)
    with pytest.raises(UserError, match="has no iteration line") as error:
        import_megatron_log(path, tmp_path / "out")
    for word in ("Megatron-LM", "Megatron Bridge", "NeMo", "elapsed time per iteration (ms)", "train_step_timing"):
        assert word in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == Exit.INPUT
    assert not (tmp_path / "out").exists()


def test_a_record_is_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "slurm-12.out"
    path.write_text(ARGUMENTS + "".join(megatron(index, rate=200.0) for index in range(1, 9)))
    record, folder = import_megatron_log(path, tmp_path / "new" / "out", command=("vlmprof", "import"))
    assert [file.name for file in folder.iterdir()] == ["run.json"]
    assert read_run(folder) == record
    assert (record.schema_, record.workload.name, record.command) == (
        "vlmprof.run/1", "slurm-12", ("vlmprof", "import"),
    )  # fmt: skip
    assert (record.stages, record.layers, record.coverage, record.effective_work) == ((), (), None, None)
    assert json.loads((folder / "run.json").read_text())["outcome"]["status"] == "ok"


def test_the_default_folder_is_named_after_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my run (3).log").write_text(megatron(1))
    _, first = import_megatron_log(Path("my run (3).log"))
    _, second = import_megatron_log(Path("my run (3).log"))
    assert first.parent == Path("vlmprof-runs")
    assert first.name.endswith("-imported-my-run-3-")
    assert second != first
    assert read_run(second).workload.name == "my run (3)"


def test_a_folder_in_use_is_refused_before_the_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    missing = tmp_path / "missing.log"
    with pytest.raises(UserError, match="is not empty"):
        import_megatron_log(missing, tmp_path)
    with pytest.raises(UserError, match="is a file"):
        import_megatron_log(missing, tmp_path / "file")
    (tmp_path / "train.log").write_text(megatron(1))
    (tmp_path / "empty").mkdir()
    import_megatron_log(tmp_path / "train.log", tmp_path / "empty")
    assert read_run(tmp_path / "empty").steps


def test_an_unreadable_log_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.log", tmp_path):
        with pytest.raises(UserError, match="cannot be read: ") as error:
            read_megatron_log(path)
        assert "\n" not in str(error.value)


def test_the_command_prints_the_summary_and_its_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        ARGUMENTS
        + "".join(megatron(index, 2000.0, rate=200.0) for index in range(1, 9))
        + MEMORY_LINES["Megatron-LM"][0]
    )
    assert main(["import", "megatron-log", str(path), "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    for part in ("train on unknown, bf16", "2,000 ms", "131,072", "iterations 1 to 3", "2.0 GiB", "run.json"):
        assert part in text
    assert main(["show", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "peak 2.0 GiB; as the allocator reports it" in text
    assert "tensor bytes" not in text


def test_the_command_prints_the_record_alone_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(megatron(index) for index in range(1, 9)))
    arguments = ["import", "megatron-log", str(path), "--out", str(tmp_path / "out"), "--warmup", "2", "--json"]
    assert main(arguments) == 0
    assert Run.model_validate(json.loads(capsys.readouterr().out)) == read_run(tmp_path / "out")
    assert sum(step.warmup for step in read_run(tmp_path / "out").steps) == 2


def test_the_exit_codes_are_those_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    path.write_text(megatron(1) + megatron(2, loss="nan"))
    out = ["--out", str(tmp_path / "out")]
    assert main(["import", "megatron-log", str(path), *out]) == Exit.RUN_FAILED
    assert main(["import", "megatron-log", str(path), *out]) == Exit.INPUT
    path.write_text("nothing\n")
    capsys.readouterr()
    assert main(["import", "megatron-log", str(path), "--json"]) == Exit.INPUT
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert main(["import", "megatron-log", str(path), "--warmup", "-1"]) == Exit.INPUT
    assert main(["import", "csv", str(path)]) == Exit.INPUT
