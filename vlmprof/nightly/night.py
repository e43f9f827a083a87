"""A whole night: every workload trained, then times compared, then culprits sought, then everything told and kept.

In that order over all workloads, so that a budget that runs out leaves none of them unseen. The night's document is
written after every part; a second start of the same night goes on where it was ended, whatever ended it.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vlmprof.bisect.attempts import Watcher
from vlmprof.bisect.history import Repository
from vlmprof.errors import MachineError, UserError
from vlmprof.launch.children import stop_on_sigterm
from vlmprof.nightly.budget import Budget, BudgetError
from vlmprof.nightly.parts import Parts, Setting
from vlmprof.nightly.state import Memory, Remembered, State, key_of
from vlmprof.nightly.suite import Suite
from vlmprof.nightly.summary import summary
from vlmprof.nightly.target import open_target, resolve, without_credentials
from vlmprof.nightly.verdict import after, matter_of, settle, share_matters
from vlmprof.records.night import NIGHT_SCHEMA, Good, Night, NightTarget, WorkloadNight
from vlmprof.records.run import Run
from vlmprof.records.store import dump_json, read_document, read_run, write_whole
from vlmprof.report.html import write_report

__all__ = ["Asked", "spend_night"]


@dataclass(frozen=True)
class Asked:
    """What a night is asked to do."""

    suite: Suite
    target: str
    ref: str
    bisect_range: str = ""
    """GOOD..BAD: a night on BAD that holds it against GOOD and remembers nothing."""
    budget: float | None = None
    """Minutes."""
    out: Path | None = None


def spend_night(asked: Asked, state: State, say: Callable[[str], None], watch: Watcher) -> tuple[Night, Path]:
    """Do it, or go on with one that was interrupted; returns the night's document and its folder.

    Raises:
        UserError: the target, the ref or the range is wrong; the folder is taken; another night has the state.
        MachineError: the target cannot be fetched; no space.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the same call goes on.
    """
    with state.locked(), stop_on_sigterm():
        begun = _begun(asked, state)
        repository = open_target(asked.target, state.targets)
        night, folder = begun or _begin(asked, state, repository)
        return _Night(asked, state, repository, night, folder, say, watch).spend(), folder


def _begun(asked: Asked, state: State) -> tuple[Night, Path] | None:
    """The unfinished night that this one goes on with."""
    folders = [asked.out] if asked.out is not None else sorted(state.nights.glob("*/"), reverse=True)
    for folder in folders:
        if not (folder / "result.json").exists():
            continue
        night = read_document(folder / "result.json", Night, NIGHT_SCHEMA, "night")
        same = _identity(night) == _wanted(asked)
        if asked.out is not None and night.finished:
            raise UserError(f"output folder '{folder}' holds a finished night: name another one with --out")
        if asked.out is not None and not same:
            raise UserError(f"output folder '{folder}' holds an unfinished night of another suite, target or ref")
        if same and not night.finished:
            return night, folder
    if asked.out is not None and asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        raise UserError(f"output folder '{asked.out}' is not empty: name another one with --out")
    return None


def _identity(night: Night) -> tuple[str, str, str, str]:
    return night.suite_digest, night.target.repository, night.target.ref, night.bisect_range


def _wanted(asked: Asked) -> tuple[str, str, str, str]:
    return asked.suite.digest, without_credentials(asked.target), asked.ref, asked.bisect_range


def _begin(asked: Asked, state: State, repository: Repository) -> tuple[Night, Path]:
    now = datetime.now(UTC)
    memory = state.read()
    if asked.bisect_range:
        ends = repository.ends(asked.bisect_range)
        commit = ends.new
        good = Good(commit=repository.commit(ends.old), date=now.isoformat(timespec="seconds"))
        memory = Memory(workloads={key: Remembered(good=good) for key in _keys(asked).values()})
    else:
        commit = resolve(repository, asked.ref, asked.target)
    folder = asked.out or state.nights / f"{now:%Y%m%dT%H%M%S}-{commit[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output folder '{folder}' cannot be made: {error.strerror}") from None
    write_whole(folder / "before.json", dump_json(memory))
    night = Night(
        created=now.isoformat(timespec="seconds"),
        suite=asked.suite.source,
        suite_digest=asked.suite.digest,
        target=NightTarget(
            repository=without_credentials(asked.target), ref=asked.ref, commit=repository.commit(commit)
        ),
        bisect_range=asked.bisect_range,
        budget_minutes=asked.budget,
        workloads=tuple(
            WorkloadNight(
                name=name, hash=entry.load(name).hash8, good=memory.workloads.get(_keys(asked)[name], Remembered()).good
            )
            for name, entry in asked.suite.workloads.items()
        ),
    )
    write_whole(folder / "result.json", dump_json(night))
    return night, folder


def _keys(asked: Asked) -> dict[str, str]:
    shown = without_credentials(asked.target)
    return {name: key_of(shown, name, entry.load(name).hash8) for name, entry in asked.suite.workloads.items()}


class _Night:
    def __init__(
        self,
        asked: Asked,
        state: State,
        repository: Repository,
        night: Night,
        folder: Path,
        say: Callable[[str], None],
        watch: Watcher,
    ) -> None:
        self.night = night
        self.folder = folder
        self.state = state
        self.repository = repository
        self.keys = _keys(asked)
        self.before = Memory.model_validate_json((folder / "before.json").read_text(encoding="utf-8"))
        tonight = night.target.commit
        self.setting = Setting(repository, tonight, night.created, folder, state, Budget(asked.budget), say, watch)
        self.parts = {
            name: Parts(self.setting, name, entry, self.keys[name], self._known(name))
            for name, entry in asked.suite.workloads.items()
        }

    def spend(self) -> Night:
        self._write(*(part.model_copy(update={"not_done": ()}) for part in self.night.workloads))
        for name in self.parts:
            self._do(name, "run", self.parts[name].measure)
            self._do(name, "comparison", self.parts[name].hold)
        for name in self.parts:
            self._do(name, "times", self.parts[name].times)
        for name in self.parts:
            self._do(name, "bisect", self._search)
        settled = [self._settled(part) for part in self.night.workloads]
        matters = [matter for known in self.before.workloads.values() for matter in known.matters]
        self._write(*share_matters(settled, matters))
        if not self.night.bisect_range:
            self._remember()
        self.night = self.night.model_copy(update={"finished": datetime.now(UTC).isoformat(timespec="seconds")})
        write_whole(self.folder / "summary.md", summary(self.night))
        self._report()
        self._write(*self.night.workloads)
        shutil.rmtree(self.state.trees, ignore_errors=True)
        return self.night

    def _report(self) -> None:
        """The page; without what draws it the night is no worse, and says so."""
        try:
            write_report(self.night, self.folder / "report.html")
        except MachineError as error:
            self.setting.say(f"no report.html: {error}")

    def _known(self, name: str) -> Remembered:
        return self.before.workloads.get(self.keys[name], Remembered())

    def _do(self, name: str, what: str, how: Callable[[WorkloadNight], WorkloadNight]) -> None:
        """One part of one workload, written down; what there is no time for is written down as well."""
        part = next(part for part in self.night.workloads if part.name == name)
        try:
            done = how(part)
        except BudgetError:
            self.setting.say(f"{name}: no time is left for its {what}")
            done = part.model_copy(update={"not_done": (*part.not_done, what)})
        self._write(*(done if other.name == name else other for other in self.night.workloads))

    def _search(self, part: WorkloadNight) -> WorkloadNight:
        problem = self.parts[part.name].problem(part)
        if problem is None or part.bisect or part.matter is not None:
            return part
        found = [other.culprit.sha for other in self.night.workloads if other.culprit is not None]
        return self.parts[part.name].search(part, problem, list(dict.fromkeys(found)))

    def _settled(self, part: WorkloadNight) -> WorkloadNight:
        parts = self.parts[part.name]
        problem = parts.problem(part)
        if problem is not None and problem.searchable and part.matter is None:  # no time was left
            matter = matter_of(problem, part.name, parts.before, self.setting.tonight, self.night.created)
            part = part.model_copy(update={"matter": matter})
        return settle(part, problem, parts.before, self.setting.tonight)

    def _remember(self) -> None:
        """Last good commits and open matters; the same whenever it is done again."""
        memory, records = dict(self.before.workloads), {}
        for part in self.night.workloads:
            before, key = self._known(part.name), self.keys[part.name]
            known = after(part, before, self.setting.tonight, self.night.created, self._moves(before))
            memory[key] = known
            if known.good != before.good:
                records[key] = self._record(part)
        self.state.remember(Memory(workloads=memory), records)

    def _moves(self, before: Remembered) -> bool:
        if before.good is None:
            return True
        return not self.repository.is_ancestor(self.setting.tonight.sha, before.good.commit.sha)

    def _record(self, part: WorkloadNight) -> Run:
        return read_run(self.folder / part.run)

    def _write(self, *parts: WorkloadNight) -> None:
        self.night = self.night.model_copy(update={"workloads": parts})
        write_whole(self.folder / "result.json", dump_json(self.night))
