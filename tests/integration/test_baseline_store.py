"""The store under real processes: many that add at once, and one that is killed while it writes."""

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.runs import a_run, write_run
from vlmprof.records.baseline import add, baseline_path, find_baseline

ADD = [sys.executable, "-m", "vlmprof", "baseline", "add"]
SLOW_ADD = """
import os, sys
from vlmprof.records import store
real = os.fsync
def stop(handle):
    print("writing", flush=True)
    os.kill(os.getpid(), 19)  # SIGSTOP: the file is half-way, the lock is held
    real(handle)
os.fsync = stop
from vlmprof.commands.main import main
sys.exit(main(sys.argv[1:]))
"""


def run_folders(folder: Path, count: int, first: int = 0) -> list[str]:
    return [str(write_run(folder / f"run{n}", a_run(n))) for n in range(first, first + count)]


def test_adding_at_the_same_time_loses_nothing(tmp_path: Path) -> None:
    folders = run_folders(tmp_path, 8)
    command = ["--why", "together", "--who", "ada", "--store", str(tmp_path / "store")]
    started = [
        subprocess.Popen([*ADD, one, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for one in folders
    ]
    said = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0] * 8, said
    baseline = find_baseline(tmp_path / "store", a_run(0))
    assert sorted(run.created for run in baseline.runs) == [a_run(number).created for number in range(8)]
    assert [file.name for file in (tmp_path / "store").rglob("*") if file.is_file()] == ["tiny-0123abcd.json"]


def test_a_kill_in_the_middle_of_the_write_leaves_the_old_file_and_no_lock(tmp_path: Path) -> None:
    store = tmp_path / "store"
    now = datetime.now(UTC)
    add(store, [a_run(0)], "ada", "first", now)
    path = baseline_path(store, a_run(0))
    before = path.read_bytes()
    (folder,) = run_folders(tmp_path, 1, first=1)
    command = ["baseline", "add", folder, "--why", "second", "--store", str(store)]
    with subprocess.Popen([sys.executable, "-c", SLOW_ADD, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        waiting = subprocess.Popen([*ADD, folder, "--why", "third", "--store", str(store)], stdout=subprocess.DEVNULL)
        time.sleep(1.0)
        assert waiting.poll() is None  # the lock is held
        assert path.read_bytes() == before
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert waiting.wait(60) == 0
    assert [entry.why for entry in find_baseline(store, a_run(0)).entries] == ["first", "third"]
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # nothing is left of the one who was killed


@pytest.mark.slow
def test_kills_at_any_moment_leave_a_whole_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    add(store, [a_run(number) for number in range(20)], "ada", "first", datetime.now(UTC))
    folders = run_folders(tmp_path, 30, first=20)
    for number, folder in enumerate(folders):
        process = subprocess.Popen(
            [*ADD, folder, "--why", "x", "--store", str(store)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(0.15 + 0.02 * number)
        process.kill()
        process.wait()
        baseline = find_baseline(store, a_run(0))
        assert [run.created for run in baseline.runs][:20] == [a_run(one).created for one in range(20)]
