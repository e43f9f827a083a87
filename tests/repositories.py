"""Real git repositories for tests, and what they look like afterwards."""

import hashlib
import os
import re
import subprocess
from pathlib import Path

__all__ = ["Repo", "snapshot"]


class Repo:
    """A repository whose commits are written by the test; dates are fixed, so that its hashes are too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._clock = 1_700_000_000
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        self._clock += 60
        date = f"{self._clock} +0000"
        environment = dict(
            os.environ,
            GIT_AUTHOR_DATE=date,
            GIT_COMMITTER_DATE=date,
            GIT_AUTHOR_NAME="A. Uthor",
            GIT_AUTHOR_EMAIL="a@example.com",
            GIT_COMMITTER_NAME="C. Ommitter",
            GIT_COMMITTER_EMAIL="c@example.com",
            GIT_CONFIG_GLOBAL="/dev/null",
        )
        command = ["git", "-c", "protocol.file.allow=always", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stderr}{done.stdout}"
        return done.stdout.strip()

    def commit(self, subject: str, paths: dict[str, str] | None = None, **files: str) -> str:
        """Write files by path (or as keywords: `a__b_py` for `a/b.py`) and commit; returns the hash."""
        named = {re.sub("_py$", ".py", name).replace("__", "/"): content for name, content in files.items()}
        for name, content in {**(paths or {}), **named}.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)
        return self.head

    def line(self, count: int, **files: str) -> list[str]:
        """`count` harmless commits."""
        return [self.commit(f"harmless {i}", **{f"notes{i % 3}": f"{self._clock}", **files}) for i in range(count)]

    def merge(self, *branches: str, subject: str = "merge") -> str:
        self.git("merge", "--quiet", "--no-ff", "-m", subject, *branches)
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below `folder`, .git included: content, mode, time of change (which git renews of objects)."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            changed = "" if "objects/" in name else path.stat().st_mtime_ns
            found[name] = f"{path.stat().st_mode:o} {digest} {changed}"
        else:
            found[name] = "folder"
    return found
