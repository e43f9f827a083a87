"""The folder of a run: made only when everything that can be checked beforehand is in order."""

import contextlib
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

from vlmprof.errors import MachineError, UserError

__all__ = ["default_folder", "make_folder", "release", "reserve", "resolve_megatron", "take_back"]

RESERVE = ".reserve"
RESERVE_BYTES = 2**20
FULL_BYTES = 2**16


def default_folder(workload_name: str, hash8: str, now: datetime | None = None) -> Path:
    """`vlmprof-runs/<UTC time>-<workload>-<hash8>` in the working folder."""
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%S")
    folder = Path("vlmprof-runs") / f"{stamp}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', workload_name)}-{hash8}"
    number = 2
    candidate = folder
    while candidate.exists():
        candidate = folder.with_name(f"{folder.name}-{number}")
        number += 1
    return candidate


def make_folder(folder: Path) -> list[Path]:
    """Create the run folder, or take an empty one; returns the folders that it made, the innermost first.

    Raises:
        UserError: it is a file, is not empty, or may not be written.
        MachineError: the disk is full.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"output folder '{folder}' is not empty: name another one with --out")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output folder '{folder}' is a file: name another one with --out")
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        kind = MachineError if error.errno == 28 else UserError
        raise kind(f"output folder '{folder}' cannot be written: {error.strerror}") from None
    return made


def take_back(folder: Path, made: list[Path]) -> None:
    """Undo `make_folder` and all that was written since: what was there before stays."""
    for item in folder.iterdir():
        item.unlink()
    for one in made:
        with contextlib.suppress(OSError):
            one.rmdir()


def reserve(folder: Path) -> None:
    """Keep some space on the disk, so that the record can be written whole when a run has filled it up."""
    (folder / RESERVE).write_bytes(bytes(RESERVE_BYTES))


def release(folder: Path) -> bool:
    """Give the space back; whether the disk was full until then."""
    full = shutil.disk_usage(folder).free < FULL_BYTES
    (folder / RESERVE).unlink(missing_ok=True)
    return full


def resolve_megatron(path: str) -> str:
    """The folder to put in front of PYTHONPATH for `--megatron PATH`; empty stays empty (the installed package).

    Raises:
        UserError: neither `PATH/megatron/core` nor `PATH/3rdparty/Megatron-LM/megatron/core` exists.
    """
    if not path:
        return ""
    root = Path(path).resolve()
    for folder in (root, root / "3rdparty" / "Megatron-LM"):
        if (folder / "megatron" / "core").is_dir():
            return str(folder)
    if root.is_dir() and (root / "3rdparty" / "Megatron-LM").is_dir():
        raise UserError(
            f"--megatron '{path}': its submodule 3rdparty/Megatron-LM is empty; run git submodule update --init there"
        )
    raise UserError(f"--megatron '{path}' holds no megatron/core: name a Megatron-LM or Megatron Bridge checkout")
