"""What this machine can do, asked of a child process: torch is never imported here, and a broken one cannot hurt."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata

from vlmprof.lifeline import guarded

__all__ = ["Check", "examine"]

SECONDS = 120


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    found: str
    """Its version or what it can do; where it is missing, how to get it."""
    optional: bool = False


def examine() -> list[Check]:
    """Every check, the needed ones first."""
    checks = [
        Check("python", sys.version_info >= (3, 11), sys.version.split()[0]),
        _package("vlmprof", "pip install -e ."),
        _package("numpy", "pip install numpy"),
        _package("scikit-image", "pip install scikit-image (for --data real)"),
    ]
    checks += _from_child()
    checks += [
        _program("git", "install git (for commits in records and for vlmprof bisect)"),
        _package("tokenizers", "pip install 'vlmprof[hf]' (only for data.tokenizer)", optional=True),
        _program("nsys", "NVIDIA Nsight Systems, to see the NVTX ranges", optional=True),
    ]
    return sorted(checks, key=lambda check: check.optional)


def _package(name: str, how: str, optional: bool = False) -> Check:
    try:
        return Check(name, True, metadata.version(name), optional)
    except metadata.PackageNotFoundError:
        return Check(name, False, how, optional)


def _program(name: str, how: str, optional: bool = False) -> Check:
    path = shutil.which(name)
    if path is None:
        return Check(name, False, how, optional)
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Check(name, True, path, optional)
    return Check(name, True, (done.stdout or done.stderr).strip().splitlines()[0] if done.stdout else path, optional)


def _from_child() -> list[Check]:
    command = guarded([sys.executable, "-m", "vlmprof.training.capabilities"])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        return [Check(**check) for check in json.loads(done.stdout.splitlines()[-1])]
    except subprocess.TimeoutExpired:
        return [Check("torch", False, f"importing it took more than {SECONDS} s")]
    except (IndexError, ValueError):
        reason = done.stderr.strip().splitlines()[-1:] or [f"code {done.returncode}"]
        return [Check("torch", False, f"its check died ({reason[0]})")]
