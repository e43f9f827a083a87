"""The baseline, `vlmprof.baseline/1`: accepted runs of one workload on one platform, and the store that they lie in.

`baselines/<device>-x<count>/<workload>-<hash8>.json`. Entries are only ever appended; one that no longer counts is
marked as dropped and stays, with its reason. A change is made under a lock and written whole, or not at all.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import Field, computed_field

from vlmprof.errors import MachineError, NoAnswerError, UserError
from vlmprof.records.figures import Record
from vlmprof.records.run import Run
from vlmprof.records.slim import differences_beneath, fingerprint, refuse_unfit, slim, tested_state
from vlmprof.records.store import dump_json, read_document, write_whole

__all__ = [
    "BASELINE_SCHEMA",
    "Baseline",
    "Dropped",
    "Entry",
    "add",
    "baseline_path",
    "default_store",
    "drop",
    "find_baseline",
    "list_baselines",
    "select_baselines",
]

BASELINE_SCHEMA = "vlmprof.baseline/1"


HOW = "accept runs that are good with vlmprof baseline add RUN... --why TEXT"


class Dropped(Record):
    who: str
    when: str
    why: str


class Entry(Record):
    """One accepted run. `id` is a hash of its step times: the same measurement cannot be accepted twice."""

    id: str
    who: str
    when: str
    """UTC, ISO 8601."""
    why: str
    commit: str = ""
    """What was measured: commit of the Megatron checkout, or `megatron-core==X` of a release."""
    command: tuple[str, ...] = ()
    run: Run
    """What comparing needs of it; without layers, hook points, findings, host names and paths."""
    dropped: Dropped | None = None


class Baseline(Record):
    schema_: Annotated[str, Field(alias="schema")] = BASELINE_SCHEMA
    platform: str
    workload: str
    hash: str
    entries: tuple[Entry, ...] = ()
    """In the order they were accepted."""

    @property
    def kept(self) -> tuple[Entry, ...]:
        """The entries that count."""
        return tuple(entry for entry in self.entries if entry.dropped is None)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that count."""
        return tuple(entry.run for entry in self.kept)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def caveats(self) -> tuple[str, ...]:
        """What differs beneath the platform among the runs that count: versions, driver, threads, host."""
        return differences_beneath(self.runs)


def default_store() -> Path:
    """The folder that is written to where none is named: `baselines` in the working folder."""
    return Path("baselines")


def baseline_path(store: Path, run: Run) -> Path:
    """Where the baseline of runs like `run` lies. Names come from the record, so that nothing but a plain file name is
    made of them.

    Raises:
        UserError: the record does not say its platform or its workload's hash.
    """
    platform = run.environment.platform if run.environment else "unknown"
    if platform == "unknown" or not run.workload.hash:
        what = "platform" if platform == "unknown" else "workload's hash"
        raise UserError(f"the run of {run.created} does not say its {what}, so that no baseline can hold it")
    return store / _plain(platform) / f"{_plain(run.workload.name)}-{_plain(run.workload.hash)}.json"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".")[:80] or "unnamed"


def find_baseline(store: Path | None, run: Run) -> Baseline:
    """The baseline to judge `run` by, with at least one run that counts.

    Args:
        store: a folder; None: `baselines` in the working folder, then what is shipped with vlmprof.
        run: its platform and workload are looked up.

    Raises:
        NoAnswerError: there is none yet.
        UserError: there is no such folder, or the document is damaged, of a newer vlmprof, or of another workload.
    """
    if store is not None and not store.is_dir():
        raise UserError(f"there is no store '{store}': name a folder of baselines with --store")
    for folder in (default_store(), _shipped()) if store is None else (store,):
        path = baseline_path(folder, run)
        if path.is_file() and (found := _read(path, run)).kept:
            return found
    where = f"'{store or default_store()}'"
    raise NoAnswerError(
        f"there is no baseline of {run.workload.name} {run.workload.hash} on {_platform(run)} in {where}: {HOW}"
    )


def list_baselines(store: Path | None = None) -> dict[Path, Baseline]:
    """File -> baseline of a store; None: of the working folder, then those shipped that it does not have itself.

    Raises:
        UserError: there is no such folder, or a document cannot be read.
    """
    if store is not None and not store.is_dir():
        raise UserError(f"there is no store '{store}': name a folder of baselines with --store")
    found: dict[Path, Path] = {}
    for folder in (default_store(), _shipped()) if store is None else (store,):
        for file in sorted(folder.glob("*/*.json")):
            found.setdefault(file.relative_to(folder), file)
    return {file: _read(file) for file in found.values()}


def select_baselines(store: Path | None, name: str = "") -> dict[Path, Baseline]:
    """Those of `list_baselines` whose file is `name`, or whose workload, hash or platform it is; empty: all.

    Raises:
        UserError: there is none, or as `list_baselines`.
        NoAnswerError: the store is empty.
    """
    every = list_baselines(store)
    if not every:
        raise NoAnswerError(f"'{store or default_store()}' holds no baseline: {HOW}")
    found = {
        path: one
        for path, one in every.items()
        if name in ("", str(path), path.stem, one.workload, one.hash, one.platform)
    }
    if not found:
        names = ", ".join(f"{path.parent.name}/{path.stem}" for path in every)
        raise UserError(f"there is no baseline '{name}': there are {names}")
    return found


