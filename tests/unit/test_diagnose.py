"""`vlmprof diagnose`: the labelled corpus, the shapes that logs come in, mutated logs, and the command itself."""

import gzip
import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from vlmprof.commands.main import main
from vlmprof.errors import Exit, UserError
from vlmprof.failures import diagnose, labels, logs
from vlmprof.failures.oom import figures_of, read_oom
from vlmprof.records.diagnosis import Diagnosis
from vlmprof.records.store import dump_json
from vlmprof.report.diagnosis import render_diagnosis_text

CORPUS = Path(__file__).parent.parent / "corpus"
CASES: list[dict[str, Any]] = tomllib.loads((CORPUS / "labels.toml").read_text(encoding="utf-8"))["case"]
CLASSES = {"oom", "host-oom", "nan", "hang", "cuda-fault", "crash", "killed", "setup", "hardware"}
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ITERATION = " [2025-06-12 10:00:{:02d}] iteration {:8d}/    2000 | lm loss: 2.1E+00 | number of nan iterations:   0 |"


NOISE = random.Random(0).randbytes(300_000)


def logs_of(case: dict[str, Any]) -> list[Path]:
    return [CORPUS / name for name in case["logs"]]


def write(tmp_path: Path, text: str | bytes, name: str = "train.log") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_log_of_the_corpus_gets_its_class_root_and_rank(case: dict[str, Any]) -> None:
    found = diagnose(logs_of(case))
    assert found.failure_class == case.get("class")
    assert found.rank == case.get("rank")
    assert case.get("root", "") in (found.message or "")
    assert case.get("signature", "") in (found.signature or "")
    assert case.get("reading", "") in (found.reading or "")
    assert case.get("evidence", "") in "\n".join(found.evidence)
    assert found.collateral >= case.get("collateral", 0)
    if "missing" in case:
        assert found.collective is not None
        assert list(found.collective.missing) == case["missing"]
    if "op" in case:
        assert found.collective is not None
        assert found.collective.op == case["op"]
    if found.message is not None:
        text = Path(found.log or "").read_bytes().decode("utf-8", "replace")
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text.split("\n")[(found.line or 0) - 1])
        assert found.message.rstrip() in plain
        assert found.signature
        assert found.reading
    assert found.evidence


def test_the_corpus_covers_every_class_and_logs_that_did_not_fail() -> None:
    assert {case["class"] for case in CASES if "class" in case} == CLASSES
    assert sum("class" not in case for case in CASES) >= 10
    assert len(CASES) >= 60
    named = {CORPUS / name for case in CASES for name in case["logs"]}
    assert named == set(CORPUS.rglob("*.log"))


def test_a_diagnosis_is_the_same_zipped_with_other_line_ends_and_split_by_rank(tmp_path: Path) -> None:
    whole = CORPUS / "oom-interleaved.log"
    found = diagnose([whole])
    zipped = write(tmp_path, gzip.compress(whole.read_bytes()), "train.log.gz")
    ended = write(tmp_path, whole.read_bytes().replace(b"\n", b"\r\n"), "dos.log")
    lines = whole.read_text().splitlines()
    split = [
        write(tmp_path, "\n".join(line[9:] for line in lines if line.startswith(f"[rank{rank}]")), f"rank{rank}.log")
        for rank in range(3)
    ]
    for paths in ([zipped], [ended], split):
        other = diagnose(paths)
        assert (other.failure_class, other.rank) == (found.failure_class, found.rank)
        assert other.signature == found.signature


def test_a_gzip_file_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    content = (CORPUS / "oom-plain-full.log").read_bytes() + NOISE[:4000]
    packed = gzip.compress(content)
    assert diagnose([write(tmp_path, packed[: len(packed) - 500], "cut.gz")]).failure_class == "oom"
    with pytest.raises(UserError, match="damaged gzip"):
        diagnose([write(tmp_path, b"\x1f\x8b nothing of the kind", "bad.gz")])


