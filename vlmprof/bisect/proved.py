"""Proof of what a probe tested: where it imported a module from, told by a hook in the probe's own Python."""

import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from vlmprof.errors import MachineError

__all__ = ["DEFAULT_MODULE", "check_origins", "import_roots", "read_origins", "witness_variables"]

DEFAULT_MODULE = "megatron.core"
ROOTS = (".", "src", "3rdparty/Megatron-LM")
"""Folders of a checkout that Python modules may lie in."""


def import_roots(worktree: Path) -> list[str]:
    """The folders of `worktree` that a probe's PYTHONPATH begins with."""
    return [str((worktree / root).resolve()) for root in ROOTS if (worktree / root).is_dir()]


def witness_variables(module: str, proof: Path, pythonpath: str, roots: Sequence[str]) -> dict[str, str]:
    """Environment variables that make a probe's Python write the origin of `module` (default megatron.core) to `proof`
    and import from `roots` first."""
    hook = str(resources.files("vlmprof.bisect") / "proof")
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [hook, *roots, pythonpath])),
        "VLMPROF_PROVE": module or DEFAULT_MODULE,
        "VLMPROF_PROOF": str(proof),
    }


def read_origins(proof: Path) -> tuple[str, ...]:
    """Where the module was imported from, each place once; empty when it never was."""
    try:
        lines = proof.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(dict.fromkeys(json.loads(line)["origin"] for line in lines))


def check_origins(origins: Sequence[str], worktree: Path, module: str) -> tuple[str, ...]:
    """The origins relative to the worktree.

    `module` empty means megatron.core, which need not be the worktree's where the worktree holds none.

    Raises:
        MachineError: one lies elsewhere: the probe tested something else than the commit.
    """
    root = worktree.resolve()
    wanted = module or DEFAULT_MODULE
    if not module and not _holds(root, wanted):
        return ()
    for origin in origins:
        if not Path(origin).resolve().is_relative_to(root):
            raise MachineError(
                f"the probe imported {wanted} from '{origin}', not from the commit under test in '{root}': its verdict "
                "would be about something else; let the command find the worktree first (PYTHONPATH, pip install -e)"
            )
    return tuple(str(Path(origin).resolve().relative_to(root)) for origin in origins)


def _holds(root: Path, module: str) -> bool:
    path = module.replace(".", "/")
    return any((root / base / path).is_dir() or (root / base / f"{path}.py").is_file() for base in ROOTS)
