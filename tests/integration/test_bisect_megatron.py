"""The real harness: changes planted on top of a megatron-core release, each between harmless and broken commits."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_versions import RELEASES, release, unpacked
from tests.repositories import Repo, snapshot

__all__ = ["unpacked"]

ROUTER = Path("megatron/core/transformer/moe/router.py")
SMALL = ("--set", "model.encoder.num_layers=2", "--set", "model.decoder.num_layers=2", "--steps", "2", "--confirm", "1")
PLANT = """

import time as _time

_forward = TopKRouter.forward


def _planted(self, *arguments, **options):
    {body}


TopKRouter.forward = _planted
"""
PLANTS = {
    "crash": ("raise RuntimeError('planted in the router')", ()),
    "hang": ("_time.sleep(10000)", ("--timeout", "25")),
    "nan": (
        "scores, where = _forward(self, *arguments, **options)\n    return scores * float('nan'), where",
        ("--timeout", "200"),
    ),
    "oom": (
        "self._kept = torch.zeros(64 << 20, dtype=torch.uint8)\n    return _forward(self, *arguments, **options)",
        ("--memory-limit", "150MiB"),
    ),
}


def installed_release(folder: Path) -> Repo:
    """A repository that holds the installed megatron-core and nothing else."""
    repo = Repo(folder)
    found = importlib.util.find_spec("megatron.core")
    assert found is not None
    assert found.origin is not None
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(Path(found.origin).parent, folder / "megatron" / "core", ignore=ignored)
    repo.commit("a release")
    repo.git("tag", "release")
    return repo


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("symptom", PLANTS)
def test_a_planted_failure_is_found(symptom: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    body, options = PLANTS[symptom]
    repo = installed_release(tmp_path / "megatron-core")
    router = (repo.folder / ROUTER).read_text()
    root = (repo.folder / "megatron/core/__init__.py").read_text()
    repo.line(1)
    repo.commit("broken", {"megatron/core/__init__.py": root + "\nimport nothing_of_the_kind\n"})
    repo.commit("mended", {"megatron/core/__init__.py": root})
    culprit = repo.commit("speed up the router", {str(ROUTER): router + PLANT.format(body=body)})
    repo.line(2)
    before = snapshot(repo.folder)
    command = [sys.executable, "-m", "vlmprof", "bisect", "release..main", "--repo", str(repo.folder), "--json"]
    command += ["--symptom", symptom, *SMALL, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["answer"]["commits"][0]["sha"] == culprit, done.stderr
    assert document["answer"]["confirmation"]["revert"] == "confirmed"
    imported = {tuple(probe["observation"]["imported"]) for probe in document["probes"] if probe["verdict"] == "good"}
    assert imported == {("megatron/core/__init__.py",)}
    assert snapshot(repo.folder) == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_releases_with_a_planted_crash(
    unpacked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    repo = Repo(tmp_path / "megatron-core")
    commits = []
    for version in RELEASES:
        shutil.rmtree(repo.folder / "megatron", ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(release(unpacked, version) / "megatron", repo.folder / "megatron", ignore=ignored)
        if version >= "0.17":
            router = (repo.folder / ROUTER).read_text()
            (repo.folder / ROUTER).write_text(router + PLANT.format(body=PLANTS["crash"][0]))
        commits.append(repo.commit(f"megatron-core {version}"))
    command = [sys.executable, "-m", "vlmprof", "bisect", f"{commits[0]}..main", "--repo", str(repo.folder), "--json"]
    done = subprocess.run([*command, *SMALL], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)["answer"]
    assert answer["commits"][0]["subject"] == "megatron-core 0.17.1"
    assert any("planted in the router" in line for line in answer["evidence"]["bad"])