def test_lines_of_any_length_are_read_in_bounded_pieces(tmp_path: Path) -> None:
    long = "x" * (3 << 20)
    path = write(tmp_path, f"{long} {OOM} {long}\n[rank1]: {OOM}\n{long}")
    found = diagnose([path])
    assert found.failure_class == "oom"
    assert len(found.message or "") < 10_000
    assert max(len(block.data) for block in logs.read_blocks(path)) <= 3 << 20


def test_a_sign_across_the_border_of_two_blocks_is_found(tmp_path: Path) -> None:
    for shift in range(-40, 41, 8):
        filler = ("y" * 99 + "\n") * ((logs.BLOCK + shift) // 100)
        path = write(tmp_path, f"{filler}{'z' * ((logs.BLOCK + shift) % 100)}\n[rank3]: {OOM}\n")
        found = diagnose([path])
        assert (found.failure_class, found.rank) == ("oom", 3)
        assert found.line == filler.count("\n") + 2
    unbroken = write(tmp_path, "y" * (logs.BLOCK - 10) + OOM + "z" * 100, "one-line.log")
    assert diagnose([unbroken]).failure_class == "oom"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank3]: RuntimeError: boom", 3),
        ("[default3]:RuntimeError: boom", 3),
        ("[default1]:[rank9]: RuntimeError: boom", 9),
        ("[Rank 3] RuntimeError: boom", 3),
        ("[node0:3] RuntimeError: boom", 3),
        ("[1,3]<stderr>:RuntimeError: boom", 3),
        ("2025-06-12T10:00:00.123Z [rank12]: RuntimeError: boom", 12),
        ("RuntimeError: boom", None),
    ],
)
def test_labels_tell_the_rank(tmp_path: Path, line: str, rank: int | None) -> None:
    found = diagnose([write(tmp_path, f"starting\n{line}\n")])
    assert (found.failure_class, found.rank) == ("crash", rank)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.log", 3),
        ("train_rank_12.err", 12),
        ("worker_3/stderr", 3),
        ("none_x/attempt_0/3/stderr.log", 3),
        ("5.log", 5),
        ("slurm-88123.out", None),
        ("train.log", None),
    ],
)
def test_file_names_tell_the_rank(tmp_path: Path, name: str, rank: int | None) -> None:
    path = tmp_path / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("Traceback (most recent call last):\nRuntimeError: boom\n")
    assert labels.file_rank(Path(name)) == rank
    assert diagnose([path]).rank == rank


def test_sruns_numbers_are_nodes_where_ranks_are_named_as_well(tmp_path: Path) -> None:
    body = "\n".join(
        f"{task}: {text}" for task in (0, 1) for text in (f"[rank{task * 8}]: ready", "loading", "loading")
    )
    found = diagnose([write(tmp_path, f"{body}\n1: RuntimeError: boom\n1: [rank11]: RuntimeError: boom\n")])
    assert found.rank is None
    assert diagnose([write(tmp_path, "0: a\n1: b\n0: c\n1: RuntimeError: boom\n0: d\n")]).rank == 1


def test_the_earliest_by_time_is_the_root_whatever_the_order_of_files(tmp_path: Path) -> None:
    early = write(tmp_path, f"2025-12-31 23:59:58,000 step\n{OOM}\n", "rank0.log")
    late = write(tmp_path, f"2026-01-01 00:00:03,000 step\n{OOM}\n", "rank1.log")
    for order in ([early, late], [late, early]):
        assert diagnose(order).rank == 0


def test_training_that_goes_on_for_two_iterations_proves_an_error_handled(tmp_path: Path) -> None:
    def after(count: int) -> Diagnosis:
        lines = [ITERATION.format(9, 9), OOM, *(ITERATION.format(number, number) for number in range(10, 10 + count))]
        return diagnose([write(tmp_path, "\n".join(lines))])

    assert [after(count).failure_class for count in (0, 1, 2, 3)] == ["oom", "oom", "oom", None]


