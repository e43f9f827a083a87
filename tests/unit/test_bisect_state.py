"""The state on disk: whole, versioned, locked."""

import json
from pathlib import Path

import pytest

from vlmprof.bisect.state import State, state_folder
from vlmprof.errors import UserError
from vlmprof.records.bisect import Bisect, CommitRecord, Observation, Plan, Probe

PLAN = Plan(repository="r", range="a..b", old="a", new="b", command=("make",))
PROBE = Probe(
    commit=CommitRecord(sha="b", subject="s"), role="bad end", verdict="bad", reason="x", observation=Observation()
)
DOCUMENT = Bisect(created="2026-01-01T00:00:00+00:00", plan=PLAN, probes=(PROBE,))


@pytest.fixture
def state(tmp_path: Path) -> State:
    (tmp_path / "state" / "cache").mkdir(parents=True)
    return State(tmp_path / "state")


def test_what_is_written_is_read_again(state: State) -> None:
    assert state.read() is None
    state.write(DOCUMENT)
    assert state.read() == DOCUMENT
    assert state.unfinished() == DOCUMENT
    assert json.loads((state.folder / "bisect.json").read_text())["schema"] == "vlmprof.bisect/1"


def test_a_newer_or_damaged_state_is_said(state: State) -> None:
    (state.folder / "bisect.json").write_text('{"schema": "vlmprof.bisect/2"}')
    with pytest.raises(UserError, match=r"vlmprof\.bisect/2, newer"):
        state.read()
    for text in ('{"schema": "vlmprof.bisect/1"}', "{", "[]"):
        (state.folder / "bisect.json").write_text(text)
        with pytest.raises(UserError, match="--abort clears it"):
            state.read()
    assert state.tell(abort=True) == "dropped; what was measured is kept for later bisects"
    assert state.read() is None


def test_measurements_outlive_a_bisect_but_not_what_may_pass(state: State) -> None:
    seen = Observation(exit_code=1, failure_class="oom", signature="s", seconds=1.5)
    state.remember("k", seen)
    state.remember("blocked", Observation(blocked="no submodule"))
    state.remember("hardware", Observation(exit_code=1, failure_class="hardware"))
    state.write(DOCUMENT)
    state.clear()
    assert state.read() is None
    assert state.recall("k") == seen
    assert state.recall("blocked") is None
    assert state.recall("hardware") is None


def test_the_folder_is_held_by_one(state: State) -> None:
    with state.locked(), pytest.raises(UserError, match="is running"), State(state.folder).locked():
        raise AssertionError
    with state.locked():
        pass


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert state_folder("key") == Path("/somewhere/vlmprof/key")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_folder("key") == Path.home() / ".local/state/vlmprof/key"
