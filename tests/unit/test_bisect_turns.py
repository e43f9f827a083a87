"""What a probe in turns reads off the runs of both sides, and what it leaves of them."""

from pathlib import Path

import pytest

from tests.unit.compared import a_run
from vlmprof.bisect.proved import check_origins
from vlmprof.bisect.turns import failed, origins, prune
from vlmprof.errors import MachineError
from vlmprof.records.run import Run
from vlmprof.records.store import dump_json


def leave(folder: str, run: Run) -> None:
    path = Path("ab", folder)
    (path / "logs").mkdir(parents=True)
    (path / "run.json").write_text(dump_json(run))
    (path / "logs" / "rank0.log").write_text("words")
    (path / "trace-rank0.json.gz").write_bytes(b"trace")


def run_of(tree: str) -> Run:
    return a_run(environment={"packages": {"megatron-core": {"version": "0.16.1", "path": f"{tree}/megatron/core"}}})


@pytest.fixture
def runs() -> Path:
    for tree in ("good-tree", "tree"):
        core = Path(tree, "megatron/core")
        core.mkdir(parents=True)
    here = Path.cwd()
    leave("a-01", run_of(str(here / "good-tree")))
    leave("b-01", run_of(str(here / "tree")))
    leave("b-02", run_of(str(here / "tree")))
    leave("b-02.unfinished-1", a_run(failed={"class": "crash"}))
    return Path("ab")


def test_each_side_is_proved_by_its_own_records(runs: Path) -> None:
    assert check_origins(origins(runs, "b"), Path("tree"), "") == ("megatron/core/__init__.py",)
    assert check_origins(origins(runs, "a"), Path("good-tree"), "") == ("megatron/core/__init__.py",)
    with pytest.raises(MachineError, match="not from the commit under test"):
        check_origins(origins(runs, "a"), Path("tree"), "")


def test_whose_run_failed(runs: Path) -> None:
    """One that was set aside was made again since."""
    assert not failed(runs, "a")
    assert not failed(runs, "b")
    leave("a-02", a_run(failed={"class": "oom"}))
    (runs / "b-03").mkdir()
    assert failed(runs, "a")
    assert not failed(runs, "b")


def test_records_are_left_and_nothing_else(runs: Path) -> None:
    prune(runs)
    assert sorted(path.name for path in runs.iterdir()) == ["a-01", "b-01", "b-02"]
    assert [path.name for path in runs.glob("*/*")] == ["run.json"] * 3
