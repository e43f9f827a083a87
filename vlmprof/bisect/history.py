"""The user's repository, read and never written: the ends, the graph between them, what a commit is and changes."""

import bisect
import hashlib
from dataclasses import dataclass
from pathlib import Path

from vlmprof.bisect.git import Git, GitError, printable
from vlmprof.bisect.search import Graph
from vlmprof.errors import UserError
from vlmprof.records.bisect import CommitRecord

__all__ = ["Change", "Ends", "Repository", "open_repository"]

SUBMODULE = "160000"
HARMLESS_SUFFIXES = (".md", ".rst", ".ipynb")
HARMLESS_FOLDERS = ("docs", "doc", "test", "tests", ".github", ".gitlab")
HARMLESS_NAMES = ("LICENSE", "CHANGELOG", "CODEOWNERS", "AUTHORS", ".gitignore", "conftest.py")


@dataclass(frozen=True)
class Change:
    """One path that a commit changes against its first parent."""

    status: str
    path: str
    old_mode: str
    new_mode: str
    old: str
    new: str

    @property
    def is_submodule_bump(self) -> bool:
        """Whether it moves a submodule from one commit to another."""
        return self.old_mode == self.new_mode == SUBMODULE

    @property
    def is_harmless(self) -> bool:
        """Whether it is documentation or a test, which no training run reads."""
        *folders, name = self.path.split("/")
        return (
            name.endswith(HARMLESS_SUFFIXES)
            or name.startswith(("test_", *HARMLESS_NAMES))
            or any(folder in HARMLESS_FOLDERS for folder in folders)
        )


@dataclass(frozen=True)
class Ends:
    """The two ends of a range, resolved: `old` is the left one, `new` the right one."""

    old: str
    new: str
    bases: tuple[str, ...] = ()
    """Their merge bases where `old` is no ancestor of `new`."""