def test_a_later_failure_counts_after_handled_ones(tmp_path: Path) -> None:
    handled = "".join(
        f"{OOM}\n" + "".join(f"{ITERATION.format(n % 60, i * 9 + n)}\n" for n in range(4)) for i in range(90)
    )
    found = diagnose([write(tmp_path, f"{handled}[rank7]: {OOM}\n")])
    assert (found.failure_class, found.rank) == ("oom", 7)
    assert found.figures["iteration"] == 89 * 9 + 3


def test_the_same_error_is_setup_before_the_first_iteration_and_a_crash_later(tmp_path: Path) -> None:
    error = "Traceback (most recent call last):\nTypeError: f() got an unexpected keyword argument 'scale'\n"
    assert diagnose([write(tmp_path, error)]).failure_class == "setup"
    assert diagnose([write(tmp_path, f"{ITERATION.format(1, 1)}\n{error}")]).failure_class == "crash"


@pytest.mark.parametrize(
    ("code", "failure_class"),
    [
        (137, "killed"),
        (-9, "killed"),
        (16, "nan"),
        (17, "nan"),
        (139, "crash"),
        (-6, "crash"),
        (143, "killed"),
        (1, None),
    ],
)
def test_an_exit_code_decides_only_where_no_line_does(tmp_path: Path, code: int, failure_class: str | None) -> None:
    assert diagnose([write(tmp_path, "starting\n")], code).failure_class == failure_class
    assert diagnose([write(tmp_path, f"{OOM}\n")], code).failure_class == "oom"
    assert diagnose([], code).failure_class == failure_class


def test_the_numbers_of_an_oom_add_up() -> None:
    figures = figures_of(
        "Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 80.00 GiB of which 1.00 GiB is free. Process 77 has "
        "9.00 GiB memory in use. Including non-PyTorch memory, this process has 70.00 GiB memory in use. Of the "
        "allocated memory 50.00 GiB is allocated by PyTorch, with 6.00 GiB allocated in private pools (e.g., CUDA "
        "Graphs), and 8.00 GiB is reserved by PyTorch but unallocated."
    )
    gib = 2**30
    assert figures == {
        "tried_bytes": 1.5 * gib,
        "gpu": 3,
        "capacity_bytes": 80 * gib,
        "free_bytes": gib,
        "other_processes_bytes": 9 * gib,
        "in_use_bytes": 70 * gib,
        "allocated_bytes": 50 * gib,
        "private_pools_bytes": 6 * gib,
        "unallocated_bytes": 8 * gib,
        "outside_pytorch_bytes": 12 * gib,
    }
    reading, advice = read_oom(figures) or ("", ())
    assert reading.startswith("non-PyTorch memory: 12.0 GiB")
    assert all(part in reading for part in ("another process", "fragmentation: 8.0 GiB", "private pools: 6.0 GiB"))
    assert advice


def test_zero_bytes_free_is_a_number_too() -> None:
    text = "Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 10.00 GiB of which 0 bytes is free."
    figures = figures_of(text)
    assert figures["free_bytes"] == 0
    assert (read_oom(figures) or ("",))[0].startswith("the GPU is full")
    assert read_oom(figures_of("CUDA out of memory")) is None


def test_a_hang_says_collective_sizes_and_who_is_missing() -> None:
    found = diagnose([CORPUS / "hang-allgather-group.log"]).collective
    assert found is not None
    assert (found.op, found.sequence, found.numel_in, found.numel_out) == (
        "_ALLGATHER_BASE",
        120049,
        16384000,
        131072000,
    )
    assert (found.timeout_ms, found.group_size) == (1800000, 8)
    assert (found.waiting, found.missing) == (tuple(range(7)), (7,))


