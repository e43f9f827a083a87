"""A worktree of our own, with books of its own, that shares the user's objects and nothing else.

It is a clone whose objects are the user's (`git clone --shared`), not a linked worktree: that would leave a folder in
the user's `.git/worktrees` when we are killed, put submodules into their `.git/modules`, and new objects (a fix-up, a
revert) among theirs. Its refs/bisect are its own, so `git bisect log` there tells of this search alone.
"""

import hashlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmprof.bisect.git import Git, GitError
from vlmprof.bisect.history import Repository
from vlmprof.bisect.search import Verdict
from vlmprof.errors import MachineError, UserError

__all__ = ["BlockedError", "Fixup", "Worktree", "parse_fixup"]

STRAGGLER_SECONDS = 10.0
TERMS = ("broken", "fixed")
"""git's words for old and new when a fix is sought: it refuses to turn good and bad round."""


class BlockedError(Exception):
    """This commit cannot be tested, and why: a verdict (skip), not an error."""


@dataclass(frozen=True)
class Fixup:
    """A commit to apply on top of each tested one: of `commits`, or of all when that is None."""

    sha: str
    commits: frozenset[str] | None = None

    def applies_to(self, commit: str) -> bool:
        """Whether it is wanted there."""
        return self.commits is None or commit in self.commits


def parse_fixup(text: str, repository: Repository) -> Fixup:
    """`SHA` or `SHA@RANGE`, e.g. `1a2b3c@v1.0..v1.2`.

    Raises:
        UserError: it names no commit, or the range is none.
    """
    sha, separator, revisions = text.partition("@")
    if revisions.startswith("{"):  # a reflog entry: HEAD@{1}
        sha, separator, revisions = text, "", ""
    resolved = repository.resolve(sha)
    if not separator:
        return Fixup(resolved)
    try:
        commits = repository.git.run("rev-list", "--end-of-options", revisions).split()
    except GitError:
        raise UserError(f"'{revisions}' of --fixup '{text}' is no range of commits") from None
    return Fixup(resolved, frozenset(commits))


def _is_promisor(key: str, value: str) -> bool:
    return key.startswith("remote.") and key.endswith(".promisor") and value == "true"


