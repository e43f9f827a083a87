"""SIGKILL at random moments: the user's repository is as it was, no process is left, and resuming repeats nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.repositories import Repo, snapshot
from vlmprof.commands.main import main

PROBE = """
import os, pathlib, subprocess, sys, time
journal = pathlib.Path(sys.argv[1])
def tell(what):
    with journal.open("a") as file:
        file.write(f"{what} {subprocess.check_output(['git', 'rev-parse', 'HEAD'], text=True).strip()}\\n")
tell("begin")
subprocess.Popen(["sleep", sys.argv[2]], start_new_session=True)
time.sleep(0.1)
tell("end")
sys.exit(pathlib.Path("bad").exists())
"""


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    repo = Repo(tmp_path / "repo")
    repo.line(9)
    repo.commit("plant it", bad="1")
    repo.line(9)
    repo.git("branch", "-q", "mine")
    (repo.folder / "notes0").write_text("not committed")
    return repo


def left(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if mark in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def wait_until_gone(mark: str) -> None:
    deadline = time.monotonic() + 10
    while left(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left(mark)


def start(repo: Repo, journal: Path, mark: str) -> list[str]:
    base = [sys.executable, "-m", "vlmprof", "bisect", "--repo", str(repo.folder), "--json"]
    return [*base, f"{repo.git('rev-list', '--max-parents=0', 'main')}..main", "--", *probe_command(journal, mark)]


def probe_command(journal: Path, mark: str) -> list[str]:
    return [sys.executable, "-c", PROBE, str(journal), mark]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_killed_again_and_again(repo: Repo, tmp_path: Path, seed: int) -> None:
    rng, mark, journal = random.Random(seed), f"9{seed}000.125", tmp_path / "journal"
    before = snapshot(repo.folder)
    begin = start(repo, journal, mark)
    resume = [*begin[: begin.index("--json") + 1], "--resume"]
    kills, command = 0, begin
    state = tmp_path / "state" / "vlmprof"
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, _ = process.communicate(timeout=rng.uniform(0.2, 1.5) if kills < 5 else 60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            wait_until_gone(mark)
            assert snapshot(repo.folder) == before
            command = resume if list(state.glob("*/bisect.json")) else begin
            continue
        break
    assert process.returncode == 1
    answer = json.loads(out)["answer"]
    assert answer["commits"][0]["subject"] == "plant it"
    assert answer["confirmation"]["revert"] == "confirmed"
    wait_until_gone(mark)
    assert snapshot(repo.folder) == before
    assert kills >= 3
    lines = [line.split() for line in journal.read_text().splitlines()]
    ended = Counter(sha for what, sha in lines if what == "end")
    recorded = Counter(probe["commit"]["sha"] for probe in json.loads(out)["probes"])
    # one that ended just before the kill, not yet written down, is the only kind that may run again
    assert sum((ended - recorded).values()) <= kills
    assert all(ended[sha] >= recorded[sha] for sha in recorded)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(repo: Repo, tmp_path: Path, sent: signal.Signals) -> None:
    mark, journal = f"8{int(sent)}000.125", tmp_path / "journal"
    command = start(repo, journal, mark)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while (not journal.exists() or journal.read_text().count("begin") < 3) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(sent)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "--resume goes on" in err
    assert "Traceback" not in err
    assert not left(mark)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is unfinished" in done.stderr
    done = subprocess.run([*command[: command.index("--json") + 1], "--resume"], capture_output=True, check=False)
    assert done.returncode == 1
    ended = Counter(line.split()[1] for line in journal.read_text().splitlines() if line.startswith("end"))
    recorded = Counter(probe["commit"]["sha"] for probe in json.loads(done.stdout)["probes"])
    assert ended == recorded


def test_one_bisect_of_a_repository_at_a_time(repo: Repo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark, journal = "7000.125", tmp_path / "journal"
    process = subprocess.Popen(start(repo, journal, mark), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not journal.exists():
            time.sleep(0.02)
        for arguments in (["main~5..main", "--", "true"], ["--resume"], ["--abort"]):
            assert main(["bisect", "--repo", str(repo.folder), *arguments]) == 2
            assert "is running" in capsys.readouterr().err
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.wait(20)
    assert main(["bisect", "--repo", str(repo.folder), "--abort"]) == 0
