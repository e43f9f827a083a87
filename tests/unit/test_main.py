"""The program's own frame: what no command expected."""

import json
from pathlib import Path

import pytest

from vlmprof.commands.main import main
from vlmprof.errors import Exit


def test_a_fault_of_our_own_is_no_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python's own exit code for it would be 1."""

    def fault(*_: object) -> None:
        raise ZeroDivisionError

    record = tmp_path / "run.json"
    record.write_text(json.dumps({"schema": "vlmprof.run/1"}))
    monkeypatch.setattr("vlmprof.records.store.read_document", fault)
    assert main(["show", str(record)]) == Exit.NO_ANSWER
    printed = capsys.readouterr().err
    assert "ZeroDivisionError" in printed
    assert printed.splitlines()[-1].startswith("vlmprof: that is a fault of vlmprof's own")
