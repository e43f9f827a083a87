"""git's plumbing, with lists of arguments and C output: what it says in English is shown, never read."""

import os
import subprocess
from pathlib import Path

from vlmprof.errors import MachineError

__all__ = ["INHERITED", "Git", "GitError", "printable"]

INHERITED = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")
"""Set where a hook of the user's calls us: they would point every command at the user's repository."""


def printable(text: str) -> str:
    """Text of git's that can be written as UTF-8, whatever bytes a path or a name held."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class GitError(MachineError):
    """A git command that failed; the message is what it said, in a line. One that nobody expects ends the bisect."""


class Git:
    """git in one folder. It takes no lock that it need not take, asks nothing, and never converses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """Its output.

        Raises:
            GitError: it failed.
            MachineError: there is no git.
        """
        done = self._execute(arguments, stdin)
        if done.returncode:
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            told = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
            raise GitError(f"git {arguments[0]}: {told.strip() or f'it ended with code {done.returncode}'}")
        return done.stdout

    def line(self, *arguments: str) -> str:
        """Its output without the line end. Raises as `run`."""
        return self.run(*arguments).rstrip("\n")

    def succeeds(self, *arguments: str) -> bool:
        """Whether it ends with 0."""
        return self._execute(arguments, None).returncode == 0

    def _execute(self, arguments: tuple[str, ...], stdin: str | None) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name not in INHERITED}
        environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true"}
        try:
            return subprocess.run(
                ["git", "-c", "advice.detachedHead=false", "-c", "core.hooksPath=/dev/null", *arguments],
                cwd=self.folder,
                env=environment,
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="surrogateescape",
                check=False,
            )
        except FileNotFoundError:
            raise MachineError("there is no git on PATH: install git") from None