def add(store: Path, runs: Sequence[Run], who: str, why: str, now: datetime) -> Baseline:
    """Accept runs of one workload on one platform: all of them or none. Returns the baseline as it was written.

    Raises:
        UserError: a run failed, has too few steps, a figure that is no number, other work than the rest, or is there
            already; `why` is empty; the baseline that is there cannot be read.
        MachineError: the store cannot be written.
    """
    if not runs:
        raise UserError("name at least one run to accept")
    if not why.strip():
        raise UserError("say why these runs are accepted: --why TEXT")
    paths = list(dict.fromkeys(baseline_path(store, run) for run in runs))
    if len(paths) > 1:
        kinds = ", ".join(f"{path.parent.name}/{path.stem}" for path in paths)
        raise UserError(f"these runs belong to different baselines ({kinds}): accept them one kind at a time")
    when = now.isoformat(timespec="seconds")
    fresh = tuple(_entry(run, who, when, why.strip()) for run in runs)
    refuse_unfit(runs)
    with _locked(paths[0].parent):
        before = _read(paths[0], runs[0]) if paths[0].exists() else _empty(runs[0])
        refuse_unfit(runs, before.runs)
        _refuse_repeats(before, fresh)
        after = before.model_copy(update={"entries": before.entries + fresh})
        write_whole(paths[0], _text(after))
    return after


def drop(store: Path, entry: str, who: str, why: str, now: datetime) -> tuple[Path, Baseline]:
    """Mark the entry whose id begins with `entry` as dropped. Returns the file and the baseline as it was written.

    Raises:
        UserError: there is none, there are several, or `why` is empty.
        MachineError: the store cannot be written.
    """
    if not why.strip():
        raise UserError("say why this run no longer counts: --why TEXT")
    found = [
        file
        for file, baseline in select_baselines(store).items()
        for one in baseline.kept
        if entry and one.id.startswith(entry)
    ]
    if len(found) != 1:
        which = "no accepted run" if not found else f"{len(found)} accepted runs"
        raise UserError(f"{which} in '{store}' has an id that begins with '{entry}': vlmprof baseline show lists them")
    mark = Dropped(who=who, when=now.isoformat(timespec="seconds"), why=why.strip())
    with _locked(found[0].parent):
        before = _read(found[0])
        entries = tuple(
            one.model_copy(update={"dropped": mark}) if one.dropped is None and one.id.startswith(entry) else one
            for one in before.entries
        )
        after = before.model_copy(update={"entries": entries})
        write_whole(found[0], _text(after))
    return found[0], after


def _shipped() -> Path:
    return Path(str(resources.files("vlmprof.records") / "baselines"))


def _platform(run: Run) -> str:
    return run.environment.platform if run.environment else "unknown"


def _empty(run: Run) -> Baseline:
    return Baseline(platform=_platform(run), workload=run.workload.name, hash=run.workload.hash)


def _read(path: Path, like: Run | None = None) -> Baseline:
    found = read_document(path, Baseline, BASELINE_SCHEMA, "baseline")
    if like is not None and (found.platform, found.hash) != (_platform(like), like.workload.hash):
        raise UserError(f"'{path}' holds a baseline of {found.workload} {found.hash} on {found.platform}: it was moved")
    return found


def _entry(run: Run, who: str, when: str, why: str) -> Entry:
    kept = slim(run)
    state = tested_state(run)
    return Entry(id=fingerprint(run), who=who, when=when, why=why, commit=state, command=kept.command, run=kept)


def _refuse_repeats(before: Baseline, fresh: Sequence[Entry]) -> None:
    seen = {entry.id: f"is in the baseline already ({entry.id})" for entry in before.kept}
    for entry in fresh:
        if entry.id in seen:
            raise UserError(f"the run of {entry.run.created} {seen[entry.id]}")
        seen[entry.id] = "is named twice"


def _text(baseline: Baseline) -> str:
    """One line an entry: what is appended is what a diff of the file shows."""
    head = json.dumps(baseline.model_dump(mode="json", by_alias=True, exclude={"entries"}), ensure_ascii=False)
    lines = ",\n".join(dump_json(entry, indent=None).rstrip() for entry in baseline.entries)
    return f'{head[:-1]}, "entries": [\n{lines}\n]}}\n'


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder of the store for one change; the kernel lets go of it when we die. The folder itself is what is
    locked: no lock file is left in what is under version control."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        kind = MachineError if error.errno == errno.ENOSPC else UserError
        raise kind(f"the store '{folder}' cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise MachineError(f"the store '{folder}' cannot be locked: {error.strerror}") from None
        for left in folder.glob(".*.json.*"):  # of one who was killed while he wrote
            left.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)