def mutated(rng: random.Random, contents: list[bytes]) -> bytes:
    """A log that went through what logs go through: cut, spliced, garbled, shuffled, doubled."""
    data = rng.choice(contents)
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(7)
        lines = data.split(b"\n")
        if kind == 0:
            data = data[: rng.randint(0, len(data))]
        elif kind == 1:
            data = data[rng.randint(0, len(data)) :]
        elif kind == 2:
            other = rng.choice(contents)
            data = data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]
        elif kind == 3:
            garbled = bytearray(data)
            for _ in range(min(len(garbled), rng.randint(1, 40))):
                garbled[rng.randrange(len(garbled))] = rng.randrange(256)
            data = bytes(garbled)
        elif kind == 4:
            rng.shuffle(lines)
            data = b"\n".join(lines)
        elif kind == 5:
            data = b"\n".join(line for line in lines for _ in range(rng.randint(0, 2)))
        else:
            at = rng.randint(0, len(data))
            data = (
                data[:at] + rng.choice([b"\r", b"\x1b[31m", b"\x00", b"\n" * 9, b"9" * 5000, b"\xff\xfe"]) + data[at:]
            )
    return data


@pytest.mark.parametrize("count", [1000, pytest.param(5000, marks=pytest.mark.slow)])
def test_mutated_logs_give_an_answer_or_unknown_and_never_an_exception(tmp_path: Path, count: int) -> None:
    rng = random.Random(20250612)
    contents = [path.read_bytes() for path in sorted(CORPUS.rglob("*.log"))]
    path = tmp_path / "mutated.log"
    answers = 0
    for _ in range(count):
        path.write_bytes(mutated(rng, contents))
        found = diagnose([path])
        assert found.failure_class is None or found.failure_class in CLASSES
        answers += found.failure_class is not None
        Diagnosis.model_validate_json(found.model_dump_json(by_alias=True))
    assert answers > count / 2


def test_the_command_says_class_rank_line_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    log = CORPUS / "oom-fragmented.log"
    assert main(["diagnose", str(log)]) == Exit.FINE
    text = capsys.readouterr().out
    assert text.startswith(f"oom on rank 2  {log}:")
    for part in ("fragmentation: 9.8 GiB", "expandable_segments", "signature", "consequences"):
        assert part in text
    assert "\x1b" not in text


def test_unknown_is_exit_code_4_with_the_most_telling_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(CORPUS / "unknown-tail.log")]) == Exit.NO_ANSWER
    text = capsys.readouterr().out
    assert text.startswith("unknown: ")
    assert "the frobnicator gave up: error 77" in text


def test_json_is_the_document_alone(capsys: pytest.CaptureFixture[str]) -> None:
    log = CORPUS / "hang-one-missing.log"
    assert main(["diagnose", "--json", str(log)]) == Exit.FINE
    content = json.loads(capsys.readouterr().out)
    assert (content["schema"], content["class"]) == ("vlmprof.diagnosis/1", "hang")
    assert content["collective"]["missing"] == [3]
    assert Diagnosis.model_validate(content) == diagnose([log])
    assert main(["diagnose", "--json", "--exit-code", "17", str(write(Path(), "starting\n"))]) == Exit.FINE
    assert json.loads(capsys.readouterr().out)["class"] == "nan"


def test_what_cannot_be_read_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path, f"{OOM}\n")
    for path, said in ((tmp_path / "gone.log", "there is no log"), (tmp_path, "is a folder")):
        assert main(["diagnose", "--json", str(good), str(path)]) == Exit.INPUT
        out, error = capsys.readouterr()
        assert out == ""
        assert said in error
        assert error.count("\n") == 1
    assert main(["diagnose"]) == Exit.INPUT


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\x00" * 5000, NOISE])
def test_empty_and_binary_files_are_unknown(tmp_path: Path, content: bytes) -> None:
    found = diagnose([write(tmp_path, content)])
    assert found.failure_class is None
    assert found.reading
    assert all(line.isprintable() for line in found.evidence)


def test_the_terminal_form_shows_the_collective() -> None:
    text = render_diagnosis_text(diagnose([CORPUS / "hang-one-missing.log"]))
    assert "collective  ALLREDUCE: number 808" in text
    assert "missing     rank 3 did not arrive" in text
    assert "waiting     ranks 0, 1, 2" in text


def test_a_diagnosis_is_a_document_that_reads_back() -> None:
    found = diagnose([CORPUS / "crash-shape.log"])
    assert Diagnosis.model_validate_json(dump_json(found)) == found
