"""Probes as real processes: what is left of them, what they imported, what their ending means."""

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

from tests.repositories import Repo
from vlmprof.bisect import guardian
from vlmprof.bisect.history import open_repository
from vlmprof.bisect.probe import Prober, cache_key
from vlmprof.bisect.proved import check_origins
from vlmprof.bisect.worktree import Worktree
from vlmprof.errors import MachineError
from vlmprof.records.bisect import Observation, Plan


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    repo.commit("first", {"megatron/core/__init__.py": "WHERE = 1\n", "src/mine.py": "X = 1\n"})
    return repo


def prober(repo: Repo, tmp_path: Path, *command: str, **fields: Any) -> Prober:
    repository = open_repository(repo.folder)
    plan = Plan(repository=str(repo.folder), range="a..b", old="a", new=repo.head, command=command, **fields)
    worktree = Worktree(tmp_path / "tree", repository)
    worktree.create(repo.head)
    return Prober(plan, worktree, [], tmp_path / "logs")


def measure(repo: Repo, tmp_path: Path, *command: str, **fields: Any) -> Observation:
    one = prober(repo, tmp_path, *command, **fields)
    one.prepare(repo.head)
    return one.measure("probe")


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


def alive(mark: str) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "status"])
        if mark in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def none_left(mark: str, seconds: float = 8) -> bool:
    deadline = time.monotonic() + seconds
    while alive(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(mark)


ENDINGS = [
    ("pass", 0, ""),
    ("raise SystemExit(3)", 3, ""),
    ("raise SystemExit(125)", 125, ""),
    ("raise ValueError('x')", 1, "crash"),
    ("import os; os.kill(os.getpid(), 9)", 137, "killed"),
    ("import os; os.kill(os.getpid(), 11)", 139, "crash"),
    ("import os; os.abort()", 134, "crash"),
]


@pytest.mark.parametrize(("program", "code", "failure_class"), ENDINGS)
def test_every_ending_is_told(repo: Repo, tmp_path: Path, program: str, code: int, failure_class: str) -> None:
    found = measure(repo, tmp_path, *python(program))
    assert (found.exit_code, found.failure_class) == (code, failure_class)


def test_it_runs_in_the_worktree_which_leads_the_path(repo: Repo, tmp_path: Path) -> None:
    program = (
        "import os, sys, mine, megatron.core; assert os.getcwd() == sys.argv[1], os.getcwd();"
        "assert mine.__file__.startswith(sys.argv[1]); assert os.path.isdir(os.environ['VLMPROF_OUT'])"
    )
    found = measure(repo, tmp_path, *python(program), "{worktree}")
    assert found.exit_code == 0, Path(found.log).read_text()
    assert found.imported == ("megatron/core/__init__.py",)


def test_what_is_never_imported_is_empty(repo: Repo, tmp_path: Path) -> None:
    assert measure(repo, tmp_path, *python("pass")).imported == ()


def test_an_import_from_elsewhere_aborts(repo: Repo, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "megatron" / "core"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'elsewhere')!r}); import megatron.core"
    with pytest.raises(MachineError, match=r"imported megatron\.core from .*elsewhere"):
        measure(repo, tmp_path, *python(program))
    with pytest.raises(MachineError, match="imported csv from"):
        measure(repo, tmp_path, *python("import csv"), prove="csv")
    assert check_origins([str(other)], repo.folder / "src", "") == ()  # no megatron.core there: nothing to prove


