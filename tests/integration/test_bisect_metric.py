"""`vlmprof bisect --symptom METRIC`: what grew is found by holding every commit against the good end."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.repositories import Repo, snapshot
from vlmprof.commands.main import main

ROOT = Path(__file__).parents[2]
PROBE = f"""
import os, pathlib, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.unit.compared import a_run
from vlmprof.records.store import dump_json

size, fourth_loss = pathlib.Path("numbers").read_text().split()
if size == "broken":
    sys.exit("Traceback (most recent call last):\\nRuntimeError: broken")
run = a_run(saved=int(size), losses=(3.0, 2.9, 2.8, float(fourth_loss), 2.6, 2.5))
pathlib.Path(os.environ["VLMPROF_OUT"], "run.json").write_text(dump_json(run))
"""
"""Leaves a record, as a script with `vlmprof.attach` does."""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """Activations grow a little, then by a third, then the losses part."""
    repo = Repo(tmp_path / "repo")
    repo.commit("first", numbers="10000 2.7")
    repo.git("tag", "v1")
    repo.commit("a little", numbers="10050 2.7")
    repo.commit("broken", numbers="broken 0")
    repo.commit("grow", numbers="13500 2.7")
    repo.git("tag", "grown")
    repo.line(2)
    repo.commit("other numerics", numbers="13500 2.9")
    repo.git("tag", "parted")
    repo.line(1)
    repo.commit("shrink", numbers="10000 2.9")
    (tmp_path / "probe.py").write_text(PROBE)
    return repo


def hunt(
    capsys: pytest.CaptureFixture[str], repo: Repo, *arguments: str, probe: str = "probe.py"
) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, str(repo.folder.parent / probe)]
    before = snapshot(repo.folder)
    code = main(["bisect", "--repo", str(repo.folder), "--json", "--confirm", "0", *arguments, "--", *command])
    assert snapshot(repo.folder) == before
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else {"error": printed.err}


def sha(repo: Repo, name: str) -> str:
    return repo.git("rev-parse", name)


def test_bytes_that_a_command_records(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = hunt(capsys, repo, "v1..main~1", "--symptom", "saved_activations")
    answer = document["answer"]
    assert (code, answer["kind"]) == (1, "found-set")  # the broken one before it cannot be tested
    assert [commit["subject"] for commit in answer["commits"]] == ["broken", "grow"]
    first, second = document["probes"][:2]
    assert (first["role"], first["held"]["verdict"]) == ("good end", "same")
    assert (second["role"], second["held"]["change"]) == ("bad end", pytest.approx(0.35))
    assert "decoder.experts" in second["held"]["place"]
    by_subject = {probe["commit"]["subject"]: probe for probe in document["probes"]}
    assert by_subject["a little"]["verdict"] == "good"  # 0.5 % of 35 %
    assert "it fails, so nothing is known of saved_activations" in by_subject["broken"]["reason"]


def test_a_threshold_of_ones_own(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("v1..v1~0", "--symptom", "saved_activations", "--threshold", "0.1%")
    code, document = hunt(capsys, repo, options[0].replace("v1~0", "grown~2"), *options[1:])
    assert (code, document["answer"]["commits"][0]["subject"]) == (1, "a little")


def test_losses_that_part(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = hunt(capsys, repo, "grown..main", "--symptom", "losses", "--confirm", "1")
    answer = document["answer"]
    assert (code, answer["kind"], answer["commits"][0]["subject"]) == (1, "found", "other numerics")
    assert "step 9" in answer["evidence"]["bad"][0]


def test_where_it_shrank(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = hunt(capsys, repo, "grown..main", "--symptom", "memory_peak", "--find-fix")
    assert (code, document["answer"]["commits"][0]["subject"]) == (1, "shrink")
    assert document["probes"][0]["role"] == "bad end"  # the one without the symptom is the yardstick


def test_ends_that_are_alike_or_tell_nothing(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = hunt(capsys, repo, "grown..parted", "--symptom", "memory_peak")
    assert (code, document["answer"]["kind"]) == (4, "ends-not-confirmed")
    assert "is not worse in memory_peak than the other end" in document["answer"]["text"]
    (repo.folder.parent / "silent.py").write_text("")
    code, document = hunt(capsys, repo, "grown..main", "--symptom", "memory_peak", probe="silent.py")
    assert code == 4
    assert "left no record in $VLMPROF_OUT" in document["answer"]["text"]
    assert len(document["probes"]) == 1
    (repo.folder.parent / "half.py").write_text(
        "import os, pathlib\npathlib.Path(os.environ['VLMPROF_OUT'], 'run.json').write_text('{')\n"
    )
    code, document = hunt(capsys, repo, "grown..main", "--symptom", "memory_peak", probe="half.py")
    assert (code, len(document.get("probes", []))) == (4, 1)


def test_a_resumed_one_measures_again_what_is_gone(
    repo: Repo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record that all others are held against was cleared away while the bisect was interrupted."""
    hunt(capsys, repo, "v1..grown", "--symptom", "saved_activations")
    document = next((tmp_path / "state").glob("vlmprof/*/bisect.json"))
    unfinished = json.loads(document.read_text())
    del unfinished["answer"]
    unfinished["probes"] = unfinished["probes"][:2]
    Path(unfinished["probes"][0]["observation"]["record"]).unlink()
    document.write_text(json.dumps(unfinished))
    code = main(["bisect", "--repo", str(repo.folder), "--json", "--resume"])
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert (code, [commit["subject"] for commit in answer["commits"]]) == (1, ["broken", "grow"])


def test_what_was_measured_is_known_again(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    hunt(capsys, repo, "v1..main~1", "--symptom", "saved_activations")
    code, document = hunt(capsys, repo, "v1..grown", "--symptom", "memory_peak")
    assert code == 1
    assert [probe["cached"] for probe in document["probes"] if probe["role"] in ("good end", "bad end")] == [True] * 2


WRONG = [
    (("--symptom", "memory"), "did you mean 'memory_peak'"),
    (("--threshold", "3%"), "name one with --symptom"),
    (("--symptom", "oom", "--rounds", "4"), "name one with --symptom"),
    (("--symptom", "losses", "--threshold", "3%"), "a metric that has a size"),
    (("--symptom", "flops", "--threshold", "much"), "'much' is not a share"),
    (("--symptom", "flops", "--threshold", "120%"), "'120%' is not a share"),
    (("--symptom", "step_ms"), "in turns, which takes a workload of vlmprof's"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_wrong_input_is_one_sentence(
    repo: Repo, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    code, told = hunt(capsys, repo, "v1..main", *arguments)
    assert code == 2
    assert sentence in told["error"]
    assert told["error"].count("\n") == 1
