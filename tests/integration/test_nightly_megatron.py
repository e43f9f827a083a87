"""Whole nights on synthetic commits over a megatron-core release: with a planted regression, without, and killed."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_bisect_megatron import PLANT, ROUTER, installed_release
from tests.repositories import Repo, snapshot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CACHE = "self._seen = torch.zeros(1 << 20)\n    return _forward(self, *arguments, **options)"
SMALL = """
[workloads.small]
workload = "tiny"
set = ["model.encoder.num_layers=2", "model.decoder.num_layers=2", "data.seq_length=192", "global_batch_size=2"]
steps = 2
warmup = 1
stage_breakdown = true
timeout = 120
confirm = 1
"""
VARYING = ("created", "finished", "date", "since_date", "seconds")


def planted(folder: Path, body: str = CACHE) -> tuple[Repo, str]:
    """Tags: release (good), bad (two harmless commits after the culprit), fixed. Returns the culprit, too."""
    repo = installed_release(folder)
    router = (folder / ROUTER).read_text()
    repo.line(2)
    culprit = repo.commit("cache what the router saw", {str(ROUTER): router + PLANT.format(body=body)})
    repo.line(2)
    repo.git("tag", "bad")
    repo.commit("drop the cache", {str(ROUTER): router})
    repo.git("tag", "fixed")
    return repo, culprit


def command(repo: Repo, ref: str, out: str, suite: str) -> list[str]:
    options = ["--suite", suite, "--target", str(repo.folder), "--ref", ref, "--state", "state", "--out", out]
    return [sys.executable, "-m", "vlmprof", "nightly", *options]


def spend(repo: Repo, ref: str, out: str, suite: str, code: int) -> dict[str, Any]:
    done = subprocess.run(command(repo, ref, out, suite), capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr + done.stdout
    return result(out)


def result(out: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(out, "result.json").read_text())
    return {part["name"]: part for part in document["workloads"]}


def kill_after(command: list[str], lines: int, moment: float) -> None:
    """SIGKILL `moment` seconds after its so many-th line on stderr."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for _ in range(lines):
            assert process.stderr.readline()
        time.sleep(moment)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)


def test_the_shipped_suite_names_the_commit_and_closes_the_matter_when_it_is_fixed(tmp_path: Path) -> None:
    repo, culprit = planted(tmp_path / "megatron-core")
    before = snapshot(repo.folder)
    began = time.monotonic()
    first = spend(repo, "release", "first", "cpu", 0)
    assert {part["status"] for part in first.values()} == {"first"}

    began_bad = time.monotonic()
    kill_after(command(repo, "bad", "second", "cpu"), 2, 4.0)  # while the second workload trains
    second = spend(repo, "bad", "second", "cpu", 1)
    took = time.monotonic() - began_bad
    assert took < 15 * 60
    print(f"the night with the regression took {took:.0f} s")
    for name in ("tiny", "recompute"):
        part = second[name]
        assert part["status"] == "regressed"
        assert "memory_peak" in part["matter"]["symptom"]
        assert (part["answer"]["kind"], part["answer"]["commits"][0]["sha"]) == ("found", culprit)
    assert second["tiny"]["answer"]["confirmation"]["revert"] == "confirmed"
    assert second["recompute"]["matter"]["id"] == second["tiny"]["matter"]["id"]
    assert culprit[:12] in Path("second/summary.md").read_text()
    assert "cache what the router saw" in Path("second/report.html").read_text()

    third = spend(repo, "fixed", "third", "cpu", 0)
    for name in ("tiny", "recompute"):
        assert third[name]["status"] == "fixed"
        assert third[name]["matter"]["id"] == second[name]["matter"]["id"]
        assert third[name]["matter"]["closed_by"]["subject"] == "drop the cache"
    assert not any(known["matters"] for known in json.loads(Path("state/state.json").read_text())["workloads"].values())
    assert snapshot(repo.folder) == before
    print(f"three nights took {time.monotonic() - began:.0f} s")


def files(out: str) -> set[str]:
    return {str(path.relative_to(out)) for path in Path(out).rglob("*") if path.is_file()}


def settled(document: Any) -> Any:
    """Without times and dates."""
    if isinstance(document, dict):
        return {key: settled(value) for key, value in document.items() if key not in VARYING}
    return [settled(value) for value in document] if isinstance(document, list) else document


