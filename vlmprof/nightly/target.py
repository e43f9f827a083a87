"""The repository under test: one of the user's, read and never written, or a clone of ours where it is an address."""

import hashlib
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from vlmprof.bisect.git import Git, GitError
from vlmprof.bisect.history import Repository, open_repository
from vlmprof.bisect.worktree import BlockedError, Worktree
from vlmprof.errors import MachineError, UserError

__all__ = [
    "DEFAULT_REF",
    "DEFAULT_TARGET",
    "export",
    "is_address",
    "open_target",
    "resolve",
    "tree_of",
    "without_credentials",
]

DEFAULT_TARGET = "https://github.com/NVIDIA/Megatron-LM.git"
DEFAULT_REF = "main"
SCP_FORM = re.compile(r"^[\w.-]+@[\w.-]+:[^\s]+$")
ASKED = "refs/vlmprof/asked"


def is_address(target: str) -> bool:
    """Whether it is to be cloned; else it is a folder."""
    return "://" in target or (SCP_FORM.match(target) is not None and not Path(target).exists())


def without_credentials(target: str) -> str:
    """The address as it may be shown: a name, a password or a token in it is left out."""
    if "://" not in target:
        return target
    parts = urlsplit(target)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def open_target(target: str, folder: Path) -> Repository:
    """The repository `target`; an address is cloned below `folder`, whole, or brought up to date there.

    Raises:
        UserError: there is no such repository.
        MachineError: it cannot be fetched, or there is no git.
    """
    if not is_address(target):
        return open_repository(Path(target))
    clone = folder / hashlib.sha256(target.encode()).hexdigest()[:16]
    if not clone.exists():
        _clone(target, clone)
    else:
        try:
            Git(clone).run("fetch", "--quiet", "--prune", "--force", "--tags", "origin", "+refs/heads/*:refs/heads/*")
        except GitError as error:
            raise MachineError(f"'{without_credentials(target)}' cannot be fetched: {_hidden(error, target)}") from None
    return open_repository(clone)


def _clone(target: str, clone: Path) -> None:
    half = clone.with_name(clone.name + ".part")
    shutil.rmtree(half, ignore_errors=True)
    try:
        half.parent.mkdir(parents=True, exist_ok=True)
        Git(half.parent).run("clone", "--quiet", "--bare", "--", target, str(half))
        Git(half).run("config", "gc.auto", "0")  # objects that a worktree borrows stay
        half.rename(clone)
    except GitError as error:
        raise MachineError(f"'{without_credentials(target)}' cannot be cloned: {_hidden(error, target)}") from None
    except OSError as error:
        raise MachineError(f"the folder '{half.parent}' cannot be written: {error.strerror}") from None


def _hidden(error: GitError, target: str) -> str:
    return str(error).replace(target, without_credentials(target))


def resolve(repository: Repository, ref: str, target: str) -> str:
    """The commit that `ref` stands for; one that no branch or tag holds (a pull request's) is fetched where it can be.

    Raises:
        UserError: it stands for none.
    """
    try:
        return repository.resolve(ref)
    except UserError:
        if not is_address(target) or not repository.git.succeeds("check-ref-format", "--allow-onelevel", ref):
            raise
        repository.git.succeeds("fetch", "--quiet", "origin", f"+{ref}:{ASKED}")
        if not repository.git.succeeds("rev-parse", "--verify", "--quiet", f"{ASKED}^{{commit}}"):
            raise
        commit = repository.resolve(ASKED)
        repository.git.run("update-ref", "-d", ASKED)
        return commit


def tree_of(folder: Path, commit: str) -> Path:
    """Where `export` puts it."""
    return folder / commit[:16]


def export(repository: Repository, commit: str, folder: Path) -> Path:
    """`commit` in a worktree of our own below `folder`, submodules with it: a folder a commit, so that no file that
    Python compiled of one commit is taken for another's.

    Raises:
        BlockedError: its submodules cannot be had.
        MachineError: it cannot be made (disk).
    """
    tree = tree_of(folder, commit)
    worktree = Worktree(tree, repository)
    worktree.create(commit)
    try:
        worktree.checkout(commit)
    except BlockedError:
        worktree.remove()
        raise
    return tree
