"""What is remembered from night to night: the last good commit of every workload with its record, and open matters.

One folder, one night at a time. The document is written whole after every workload:

    state.json      goods and matters by workload
    good/           the run record of each last good commit
    targets/        clones of repositories that were given by address
    trees/          checkouts, while a night lasts
    bisect/         a bisect's state for every workload; measurements are kept for later nights
    nights/         the nights' folders, where no other was named
"""

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from vlmprof.bisect.state import locked_folder, state_home
from vlmprof.errors import UserError
from vlmprof.records.figures import Record
from vlmprof.records.night import Good, Matter
from vlmprof.records.run import Run
from vlmprof.records.store import dump_json, read_document, read_run, write_whole

__all__ = ["Memory", "Remembered", "State", "default_state", "key_of"]

MEMORY_SCHEMA = "vlmprof.nightly-state/1"


class Remembered(Record):
    """Of one workload."""

    good: Good | None = None
    platform: str = ""
    """Of the last good record."""
    matters: tuple[Matter, ...] = ()
    """The open ones."""


class Memory(Record):
    schema_: Annotated[str, Field(alias="schema")] = MEMORY_SCHEMA
    workloads: dict[str, Remembered] = {}
    """By `key_of`."""


def key_of(target: str, workload_name: str, workload_hash: str) -> str:
    """Names a workload of a target. Nights of several kinds of machine keep their state in folders of their own."""
    return f"{workload_name}-{workload_hash}@{target}"


def default_state() -> Path:
    """`$XDG_STATE_HOME/vlmprof/nightly`, where no state folder is named."""
    return state_home() / "nightly"


class State:
    """The state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.targets = folder / "targets"
        self.trees = folder / "trees"
        self.nights = folder / "nights"
        self._document = folder / "state.json"
        self._good = folder / "good"

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the folder for one night. Raises as `locked_folder`."""
        busy = f"a night with the state '{self.folder}' is running: wait for it, or stop it"
        return locked_folder(self.folder, self._good, busy)

    def read(self) -> Memory:
        """What is remembered; nothing before the first night.

        Raises:
            UserError: it is damaged, or of a newer vlmprof.
        """
        if not self._document.exists():
            return Memory()
        return read_document(self._document, Memory, MEMORY_SCHEMA, "state of nights")

    def remember(self, memory: Memory, records: Mapping[str, Run]) -> None:
        """Keep what is known after a night; `records`: of new last good commits, by key.

        Raises:
            MachineError: no space, or no right to write.
        """
        for key, record in records.items():
            if (good := memory.workloads[key].good) is not None:
                write_whole(self._record(key, good), dump_json(record))
        write_whole(self._document, dump_json(memory))
        wanted = {self._record(key, known.good) for key, known in memory.workloads.items() if known.good is not None}
        for file in self._good.glob("*.json"):
            if file not in wanted:
                file.unlink(missing_ok=True)

    def good_file(self, key: str, good: Good) -> Path | None:
        """The record of the last good commit; None where it was lost."""
        file = self._record(key, good)
        try:
            read_run(file)
        except UserError:
            return None
        return file

    def _record(self, key: str, good: Good) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        return self._good / f"{name}-{good.commit.sha[:16]}.json"

    def bisect_folder(self, key: str) -> Path:
        """Of the workload's bisects."""
        return self.folder / "bisect" / hashlib.sha256(key.encode()).hexdigest()[:16]