def test_killed_and_started_again_it_leaves_the_same_folder(tmp_path: Path) -> None:
    Path("small.toml").write_text(SMALL)
    repo, culprit = planted(tmp_path / "megatron-core")
    spend(repo, "release", "first", "small.toml", 0)
    shutil.copytree("state", "kept")
    whole = spend(repo, "bad", "whole", "small.toml", 1)
    state = json.loads(Path("state/state.json").read_text())
    shutil.rmtree("state")
    Path("kept").rename("state")

    killed = command(repo, "bad", "killed", "small.toml")
    kill_after(killed, 1, 3.0)  # in the run
    kill_after(killed, 2, 1.0)  # in the bisect's first probe
    kill_after(killed, 3, 3.0)  # in its next
    again = spend(repo, "bad", "killed", "small.toml", 1)
    answer = again["small"]["answer"]
    assert (answer["kind"], answer["commits"][0]["sha"]) == ("found", culprit)
    assert settled(again) == settled(whole)
    assert files("killed") == files("whole")
    assert settled(json.loads(Path("state/state.json").read_text())) == settled(state)
    assert not Path("state/trees").exists()
    refused = subprocess.run(killed, capture_output=True, text=True, check=False)
    assert (refused.returncode, "finished night" in refused.stderr) == (2, True)


def test_interrupted_it_says_how_to_go_on(tmp_path: Path) -> None:
    Path("small.toml").write_text(SMALL)
    repo, _ = planted(tmp_path / "megatron-core")
    for sent in (signal.SIGINT, signal.SIGTERM):
        started = command(repo, "release", "night", "small.toml")
        with subprocess.Popen(
            started,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's & has it ignored
        ) as process:
            assert process.stderr
            process.stderr.readline()
            time.sleep(2)
            process.send_signal(sent)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (130, "")
        assert "interrupted: the same command goes on" in err
        assert "Traceback" not in err
        assert "outcome" not in result("night")["small"]
    assert spend(repo, "release", "night", "small.toml", 0)["small"]["status"] == "first"


def test_a_range_is_bisected_by_hand_and_nothing_is_remembered(tmp_path: Path) -> None:
    Path("small.toml").write_text(SMALL.replace("confirm = 1", "confirm = 0"))
    repo, culprit = planted(tmp_path / "megatron-core", "raise RuntimeError('planted in the router')")
    by_hand = [*command(repo, "main", "night", "small.toml"), "--bisect", "release..bad"]
    done = subprocess.run(by_hand, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    part = result("night")["small"]
    assert (part["status"], part["answer"]["commits"][0]["sha"]) == ("failed", culprit)
    assert not Path("state/state.json").exists()


def test_a_slow_down_is_found_by_running_both_in_turns_and_bisected(tmp_path: Path) -> None:
    Path("small.toml").write_text(SMALL.replace("confirm = 1", "confirm = 0\nrounds = 3\nslowdown = 0.5"))
    repo, culprit = planted(
        tmp_path / "megatron-core", "_time.sleep(0.3)\n    return _forward(self, *arguments, **options)"
    )
    parent = repo.git("rev-parse", f"{culprit}~1")
    first = spend(repo, parent, "first", "small.toml", 0)
    assert "ab" not in first["small"] or not first["small"]["ab"]
    second = spend(repo, culprit, "second", "small.toml", 1)["small"]
    assert (second["status"], second["matter"]["kind"]) == ("regressed", "time")
    assert (second["answer"]["kind"], second["answer"]["commits"][0]["sha"]) == ("found", culprit)
    ab = json.loads(Path("second", second["ab"]).read_text())
    assert next(row for row in ab["metrics"] if row["name"] == "step_ms")["verdict"] == "worse"
    bisect = json.loads(Path("second", second["bisect"]).read_text())
    anchor, *measured = bisect["probes"]
    assert (anchor["role"], anchor["verdict"], anchor["commit"]["sha"]) == ("good end", "good", parent)
    assert measured
    assert all(probe["observation"]["imported"] == ["megatron/core/__init__.py"] for probe in measured)
    assert all(probe["held"]["change"] > 0.5 for probe in measured)
