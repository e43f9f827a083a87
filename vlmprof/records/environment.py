"""The environment fingerprint, as far as it is known without torch: packages, host, variables, git commits."""

import getpass
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

__all__ = ["git_commit", "host_facts", "package_versions", "relevant_variables", "user_name"]

PACKAGES = (
    "vlmprof",
    "torch",
    "megatron-core",
    "transformer-engine",
    "numpy",
    "pillow",
    "scikit-image",
    "nvtx",
    "triton",
)
DRIVER = Path("/sys/module/nvidia/version")
VARIABLE_PREFIXES = ("NCCL_", "NVTE_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "KMP_", "CUDA_", "CUBLAS_", "GLOO_")


def package_versions() -> dict[str, str]:
    """Installed version of each package that matters here; those that are not installed are left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def host_facts() -> dict[str, Any]:
    """The machine beneath the platform: what may differ between two runs that are still comparable."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **_driver(),
    }


def relevant_variables() -> dict[str, str]:
    """Environment variables that change how torch, NCCL, TE or Megatron run."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLE_PREFIXES)}


def git_commit(path: Path) -> str:
    """Commit of the checkout that `path` lies in, with a trailing + when tracked files differ from it; else empty."""
    commit = _git(path, "rev-parse", "HEAD")
    tracked = commit and _git(path, "ls-files", "--error-unmatch", str(path))
    if not commit or not tracked:
        return ""
    return commit + ("+" if _git(path, "status", "--porcelain", "--untracked-files=no") else "")


def user_name() -> str:
    """Who sits here: git's user.name, else the login name."""
    name = _git(Path(), "config", "user.name")
    try:
        return name or getpass.getuser()
    except (OSError, KeyError):  # a container may know no name for its user
        return "unknown"


def _git(path: Path, *arguments: str) -> str:
    folder = path if path.is_dir() else path.parent
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _driver() -> dict[str, str]:
    """Version of the GPU's driver; nothing where there is none."""
    try:
        return {"driver": DRIVER.read_text(encoding="utf-8").strip()}
    except OSError:
        return {}


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
