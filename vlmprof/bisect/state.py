"""What a bisect leaves on disk: its document after every probe, what was measured, logs, the worktree, one lock.

It all lies in `$XDG_STATE_HOME/vlmprof/<hash of the git directory>/`, outside of the user's repository.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from vlmprof.errors import MachineError, UserError
from vlmprof.records.bisect import BISECT_SCHEMA, Bisect, Observation
from vlmprof.records.store import dump_json, write_whole

__all__ = ["State", "locked_folder", "state_folder", "state_home"]

PASSING = ("hardware", "host-oom")
"""Failure classes that another try may well not show: measured, but not kept for later bisects."""


def state_home() -> Path:
    """Where vlmprof keeps what it remembers: `$XDG_STATE_HOME/vlmprof`."""
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return root / "vlmprof"


def state_folder(key: str) -> Path:
    """The folder of the repository with this key."""
    return state_home() / key


@contextlib.contextmanager
def locked_folder(folder: Path, inner: Path, busy: str) -> Iterator[None]:
    """Hold a state folder, made with `inner` in it; the kernel lets go of it when we die.

    Raises:
        UserError: another one has it: `busy` says so.
        MachineError: it cannot be made.
    """
    try:
        inner.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a")
    except OSError as error:
        raise MachineError(f"the state folder '{folder}' cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(busy) from None
        yield


class State:
    """The state folder of one repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = folder / "tree"
        self.good_tree = folder / "good-tree"
        """Of the end without the symptom, where commits run in turns with it."""
        self.logs = folder / "logs"
        self.books = folder / "bisect.log"
        self._document = folder / "bisect.json"
        self._cache = folder / "cache"

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the folder for one bisect. Raises as `locked_folder`."""
        busy = "a bisect of this repository is running: wait for it, or stop it first"
        return locked_folder(self.folder, self._cache, busy)

    def read(self) -> Bisect | None:
        """The document of the last bisect; None where there is none.

        Raises:
            UserError: it is damaged, or of a newer vlmprof.
        """
        try:
            text = self._document.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            content = json.loads(text)
            found = str(content.get("schema"))
            if found != BISECT_SCHEMA and found.startswith("vlmprof.bisect/"):
                raise UserError(f"the state is {found}, newer than the {BISECT_SCHEMA} that this vlmprof reads")
            return Bisect.model_validate(content)
        except (ValidationError, ValueError, AttributeError):
            raise UserError(f"the state '{self._document}' is damaged: vlmprof bisect --abort clears it") from None

    def unfinished(self) -> Bisect | None:
        """The document of a bisect that has no answer yet."""
        document = self.read()
        return document if document is not None and document.answer is None else None

    def write(self, document: Bisect) -> None:
        """Keep the document.

        Raises:
            MachineError: no space, or no right to write.
        """
        write_whole(self._document, dump_json(document))

    def recall(self, key: str) -> Observation | None:
        """What was measured under `key`, in whichever bisect; nothing where its record is gone."""
        try:
            known = Observation.model_validate_json((self._cache / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            return None
        return None if known.record and not Path(known.record).exists() else known

    def remember(self, key: str, seen: Observation) -> None:
        """Keep a measurement, unless what stood in its way may be gone the next time."""
        if not seen.blocked and seen.failure_class not in PASSING:
            write_whole(self._cache / f"{key}.json", dump_json(seen))

    def tell(self, log: bool = False, abort: bool = False) -> Bisect | str:
        """The document of the last bisect; with `log` its `git bisect log`; with `abort` it is dropped

        Raises:
            UserError: there is none, it is damaged, or it is running and is to be dropped.
        """
        if abort:
            if not self._document.exists():
                raise UserError("there is no bisect of this repository")
            with self.locked():
                self.clear()
            return "dropped; what was measured is kept for later bisects"
        document = self.read()
        if document is None:
            raise UserError("there is no bisect of this repository")
        return (self.books.read_text(encoding="utf-8") if self.books.exists() else "") if log else document

    def clear(self) -> None:
        """Forget the bisect; measurements and logs stay."""
        for tree in (self.tree, self.good_tree):
            shutil.rmtree(tree, ignore_errors=True)
        for file in (self._document, self.books):
            file.unlink(missing_ok=True)