def test_the_users_own_sitecustomize_runs_too(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.from_the_user = 1\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    program = (
        "import sys, megatron.core; assert from_the_user == 1; assert 'site/' in sys.modules['sitecustomize'].__file__"
    )
    found = measure(repo, tmp_path, *python(program))
    assert found.exit_code == 0, Path(found.log).read_text()
    assert found.imported


def test_a_checkout_cannot_shadow_what_watches_it(repo: Repo, tmp_path: Path) -> None:
    repo.commit("shadows", {"vlmprof/__init__.py": "raise SystemExit(99)", "signal.py": "raise SystemExit(98)"})
    assert measure(repo, tmp_path, "true").exit_code == 0


def test_a_time_limit_is_a_hang_and_leaves_no_process(repo: Repo, tmp_path: Path) -> None:
    mark = "161803.25"
    spawn = (
        "import subprocess, sys, time; subprocess.Popen(['sleep', sys.argv[1]], start_new_session=True); time.sleep(99)"
    )
    found = measure(repo, tmp_path, *python(spawn), mark, timeout=1)
    assert (found.exit_code, found.failure_class) == (None, "hang")
    assert 1 <= found.seconds < 8
    assert none_left(mark)


def test_what_a_command_leaves_running_is_ended(repo: Repo, tmp_path: Path) -> None:
    mark = "271828.25"
    daemon = f"subprocess.Popen(['sleep', '{mark}'], start_new_session=True)"
    began = time.monotonic()
    assert measure(repo, tmp_path, *python(f"import subprocess; {daemon}")).exit_code == 0
    assert time.monotonic() - began < 5
    assert not alive(mark)


def test_a_command_that_ignores_sigterm_is_killed(repo: Repo, tmp_path: Path) -> None:
    mark = "vlmprof-test-stubborn"
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(99)"
    assert measure(repo, tmp_path, *python(program), mark, timeout=0.7).failure_class == "hang"
    assert none_left(mark)


def test_nothing_outlives_a_killed_parent() -> None:
    mark = "314159.25"
    program = (
        "import subprocess, sys, time, os\n"
        f"subprocess.Popen([sys.executable, '-I', {guardian.__file__!r}, str(os.getpid()), 'sh', '-c',"
        f" 'setsid sleep {mark} & sleep {mark}; true'])\ntime.sleep(99)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 10
    while len(alive(mark)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(alive(mark)) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert none_left(mark)


def test_the_set_up_is_redone_only_when_what_it_names_changed(repo: Repo, tmp_path: Path) -> None:
    commits = [repo.commit("one", setup_cfg="1"), repo.commit("two", notes="x"), repo.commit("three", setup_cfg="2")]
    count = tmp_path / "count"
    setup = f"echo x >> {count}; mkdir -p built; cp setup_cfg built/copy"
    one = prober(repo, tmp_path, "test", "-f", "built/copy", setup=setup, setup_depends=("setup_c*",))
    runs = []
    for commit in commits:
        one.prepare(commit)
        assert one.measure("probe").exit_code == 0
        runs.append(len(count.read_text().split()))
    assert runs == [1, 1, 2]


def test_a_set_up_that_fails_is_no_verdict_on_the_commit(repo: Repo, tmp_path: Path) -> None:
    found = measure(repo, tmp_path, "true", setup="exit 4")
    assert found.blocked == "the set-up failed with code 4"


def test_a_script_that_is_not_there_yet(repo: Repo, tmp_path: Path) -> None:
    assert "not there at this commit" in measure(repo, tmp_path, "./later.sh").blocked


def test_a_record_that_the_command_leaves_is_read(repo: Repo, tmp_path: Path) -> None:
    record = {
        "schema": "vlmprof.run/1",
        "created": "2026-01-01T00:00:00+00:00",
        "workload": {"name": "mine"},
        "data": {"realism": "unknown"},
        "outcome": {"status": "failed", "class": "nan", "message": "loss is nan", "step": 3},
    }
    program = (
        f"import os, pathlib; pathlib.Path(os.environ['VLMPROF_OUT'], 'run.json').write_text({json.dumps(record)!r})"
    )
    found = measure(repo, tmp_path, *python(program))
    assert (found.failure_class, found.message) == ("nan", "loss is nan")


def test_equal_size_sources_of_one_second_are_told_apart(repo: Repo, tmp_path: Path) -> None:
    """A stale .pyc would be: bytecode is matched by the second and size of its source."""
    ones = [repo.commit(f"value {i}", mine_py=f"VALUE = {i}\n") for i in range(4)]
    one = prober(repo, tmp_path, *python("import mine; raise SystemExit(10 + mine.VALUE)"))
    codes = []
    for commit in ones:
        one.prepare(commit)
        codes.append(one.measure("probe").exit_code)
    assert codes == [10, 11, 12, 13]


def test_the_cache_key_follows_what_matters(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(repository="r", range="a..b", old="a", new="b", command=("x",))
    key = cache_key(plan, "tree")
    assert key == cache_key(plan.model_copy(update={"range": "c..d", "symptom": "oom", "confirm": 9}), "tree")
    assert key != cache_key(plan, "tree2")
    for change in ({"command": ("y",)}, {"timeout": 3.0}, {"setup": "make"}, {"prove": "x"}):
        assert key != cache_key(plan.model_copy(update=change), "tree")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert key != cache_key(plan, "tree")
