"""A command run to its end or its time limit, with nothing of it left; and the set-up before a probe."""

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from vlmprof.bisect import guardian
from vlmprof.bisect.git import INHERITED
from vlmprof.bisect.worktree import BlockedError, Worktree
from vlmprof.errors import MachineError
from vlmprof.launch.children import child
from vlmprof.records.bisect import Plan

__all__ = ["Ending", "clean_environment", "execute", "set_up"]

POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Ending:
    code: int | None
    """None: ended at its time limit."""
    seconds: float


def clean_environment() -> dict[str, str]:
    """The caller's, without what git handed down."""
    environment = {name: value for name, value in os.environ.items() if name not in INHERITED}
    # a .pyc is matched by the second and the size of its source: two checkouts can agree in both
    return environment | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}


def execute(command: list[str], log: Path, environment: dict[str, str], timeout: float | None, folder: Path) -> Ending:
    """Run `command` in `folder` to the end or the time limit; nothing of it is left.

    Raises:
        MachineError: it cannot be started.
        KeyboardInterrupt: Ctrl-C; its processes are gone.
    """
    began = time.monotonic()
    watched = [sys.executable, "-I", guardian.__file__, str(os.getpid()), *command]
    try:
        with child(watched, log, environment, folder) as process:
            while True:
                try:
                    code = process.wait(POLL_SECONDS)
                    return Ending(code, time.monotonic() - began)
                except subprocess.TimeoutExpired:
                    if timeout is not None and time.monotonic() - began > timeout:
                        return Ending(None, time.monotonic() - began)
    except OSError as error:
        raise MachineError(f"the probe cannot be run: {error}") from None


def set_up(plan: Plan, worktree: Worktree, log: Path) -> None:
    """Run --setup in `worktree`, unless what it depends on is as it was the last time there.

    Raises:
        BlockedError: it failed.
    """
    if not plan.setup:
        return
    git, mark = worktree.git, worktree.folder / ".git" / "vlmprof-setup"
    depends = [f":(glob){pattern}" for pattern in plan.setup_depends]
    listed = git.run("ls-files", "--stage", "--", *depends) if depends else ""
    key = hashlib.sha256(f"{plan.setup}\0{listed}".encode("utf-8", "surrogateescape")).hexdigest()
    if depends and mark.exists() and mark.read_text() == key:
        return
    mark.unlink(missing_ok=True)
    exclude = worktree.folder / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text("")
    ending = execute(["sh", "-c", plan.setup], log, clean_environment(), plan.timeout, worktree.folder)
    if ending.code != 0:
        how = "did not end in time" if ending.code is None else f"failed with code {ending.code}"
        raise BlockedError(f"the set-up {how}")
    made = git.run("ls-files", "--others", "--exclude-standard", "--directory", "-z").split("\0")
    exclude.write_text("".join(f"/{path}\n" for path in made if path))  # what it built outlives the next checkout
    mark.write_text(key)
