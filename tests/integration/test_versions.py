"""Every supported megatron-core release, and a checkout, run `tiny`: unpacked wheels, one run each."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RELEASES = ("0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")


@pytest.fixture(scope="session")
def unpacked() -> Path:
    """A folder that keeps unpacked releases from one test run to the next."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vlmprof" / "megatron-core"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def release(unpacked: Path, version: str) -> Path:
    target = unpacked / version
    if not target.is_dir():
        half = unpacked / f"{version}.{os.getpid()}"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-requires-python"]
        subprocess.run([*pip, "--target", str(half), f"megatron-core=={version}"], check=True)
        half.rename(target)
    return target


def run_tiny(megatron: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "vlmprof", "run", "--stage-breakdown", "--steps", "2", "--warmup", "1", "--json"]
    done = subprocess.run(
        [*command, "--megatron", str(megatron), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


@pytest.fixture(scope="session")
def reference(unpacked: Path) -> list[float]:
    return [step["loss"] for step in run_tiny(release(unpacked, "0.16.1"))["steps"]]


@pytest.mark.parametrize("version", RELEASES)
def test_a_release_runs_tiny_with_the_same_losses(unpacked: Path, version: str, reference: list[float]) -> None:
    path = release(unpacked, version)
    record = run_tiny(path)
    core = record["environment"]["packages"]["megatron-core"]
    assert core["version"].startswith(version)
    assert Path(core["path"]) == path / "megatron" / "core"
    assert record["missing"] == {}
    assert record["coverage"] >= 0.97
    assert [step["loss"] for step in record["steps"]] == pytest.approx(reference, rel=1e-4)


def test_a_checkout_is_recorded_with_its_commit(unpacked: Path, tmp_path: Path) -> None:
    copy = tmp_path / "Megatron-LM"
    copy.mkdir()
    subprocess.run(
        ["cp", "-r", str(release(unpacked, "0.17.1") / "megatron" / "."), str(copy / "megatron")], check=True
    )

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        return subprocess.run(
            ["git", *identity, "-C", str(copy), *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    git("add", "-A")
    git("commit", "--quiet", "-m", "a checkout")
    core = run_tiny(copy)["environment"]["packages"]["megatron-core"]
    assert core["path"] == str(copy / "megatron" / "core")
    assert core["commit"] == git("rev-parse", "HEAD")
