import gzip
import random
from pathlib import Path

import pytest

from tests.unit.training_logs import ARGUMENTS, LINES, MALFORMED, MEMORY_LINES, bridge_rate, megatron, note, read
from vlmprof.errors import UserError
from vlmprof.interop import log_lines, read_megatron_log, training_log
from vlmprof.interop.log_forms import MARKS


def test_a_last_line_without_its_end_gives_only_what_is_whole(tmp_path: Path) -> None:
    whole = megatron(2, 1234.5).rstrip("\n")
    for cut in range(len(whole) + 1):
        run = read(tmp_path, megatron(1) + whole[:cut])
        for step in run.steps[1:]:
            assert (step.index, step.ms) == (2, 1234.5)
            assert step.loss in (None, 2.5)
            assert step.grad_norm in (None, 0.75)
        assert bool(note(run, "last line has no end")) == any(mark.decode() in whole[:cut] for mark in MARKS)
    assert len(read(tmp_path, megatron(1) + whole).steps) == 2


def test_gzip_is_read_through(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress((megatron(1) + megatron(2)).encode()))
    run = read_megatron_log(path, warmup=0)
    assert [step.index for step in run.steps] == [1, 2]
    assert run.workload.name == "train"


def test_a_gzip_file_that_is_cut_off_gives_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    numbers = random.Random(5)
    lines = "".join(megatron(index, numbers.uniform(900, 1100)) for index in range(1, 3000))
    content = gzip.compress(lines.encode())
    path.write_bytes(content[: len(content) // 2])
    run = read_megatron_log(path, warmup=0)
    assert 500 < len(run.steps) < 2999
    assert note(run, "the gzip file is damaged or cut off")
    path.write_bytes(content[:30])
    with pytest.raises(UserError, match="damaged or cut off"):
        read_megatron_log(path)


def test_bytes_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    noise = random.Random(7).randbytes(300_000)
    path.write_bytes(noise + b"\n" + megatron(1).encode() + b"\xff\xfe\xc3\x28\n" + megatron(2).encode() + noise)
    assert [step.index for step in read_megatron_log(path, warmup=0).steps] == [1, 2]


def test_lines_are_found_wherever_blocks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(megatron(index, 1000.0 + index) + "noise\r" * (index % 5) for index in range(1, 60))
    whole = read(tmp_path, text).steps
    for size in (1, 7, 64, 399, 400, 401, 1000):
        monkeypatch.setattr(log_lines, "BLOCK_BYTES", size)
        assert read(tmp_path, text).steps == whole


def test_a_line_without_end_needs_no_more_than_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(log_lines, "LONGEST_LINE_BYTES", 2000)
    path = tmp_path / "train.log"
    path.write_text("x" * 50_000 + megatron(1))
    lines = list(log_lines.LogLines(path, MARKS))
    assert len(lines) == 1
    assert len(lines[0].text) < 4000
    assert [step.index for step in read_megatron_log(path, warmup=0).steps] == [1]


def test_of_endless_logs_the_last_iterations_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default = training_log.TrainingLog

    def small() -> training_log.TrainingLog:
        log = default()
        log.iterations = type(log.iterations)(maxlen=10)
        return log

    monkeypatch.setattr(training_log, "TrainingLog", small)
    run = read(tmp_path, "".join(megatron(index) for index in range(1, 31)), warmup=None)
    assert [step.index for step in run.steps] == list(range(21, 31))
    assert note(run, "the log has 30 iterations; the last")
    assert note(run, "no iteration is set aside")  # the warm-up is among those that are gone
    run = read(tmp_path, "".join(megatron(index) for index in range(1, 31)), warmup=22)
    assert [step.index for step in run.steps if step.warmup] == [21, 22]


def test_fuzzed_logs_give_a_record_or_a_sentence(tmp_path: Path) -> None:
    numbers = random.Random(11)
    lines = [*(text for text, _ in LINES.values()), *(text for text, _ in MEMORY_LINES.values())]
    lines += [ARGUMENTS, bridge_rate(1.0, 5.0), *MALFORMED[:6]]
    path = tmp_path / "train.log"
    for _ in range(1500):
        content = bytearray("".join(numbers.choices(lines, k=numbers.randrange(1, 9))).encode())
        for _ in range(numbers.randrange(12)):
            place = numbers.randrange(len(content))
            match numbers.randrange(3):
                case 0:
                    content[place] = numbers.randrange(256)
                case 1:
                    del content[place : place + numbers.randrange(40)]
                case _:
                    content[place:place] = content[: numbers.randrange(200)]
        path.write_bytes(bytes(content))
        try:
            run = read_megatron_log(path)
        except UserError as error:
            assert "iteration line" in str(error)  # noqa: PT017  # either ending is right
        else:
            assert all(step.ms > 0 for step in run.steps)
            assert [step.index for step in run.steps] == sorted({step.index for step in run.steps})


@pytest.mark.timeout(20)
def test_long_lines_of_one_thing_cost_no_more_than_others(tmp_path: Path) -> None:
    many = 300_000
    for part in (
        "iteration ",
        "iteration 5/ 9 | lm loss: ",
        "Epoch 1: train_step_timing in s=",
        "[Rank 1] memory (MB) | ",
    ):
        read(tmp_path, megatron(1) + part + " " * many + "\n" + part * (many // len(part)) + "\n")
        read(tmp_path, megatron(1) + part + "9" * many + "x\n" + "seq_length" + " ." * many + "\n")