class Worktree:
    """The clone in which commits are checked out and tested."""

    def __init__(self, folder: Path, repository: Repository) -> None:
        self.folder = folder
        self._repository = repository
        self.git = Git(folder)

    def create(self, commit: str) -> None:
        """Make it, its HEAD at `commit`, or keep the one that is whole already.

        Raises:
            MachineError: it cannot be made (disk, permissions).
        """
        marker = self.folder / ".git" / "vlmprof-whole"
        if marker.exists():
            return
        self.remove()
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            Git(self.folder.parent).run(
                "clone", "--quiet", "--shared", "--no-checkout", str(self._repository.git_dir), str(self.folder)
            )
            self._adopt_remotes()
            self.git.run("update-ref", "--no-deref", "HEAD", commit)
            marker.touch()
        except (GitError, OSError) as error:
            raise MachineError(f"no worktree can be made in '{self.folder}': {error}") from None

    def _adopt_remotes(self) -> None:
        """The user's origin, so that relative addresses of submodules mean what they mean to them; where theirs is a
        partial clone, missing objects come from where theirs would."""
        user = self._repository.git
        settings = {"user.name": "vlmprof", "user.email": "vlmprof@localhost", "gc.auto": "0"}
        listed = user.run("config", "--list", "-z").split("\0")
        theirs = dict(entry.split("\n", 1) for entry in listed if "\n" in entry)
        promisors = [key.removesuffix(".promisor") for key, value in theirs.items() if _is_promisor(key, value)]
        remote = promisors[0] if promisors else "remote.origin"
        if f"{remote}.url" in theirs:
            settings["remote.origin.url"] = theirs[f"{remote}.url"]
        if promisors:
            settings |= {"core.repositoryformatversion": "1", "extensions.partialClone": "origin"}
            settings |= {"remote.origin.promisor": "true"}
            settings["remote.origin.partialclonefilter"] = theirs.get(f"{remote}.partialclonefilter", "blob:none")
        for name, value in settings.items():
            self.git.run("config", name, value)

    def remove(self) -> None:
        """Take it away, whatever state it is in; a git of a killed bisect may still be writing there for a moment."""
        deadline = time.monotonic() + STRAGGLER_SECONDS
        while self.folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(self.folder, ignore_errors=True)

    def checkout(self, commit: str, fixups: Sequence[Fixup] = (), revert: str = "") -> str:
        """Put `commit` there, submodules and fix-ups with it, `revert` taken back; returns a name for the
        result: two checkouts with one name have the same tracked files and submodules.

        What git ignores (builds) stays.

        Raises:
            BlockedError: a submodule cannot be had, a fix-up or the revert does not apply.
            MachineError: the checkout itself fails (disk).
        """
        try:
            self._clear_lock()
            self.git.run("reset", "--quiet", "--hard")
            self.git.run("checkout", "--quiet", "--force", "--detach", commit)
            self.git.run("clean", "--quiet", "-ff", "-d")
        except GitError as error:
            raise MachineError(f"{commit[:12]} cannot be checked out in '{self.folder}': {error}") from None
        wanted = [fixup.sha for fixup in fixups if fixup.applies_to(commit)]
        wanted = [sha for sha in wanted if not self._repository.is_ancestor(sha, commit)]
        for sha in wanted:
            self._apply("cherry-pick", sha, "fix-up")
        if revert:
            self._apply("revert", revert, "revert of")
        self._update_submodules()
        return self._index_id() if wanted or revert else self.git.line("rev-parse", "HEAD^{tree}")

    def _clear_lock(self) -> None:
        """Wait for a git of a killed bisect that is still at work here; take away the lock of one that died."""
        lock = self.folder / ".git" / "index.lock"
        deadline = time.monotonic() + STRAGGLER_SECONDS
        while lock.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        lock.unlink(missing_ok=True)

    def pin_submodule(self, path: str, pin: str) -> str:
        """Put the submodule at `path` to its commit `pin`, its own submodules with it; returns a name for the result.

        Raises:
            BlockedError: it cannot be had.
        """
        inner = Git(self.folder / path)
        try:
            inner.run("checkout", "--quiet", "--force", "--detach", pin)
            inner.run("clean", "--quiet", "-ff", "-d")
            inner.run("submodule", "--quiet", "update", "--init", "--recursive", "--force")
            self.git.run("add", "--", path)
        except GitError as error:
            raise BlockedError(f"{pin[:12]} of {path} cannot be had: {error}") from None
        return self._index_id()

    def _index_id(self) -> str:
        """Names what is in the index. No object is written: git would touch an equal one of the user's."""
        listed = self.git.run("ls-files", "--stage", "-z")
        return "index:" + hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()

    def _apply(self, how: str, sha: str, name: str) -> None:
        mainline = ["-m", "1"] if len(self._repository.parents(sha)) > 1 else []
        try:
            self.git.run(how, "--no-commit", *mainline, sha)
        except GitError:
            self.git.run("reset", "--quiet", "--hard")
            raise BlockedError(f"{name} {sha[:12]} does not apply") from None

    def _update_submodules(self) -> None:
        if not (self.folder / ".gitmodules").exists():
            return
        try:
            self._fetch_submodules(local=True)
        except GitError:
            try:
                self._fetch_submodules(local=False)
            except GitError as error:
                raise BlockedError(f"its submodules cannot be had: {error}") from None

    def _fetch_submodules(self, local: bool) -> None:
        """From the user's disk where they have them, else from the published address."""
        self.git.run("submodule", "--quiet", "sync")
        listed = self.git.run("config", "--file", ".gitmodules", "--name-only", "--get-regexp", r"\.path$").split()
        for name in (key.removeprefix("submodule.").removesuffix(".path") for key in listed):
            mine = self._repository.git_dir / "modules" / name
            if local and (mine / "HEAD").exists():
                self.git.run("config", f"submodule.{name}.url", str(mine))
        update = ["submodule", "--quiet", "update", "--init", "--recursive", "--force"]
        self.git.run("-c", "protocol.file.allow=always", *update)

    # The books: git keeps them, the search picks.

    def start_books(self, find_fix: bool, first_parent: bool) -> None:
        """Begin `git bisect` here; it checks nothing out of its own accord."""
        old, new = TERMS
        terms = [f"--term-old={old}", f"--term-new={new}"] if find_fix else []
        options = ["--first-parent"] if first_parent else []
        self.git.succeeds("bisect", "reset")
        self.git.run("bisect", "start", "--no-checkout", *terms, *options)

    def enter(self, commit: str, verdict: Verdict, find_fix: bool) -> None:
        """Write a verdict down. git's own opinion on it (an end code, another choice) is not asked."""
        term = {"bad": TERMS[0], "good": TERMS[1]}.get(verdict, verdict) if find_fix else verdict
        self.git.succeeds("bisect", term, commit)

    def books(self) -> str:
        """`git bisect log`, which `git bisect replay` reads."""
        try:
            return self.git.run("bisect", "log")
        except GitError:
            return ""
