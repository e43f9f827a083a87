"""A probe that runs two commits in turns on this machine: the end without the symptom and the one under test, by
`vlmprof compare --ab`."""

import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from vlmprof.bisect.execute import clean_environment, execute, set_up
from vlmprof.bisect.metrics import thresholds_file
from vlmprof.bisect.proved import check_origins
from vlmprof.bisect.symptoms import sight
from vlmprof.bisect.worktree import BlockedError, Fixup, Worktree
from vlmprof.compare.ab import drop_set_aside
from vlmprof.compare.samples import STEP
from vlmprof.errors import Exit, UserError
from vlmprof.records.bisect import Observation, Plan
from vlmprof.records.run import Run
from vlmprof.records.store import read_run, write_whole

__all__ = ["Turns", "failed", "origins", "prune"]


class Turns:
    """Measures what is checked out in a worktree against the end without the symptom."""

    def __init__(self, plan: Plan, good: Worktree, fixups: Sequence[Fixup]) -> None:
        self.plan = plan
        self._good = good
        self._fixups = fixups
        self._ready = False

    def measure(self, worktree: Worktree, log: Path, out: Path, threshold: float | None, by_stage: bool) -> Observation:
        """Run both. What an interrupted one left in `out` is gone on with.

        Raises:
            MachineError: the runs imported what was to be proved from elsewhere; no space.
            KeyboardInterrupt: Ctrl-C; the runs that were made are kept.
        """
        document = out / "comparison.json"
        if document.exists():  # of an earlier bisect
            shutil.rmtree(out)
        try:
            self._prepare(log)
            set_up(self.plan, worktree, log)
        except BlockedError as error:
            return Observation(blocked=str(error), log=str(log))
        limits = out / "thresholds.toml"
        out.mkdir(parents=True, exist_ok=True)
        write_whole(limits, thresholds_file(self.plan, threshold))
        sides = [str(self._good.folder), str(worktree.folder)]
        rest = ["--rounds", str(self.plan.rounds), "--thresholds", str(limits), "--out", str(out / "ab")]
        rest += [] if by_stage or self.plan.symptom != STEP else ["--no-stage-breakdown"]
        command = [sys.executable, "-m", "vlmprof", "compare", "--ab", *sides, *self.plan.run_arguments, *rest]
        ending = execute([*command, "-o", str(document)], log, clean_environment(), None, log.parent)
        if ending.code == Exit.INTERRUPTED:
            raise KeyboardInterrupt
        seen = sight(log, ending.code)
        common = Observation(exit_code=ending.code, seconds=round(ending.seconds, 3), log=str(log))
        if document.exists():
            check_origins(origins(out / "ab", "a"), self._good.folder, self.plan.prove)
            imported = check_origins(origins(out / "ab", "b"), worktree.folder, self.plan.prove)
            prune(out / "ab")
            return common.model_copy(update={"exit_code": 0, "record": str(document), "imported": imported})
        if ending.code == Exit.RUN_FAILED and failed(out / "ab", "a"):
            return common.model_copy(update={"blocked": f"the end without the symptom fails: {seen.message}"})
        if ending.code == Exit.RUN_FAILED:
            return common.model_copy(update=vars(seen))
        return common.model_copy(update={"blocked": f"vlmprof compare refuses: {' '.join(seen.evidence[-1:])}"})

    def _prepare(self, log: Path) -> None:
        """The other side, once.

        Raises:
            BlockedError: it cannot be had, or its set-up fails.
        """
        if self._ready:
            return
        commit = self.plan.without
        self._good.create(commit)
        try:
            self._good.checkout(commit, self._fixups)
            set_up(self.plan, self._good, log)
        except BlockedError as error:
            raise BlockedError(f"the end without the symptom, {commit[:12]}: {error}") from None
        self._ready = True


def _runs(folder: Path, side: str) -> list[Run]:
    """The records of one side that can be read; those of runs that were set aside are not among them."""
    found = []
    for run in sorted(folder.glob(f"{side}-[0-9][0-9]")):
        with contextlib.suppress(UserError):
            found.append(read_run(run))
    return found


def failed(folder: Path, side: str) -> bool:
    """Whether a run of that side came to no good end."""
    return any(run.outcome.status == "failed" for run in _runs(folder, side))


def origins(folder: Path, side: str) -> list[str]:
    """Where the runs of one side had megatron.core from, each place once: their records say so, as imports of two sides
    cannot be told apart from outside."""
    facts = [run.environment.packages.get("megatron-core") for run in _runs(folder, side) if run.environment]
    return list(dict.fromkeys(f"{core.path}/__init__.py" for core in facts if core and core.path))


def prune(folder: Path) -> None:
    """Leave the records: logs and traces of up to 20 runs a commit would pile up."""
    drop_set_aside(folder)
    for left in folder.glob("[ab]-[0-9][0-9]/*"):
        if left.name != "run.json":
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