class Repository:
    """Reads one repository. Every method may raise MachineError when there is no git."""

    def __init__(self, folder: Path, git_dir: Path) -> None:
        self.folder = folder
        self.git_dir = git_dir
        self.git = Git(folder)

    def read_through(self, git: Git) -> "Repository":
        """The same repository, read in a clone that shares its objects: where objects are fetched on demand (a partial
        clone), they land in that one."""
        other = Repository(self.folder, self.git_dir)
        other.git = git
        return other

    @property
    def key(self) -> str:
        """Names its state: a hash of where its git directory lies."""
        return hashlib.sha256(str(self.git_dir).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def resolve(self, name: str) -> str:
        """The commit that `name` stands for.

        Raises:
            UserError: it stands for none.
        """
        try:
            return self.git.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except GitError:
            raise UserError(f"'{name}' is no commit of the repository '{self.folder}'") from None

    def ends(self, text: str, find_fix: bool = False) -> Ends:
        """The ends of `GOOD..BAD`; an end left out is HEAD. With `find_fix` they may stand in either order.

        Raises:
            UserError: it is no range, names unknown commits, holds no commits, or the ends are the wrong way round.
        """
        left, dots, right = text.partition("..")
        if not dots or right.startswith(".") or not (left or right):
            raise UserError(f"'{text}' is not a range: write GOOD..BAD, e.g. v1.0..main")
        old, new = self.resolve(left or "HEAD"), self.resolve(right or "HEAD")
        if old == new:
            raise UserError(f"the range {text} holds no commits: both ends are {old[:12]}")
        if self.is_ancestor(new, old):
            if not find_fix:
                hint = f"did you mean {right or 'HEAD'}..{left or 'HEAD'}, or --find-fix?"
                raise UserError(f"the range {text} holds no commits, as its bad end comes before its good end: {hint}")
            old, new = new, old
        if self.is_ancestor(old, new):
            return Ends(old, new)
        bases = self._merge_bases(old, new)
        if not bases:
            raise UserError(f"the ends of {text} have no commit in common: nothing can be said of the way between them")
        return Ends(old, new, bases)

    def refuse_shallow(self) -> None:
        """Say how to deepen a shallow clone: its ranges are not the true ones.

        Raises:
            UserError: it is one.
        """
        if self.git.line("rev-parse", "--is-shallow-repository") == "true":
            raise UserError(
                f"the repository '{self.folder}' is a shallow clone, whose history is cut off: "
                "run git fetch --unshallow there first"
            )

    def is_ancestor(self, one: str, other: str) -> bool:
        """Whether `one` is `other` or comes before it."""
        return self.git.succeeds("merge-base", "--is-ancestor", one, other)

    def graph(self, ends: Ends, first_parent: bool = False) -> Graph:
        """The commits of the range with their parents."""
        options = ["--first-parent"] if first_parent else []
        lines = self.git.run("rev-list", "--parents", *options, ends.new, f"^{ends.old}").splitlines()
        rows = [line.split() for line in lines]
        return Graph({row[0]: tuple(row[1:]) for row in rows}, ends.bases)

    def commit(self, sha: str) -> CommitRecord:
        """Who wrote it, when it was committed, and its subject."""
        text = self.git.line("show", "--no-patch", "--no-show-signature", "--format=%an%x00%cI%x00%s", sha)
        author, date, subject = printable(text).split("\0")
        return CommitRecord(sha=sha, author=author, date=date, subject=subject)

    def parents(self, sha: str) -> tuple[str, ...]:
        """Its parents, the first one first."""
        return tuple(self.git.line("rev-list", "--parents", "--max-count=1", sha).split()[1:])

    def changes(self, sha: str) -> tuple[Change, ...]:
        """What it changes against its first parent (a first commit: everything)."""
        parents = self.parents(sha)
        against = [parents[0], sha] if parents else ["--root", sha]
        fields = self.git.run("diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-commit-id", *against).split("\0")
        found = []
        for head, path in zip(fields[0:-1:2], fields[1::2], strict=True):
            old_mode, new_mode, old, new, status = head.removeprefix(":").split()
            found.append(Change(status, path, old_mode, new_mode, old, new))
        return tuple(found)

    def same_changes(self, sha: str, *revisions: str, reverse: bool = False, limit: int = 500) -> tuple[str, ...]:
        """Commits among `revisions`, newest first, that make the very change that `sha` makes (`reverse`: that take it
        back), by their patch ids. Empty for a merge; at most `limit` commits to the same paths are looked at."""
        paths = [f":(literal){change.path}" for change in self.changes(sha)]
        wanted = self._patch_ids(f"{sha}^!", options=["-R"] if reverse else [])
        if not paths or not wanted or len(self.parents(sha)) != 1:
            return ()
        options = [f"--max-count={limit}", "--full-diff"]
        listed = self._patch_ids(*revisions, "--", *paths, options=options)
        return tuple(commit for patch, commit in listed if patch == wanted[0][0])

    def _patch_ids(self, *revisions: str, options: list[str]) -> list[tuple[str, str]]:
        plain = ["--no-merges", "--no-textconv", "--no-ext-diff", "--no-show-signature", "--format=commit %H"]
        # with -R git swaps the prefixes too, and they are part of a patch's id
        patches = self.git.run("log", "-p", "--no-prefix", *plain, *options, *revisions)
        rows = self.git.run("patch-id", "--stable", stdin=patches).splitlines() if patches else []
        return [(patch, commit) for patch, commit in (row.split() for row in rows)]

    def brought_in_by(self, sha: str, until: str) -> str:
        """The merge by which `sha` came to the main line of `until`; empty when it was made there."""
        line = self.git.run("rev-list", "--first-parent", until, f"^{sha}").split()
        # newest first: those that hold it, then those that do not
        holding = bisect.bisect_left(line, True, key=lambda commit: not self.is_ancestor(sha, commit))
        if not holding or self.parents(line[holding - 1])[:1] == (sha,):
            return ""
        return line[holding - 1]

    def holds(self, commit: str, path: str) -> bool:
        """Whether `path` is in the tree of `commit`."""
        return bool(self.git.run("ls-tree", "--name-only", commit, "--", f":(literal){path}"))

    def earlier_landings(self, sha: str) -> tuple[str, ...]:
        """Commits before `sha` that make the very same change, newest first: it landed, was reverted, landed again."""
        return self.same_changes(sha, f"{sha}^@")

    def reverts(self, sha: str, until: str) -> tuple[str, ...]:
        """Commits after `sha`, up to `until`, that take its change back, newest first."""
        return self.same_changes(sha, until, f"^{sha}", reverse=True)

    def _merge_bases(self, old: str, new: str) -> tuple[str, ...]:
        try:
            return tuple(self.git.run("merge-base", "--all", old, new).split())
        except GitError:
            return ()


def open_repository(path: Path) -> Repository:
    """The repository that `path` lies in.

    Raises:
        UserError: there is none.
        MachineError: there is no git.
    """
    if not path.is_dir():
        raise UserError(f"there is no folder '{path}': name a git repository with --repo")
    git = Git(path)
    try:
        common = git.line("rev-parse", "--path-format=absolute", "--git-common-dir")
    except GitError as error:
        why = f" ({error})" if "dubious ownership" in str(error) else ""
        raise UserError(f"'{path}' is not in a git repository{why}: name one with --repo") from None
    return Repository(path.resolve(), Path(common).resolve())
