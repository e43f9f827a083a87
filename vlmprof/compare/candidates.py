"""What an A/B comparison runs: a Megatron checkout, a release of megatron-core, or another Python environment."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from vlmprof.errors import MachineError, UserError
from vlmprof.launch.folders import resolve_megatron

__all__ = ["Candidate", "expose", "resolve"]

RELEASE = re.compile(r"megatron-core==([0-9][0-9A-Za-z.!+-]{0,40})")
PROBE = "import vlmprof.training.worker, vlmprof.training.loop, megatron.core"


@dataclass(frozen=True)
class Candidate:
    label: str
    megatron: str = ""
    """Folder to put first on PYTHONPATH."""
    python: str = ""
    """Interpreter of the workers; empty: ours."""


def resolve(named: str) -> Candidate:
    """What `named` stands for: `megatron-core==X`, a checkout, a Python executable or the folder of a virtual
    environment. A release is installed into the cache where it is not there yet.

    Raises:
        UserError: it is nothing of these, or the environment cannot run vlmprof's worker.
        MachineError: the release cannot be installed.
    """
    release = RELEASE.fullmatch(named)
    if release:
        return Candidate(named, megatron=str(_installed(release[1])))
    path = Path(named)
    python = path / "bin" / "python" if path.is_dir() else path
    if python.is_file() and os.access(python, os.X_OK):
        # Not resolved: a virtual environment is known by the path that its interpreter is started by.
        return Candidate(named, python=_checked(named, str(python.absolute())))
    if path.is_dir():
        return Candidate(named, megatron=resolve_megatron(named))
    raise UserError(
        f"--ab '{named}' is no checkout, no release (megatron-core==X) and no environment (a folder with bin/python, "
        "or a Python executable)"
    )


def _installed(version: str) -> Path:
    """The folder of an unpacked release: whole, or not there."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = (Path(base) if base.startswith("/") else Path.home() / ".cache") / "vlmprof" / "megatron-core"
    target = cache / version
    if (target / "megatron" / "core").is_dir():
        return target
    half = cache / f"{version}.{os.getpid()}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-requires-python"]
        done = subprocess.run(
            [*pip, "--disable-pip-version-check", "--target", str(half), f"megatron-core=={version}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not (half / "megatron" / "core").is_dir():
            last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise MachineError(f"megatron-core=={version} cannot be installed into '{cache}': {last}")
        half.rename(target)
    except OSError as error:
        if not (target / "megatron" / "core").is_dir():  # else another process was quicker
            raise MachineError(f"'{cache}' cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return target


def _checked(named: str, python: str) -> str:
    """The interpreter, if it can import what a worker needs.

    Raises:
        UserError: with the import that fails.
    """
    with tempfile.TemporaryDirectory() as yardstick:
        expose(Path(yardstick))
        path = os.pathsep.join(filter(None, [yardstick, os.environ.get("PYTHONPATH", "")]))
        try:
            done = subprocess.run(
                [python, "-c", PROBE],
                capture_output=True,
                text=True,
                env=dict(os.environ, PYTHONPATH=path),
                timeout=300,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"--ab '{named}': its interpreter does not run: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        raise UserError(f"--ab '{named}' cannot run vlmprof's worker: {last}; install what is missing there")
    return python


def expose(yardstick: Path) -> None:
    """Make a folder whose only content is this vlmprof: on another interpreter's path, nothing else of ours may be."""
    yardstick.mkdir(parents=True, exist_ok=True)
    link = yardstick / "vlmprof"
    if not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(str(resources.files("vlmprof")), target_is_directory=True)
