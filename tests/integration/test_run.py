"""`vlmprof run` as a person runs it: processes, records, failures, and what is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from vlmprof.commands.main import main
from vlmprof.records.store import read_run

VLMPROF = [sys.executable, "-m", "vlmprof"]
QUICK = ["--steps", "2", "--warmup", "1", "--set", "model.encoder.num_layers=2", "--set", "model.decoder.num_layers=2"]


def vlmprof(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*VLMPROF, *arguments], capture_output=True, text=True, timeout=280, check=False, **options)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """`tiny` twice, as it ships, with one seed."""
    folder = tmp_path_factory.mktemp("runs")
    records = []
    for name in ("one", "two"):
        done = vlmprof("run", "--stage-breakdown", "--steps", "4", "--json", "--out", name, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == json.loads((folder / name / "run.json").read_text())
        records.append(json.loads(done.stdout))
    return records


def test_tiny_is_covered_and_adds_up(two_runs: list[dict[str, Any]]) -> None:
    for record in two_runs:
        assert record["schema"] == "vlmprof.run/1"
        assert record["coverage"] >= 0.97
        step = next(row for row in record["stages"] if row["name"] == "step")
        selves = sum(row["self_ms"]["value"] for row in record["stages"])
        assert selves == pytest.approx(step["total_ms"]["value"], rel=0.01)
        assert record["missing"] == {}
        assert record["data"]["realism"] == "real"
        assert record["outcome"] == {"status": "ok", "evidence": []}


def test_one_seed_gives_identical_losses_and_tokens(two_runs: list[dict[str, Any]]) -> None:
    one, two = two_runs
    assert [(s["loss"], s["grad_norm"]) for s in one["steps"]] == [(s["loss"], s["grad_norm"]) for s in two["steps"]]
    assert one["effective_work"] == two["effective_work"]
    assert one["workload"] == two["workload"]


def test_a_number_says_how_it_was_got(two_runs: list[dict[str, Any]]) -> None:
    record = two_runs[0]
    figures = [*record["throughput"].values(), *(row["total_ms"] for row in record["stages"])]
    for figure in figures:
        assert figure["unit"]
        assert figure["source"] == "wall-clock"
        assert len(figure["samples"]) == 4


def test_the_environment_is_known(two_runs: list[dict[str, Any]]) -> None:
    environment = two_runs[0]["environment"]
    assert environment["platform"] == "cpu-x1"
    core = environment["packages"]["megatron-core"]
    assert core["version"]
    assert Path(core["path"], "parallel_state.py").is_file()
    assert environment["precision"] == "fp32"
    assert environment["bridge"]


def test_show_and_a_pipe_are_plain_text(two_runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.json").write_text(json.dumps(two_runs[0]))
    assert main(["show", "run.json"]) == 0
    shown = capsys.readouterr().out
    assert "├─ decoder" in shown
    assert "\x1b" not in shown


WRONG = [
    (["run", "--workload", "tinny"], 2, "did you mean 'tiny'"),
    (["run", "--workload", "no/such.toml"], 2, "there is no workload file"),
    (["run", "--set", "seq_lenght=1"], 2, "did you mean 'data.seq_length'"),
    (["run", "--steps", "0"], 2, "--steps"),
    (["run", "--steps", "many"], 2, "--steps"),
    (["run", "--data", "nothing-here"], 2, "neither real, mock, text-only nor an existing"),
    (["run", "--set", "moe_router_topk=99"], 2, "is above model.decoder.num_moe_experts"),
    (["run", "--set", "model.decoder.num_attention_heads=5"], 2, "does not divide"),
    (["run", "--megatron", "."], 2, "holds no megatron/core"),
    (["run", "--out", "full"], 2, "is not empty"),
    (["run", "--out", "file"], 2, "is a file"),
    (["run", "--no-such-flag"], 2, "--no-such-flag"),
    (["run", "--memory-limit", "lots"], 2, "'lots' is not a size"),
    (["run", "--data", "real,mok"], 2, "'mok' is neither"),
    (["runn"], 2, "runn"),
    (["show", "gone"], 2, "there is no run record"),
    (["schema", "gone"], 2, "the documents are run"),
    (["run", "--set", "tokenizer=gone.json"], 2, "gone.json"),
]


@pytest.mark.parametrize(("arguments", "code", "expected"), WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_wrong_input_is_one_sentence_and_writes_nothing(
    arguments: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str], working_folder: Path
) -> None:
    Path("full").mkdir()
    Path("full/something").touch()
    Path("file").touch()
    before = sorted(working_folder.rglob("*"))
    assert main([*arguments, "--json"] if arguments[0] == "run" else arguments) == code
    printed = capsys.readouterr()
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert sorted(working_folder.rglob("*")) == before


def test_malformed_toml(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.toml").write_text("[model\n")
    assert main(["run", "--workload", "bad.toml"]) == 2
    assert "is not valid TOML" in capsys.readouterr().err


def test_the_help_needs_neither_torch_nor_the_schemas() -> None:
    program = (
        "import sys; from vlmprof.commands.main import main\n"
        "for a in ([], ['run'], ['show'], ['doctor'], ['schema'], ['bisect']): main([*a, '--help'])\n"
        "assert not {'torch', 'megatron', 'numpy', 'vlmprof.records.run'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_list_of_presets_needs_no_torch() -> None:
    program = (
        "import sys; from vlmprof.commands.main import main\n"
        "assert main(['run', '--list']) == 0\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "qwen3-vl-30b-a3b" in done.stdout
    assert "31 B" in done.stdout


def test_a_bad_picture_found_by_the_worker_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "pics").mkdir()
    (tmp_path / "pics" / "bad.png").write_bytes(b"\x89PNG no more")
    done = vlmprof("run", "--data", "pics", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert "bad.png" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["pics"]


def test_a_memory_limit_exits_3_with_a_record_and_advice(tmp_path: Path) -> None:
    done = vlmprof("run", *QUICK, "--memory-limit", "70MiB", "--out", "run", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    record = read_run(tmp_path / "run")
    assert record.outcome.failure_class == "oom"
    assert record.outcome.held
    assert "failed: oom" in done.stdout
    assert "would free about" in done.stdout


def test_bad_input_leaves_the_users_folders_and_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    wrong = ["--set", "recompute=selective", "--set", 'recompute_modules=["bogus"]']
    for out in ("mine/run", "new/deep/run", "mine"):
        assert vlmprof("run", *wrong, "--out", out, cwd=tmp_path).returncode == 2
        assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["mine"]


@pytest.mark.slow
def test_several_kinds_of_data_side_by_side(tmp_path: Path) -> None:
    done = vlmprof("run", *QUICK, "--data", "real,text-only", "--out", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [read_run(tmp_path / "runs" / kind).data.realism for kind in ("real", "text-only")] == ["real", "text-only"]
    assert "/ first" in done.stdout


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [*VLMPROF, "run", *QUICK, "--steps", "500", "--out", str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_step(folder: Path, count: int = 2) -> psutil.Process:
    """The worker, once it has finished `count` steps."""
    deadline = time.monotonic() + 120
    journal = folder / "rank0.jsonl"
    while time.monotonic() < deadline:
        if journal.exists() and journal.read_text().count('"event": "step"') >= count:
            for process in psutil.process_iter(["cmdline"]):
                if str(folder / "job.json") in (process.info["cmdline"] or []):
                    return process
        time.sleep(0.05)
    raise AssertionError("the worker made no step")


def gone(process: psutil.Process, seconds: float = 8) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_run_leaves_a_whole_record_and_no_child(tmp_path: Path, sent: signal.Signals) -> None:
    launcher = start(tmp_path / "run")
    worker = wait_for_step(tmp_path / "run")
    launcher.send_signal(sent)
    launcher.communicate(timeout=20)
    assert launcher.returncode == 130
    assert gone(worker)
    record = read_run(tmp_path / "run")
    assert record.outcome.status == "interrupted"
    assert len(record.steps) >= 2


def test_no_child_survives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    launcher = start(tmp_path / "run")
    worker = wait_for_step(tmp_path / "run")
    launcher.kill()
    launcher.communicate(timeout=20)
    assert gone(worker)


def test_a_worker_that_is_killed_leaves_a_whole_record(tmp_path: Path) -> None:
    launcher = start(tmp_path / "run")
    wait_for_step(tmp_path / "run").kill()
    launcher.communicate(timeout=20)
    assert launcher.returncode == 3
    outcome = read_run(tmp_path / "run").outcome
    assert (outcome.status, outcome.failure_class, outcome.rank) == ("failed", "killed", 0)
    assert outcome.step is not None
    assert outcome.step >= 1


@pytest.mark.slow
def test_a_worker_that_stands_still_is_a_hang(tmp_path: Path) -> None:
    launcher = start(tmp_path / "run", "--timeout", "20")
    worker = wait_for_step(tmp_path / "run")
    os.kill(worker.pid, signal.SIGSTOP)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 3
    assert read_run(tmp_path / "run").outcome.failure_class == "hang"
    assert gone(worker)


def test_doctor_knows_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for name in ("torch", "megatron-core", "transformer-engine", "CUDA devices", "NVTX", "NCCL", "gloo", "git"):
        assert name in printed


def test_schema_is_json_schema_of_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "run"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert {"schema", "stages", "coverage", "outcome"} <= set(content["properties"])
