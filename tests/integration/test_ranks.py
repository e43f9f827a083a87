"""Two real ranks: the losses of one, the spread over ranks, the user's own launcher; every way that one can fail."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from vlmprof.commands.main import main
from vlmprof.records.run import Run
from vlmprof.records.store import read_run

VLMPROF = [sys.executable, "-m", "vlmprof"]
SMALL = ["--set", "model.encoder.num_layers=2", "--set", "model.decoder.num_layers=2", "--warmup", "1"]
QUICK = [*SMALL, "--steps", "2"]
PLANT = str(Path(__file__).with_name("plant"))


def vlmprof(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [PLANT, os.environ.get("PYTHONPATH", "")])) if "PLANT" in environment else ""
    env = {**os.environ, **environment, **({"PYTHONPATH": path} if path else {})}
    return subprocess.run([*VLMPROF, *arguments], capture_output=True, text=True, timeout=280, check=False, env=env)


def losses(run: Run) -> list[float | None]:
    return [step.loss for step in run.steps]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("one") / "run"
    assert vlmprof("run", *QUICK, "--stage-breakdown", "--out", str(folder)).returncode == 0
    return read_run(folder)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param([], marks=pytest.mark.slow),
        ["ep=2", "dispatcher=alltoall"],
        pytest.param(["ep=2", "dispatcher=allgather"], marks=pytest.mark.slow),
    ],
)
def test_two_ranks_train_as_one(tmp_path: Path, one_rank: Run, layout: list[str]) -> None:
    settings = [part for assignment in layout for part in ("--set", assignment)]
    done = vlmprof("run", "--nproc", "2", *QUICK, *settings, "--stage-breakdown", "--out", "run")
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    assert losses(run) == pytest.approx(losses(one_rank), rel=1e-4)
    for one, two in zip(one_rank.steps, run.steps, strict=True):
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)
    assert run.environment is not None
    assert run.environment.platform == "cpu-x2"
    assert run.effective_work == one_rank.effective_work
    assert [row.rank for row in run.ranks] == [0, 1]
    for row in run.stages[1:]:
        assert row.ranks is not None
        assert row.ranks.min <= row.ranks.median <= row.ranks.max
        assert row.ranks.slowest in (0, 1)
    patches = [row.patches for row in run.ranks]
    assert run.effective_work is not None
    assert sum(patches) == pytest.approx(run.effective_work.image_patches)
    assert run.coverage is not None
    assert run.coverage > 0.9
    assert "over ranks, ms" in done.stdout
    sent = run.router.bytes_sent.value
    assert sent > 0 if layout else sent == 0


def test_the_users_own_torchrun(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vlmprof"]
    done = subprocess.run([*command, "run", *QUICK, "--json"], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)  # rank 0's, and nothing of rank 1's
    assert [row["rank"] for row in record["ranks"]] == [0, 1]
    assert record["environment"]["platform"] == "cpu-x2"
    assert len(record["steps"]) == 3
    assert len(list((tmp_path / "vlmprof-runs").iterdir())) == 1


def test_srun() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = []
    for rank in range(2):
        env = {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
            "SLURM_NTASKS": "2",
            "SLURM_JOB_ID": "41",
            "SLURM_STEP_ID": "0",
        }
        ranks.append(
            subprocess.Popen(
                [*VLMPROF, "run", *QUICK],
                env={**os.environ, **env, "MASTER_PORT": port},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    printed = [process.communicate(timeout=200)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert "cpu-x2" in printed[0]
    assert printed[1] == ""
    (folder,) = Path("vlmprof-runs").iterdir()
    assert folder.name.startswith("slurm41.0-tiny-")
    assert len(read_run(folder).ranks) == 2


def test_srun_over_nodes_needs_an_address(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("SLURM_PROCID", "0"), ("SLURM_NTASKS", "16"), ("SLURM_NNODES", "2"), ("SLURM_STEP_ID", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert main(["run"]) == 2
    assert "export MASTER_ADDR=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--nproc", "3"], "does not divide by 3 ranks"),
        (["--set", "ep=2"], "use --nproc 2 or a multiple"),
        (["--set", "dp=2"], "layout.dp=2 needs 2 ranks, but there are 1: use --nproc 2"),
        (["--nproc", "2", "--set", "ep=3"], "does not divide by layout.ep 3"),
    ],
)
def test_a_layout_that_does_not_fit_is_one_sentence(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str], working_folder: Path
) -> None:
    assert main(["run", *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert list(working_folder.iterdir()) == []


def test_a_port_in_use_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], working_folder: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        assert main(["run", "--nproc", "2"]) == 5
    assert "MASTER_PORT" in capsys.readouterr().err
    assert list(working_folder.iterdir()) == []


def no_worker_left(folder: Path) -> bool:
    mine = str(folder / "job.json")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        left = [p for p in psutil.process_iter(["cmdline"]) if mine in (p.info["cmdline"] or []) and _runs(p)]
        if not left:
            return True
        time.sleep(0.1)
    return False


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


FAILURES: list[tuple[str, list[str], dict[str, Any]]] = [
    ("nan", [], {"class": "nan", "stage": "decoder.router", "phase": "forward"}),
    ("raise", [], {"class": "crash", "stage": "decoder.router", "phase": "forward"}),
    ("sigkill", [], {"class": "killed"}),
    ("segfault", [], {"class": "crash"}),
    ("sigstop", ["--timeout", "12"], {"class": "hang", "stage": "decoder.router", "phase": "forward"}),
    ("sleep", ["--timeout", "12"], {"class": "hang", "stage": "decoder.router", "phase": "forward"}),
    ("host-memory", [], {"class": "host-oom", "stage": "decoder.router"}),
    ("memory", ["--memory-limit", "200MiB"], {"class": "oom", "stage": "decoder.router", "phase": "forward"}),
    ("disk", [], {"class": "setup"}),
]


EVERYDAY = ("nan", "sigkill")


@pytest.mark.parametrize(
    ("plant", "arguments", "expected"),
    [pytest.param(*row, id=row[0], marks=() if row[0] in EVERYDAY else pytest.mark.slow) for row in FAILURES],
)
def test_a_failure_of_one_rank_is_found_there(
    tmp_path: Path, plant: str, arguments: list[str], expected: dict[str, Any]
) -> None:
    began = time.monotonic()
    done = vlmprof(
        "run", "--nproc", "2", *SMALL, "--steps", "400", "--out", str(tmp_path / "run"), *arguments, PLANT=plant
    )
    seconds = time.monotonic() - began
    assert done.returncode == 3, done.stderr
    assert no_worker_left(tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    outcome = record["outcome"]
    assert outcome["status"] == "failed"
    assert outcome["rank"] == 1
    assert outcome["step"] >= 1
    assert {name: outcome.get(name) for name in expected} == expected
    assert record["steps"]
    assert record["environment"]["ranks"] == 2
    assert f"failed: {expected['class']}" in done.stdout
    assert seconds < 12 + 12 + (12 if "--timeout" in arguments else 0)  # start-up, ten seconds to find it, the deadline
    if plant == "sigstop":
        assert any("rank 1: stopped, in decoder.router (forward)" in line for line in outcome["evidence"])
        assert any("rank 0:" in line for line in outcome["evidence"])


@pytest.mark.slow
def test_a_full_disk_still_leaves_a_whole_record(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1200k", "none", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small filesystem needs root")
    try:
        done = vlmprof("run", *SMALL, "--steps", "400", "--stage-breakdown", "--out", str(small / "run"))
        assert done.returncode == 3, done.stdout + done.stderr
        outcome = read_run(small / "run").outcome
        assert (outcome.failure_class, outcome.message) == ("setup", "no space left on the disk of the run folder")
        assert read_run(small / "run").steps
    finally:
        subprocess.run(["umount", str(small)], check=True)
