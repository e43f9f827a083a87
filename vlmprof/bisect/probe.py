"""One execution at one commit: set-up, command, time limit, and what is to be seen afterwards."""

import hashlib
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from vlmprof.bisect.execute import Ending, clean_environment, execute, set_up
from vlmprof.bisect.proved import check_origins, import_roots, read_origins, witness_variables
from vlmprof.bisect.symptoms import sight
from vlmprof.bisect.turns import Turns
from vlmprof.bisect.worktree import BlockedError, Fixup, Worktree
from vlmprof.errors import Exit, UserError
from vlmprof.records.bisect import Observation, Plan
from vlmprof.records.environment import package_versions, relevant_variables
from vlmprof.records.run import Outcome
from vlmprof.records.store import read_run

__all__ = ["Prober", "cache_key"]

REFUSED = (Exit.INPUT, Exit.ENVIRONMENT, Exit.NO_ANSWER)
"""Codes of `vlmprof run` that say nothing of the commit's training; the last is a fault of vlmprof's own."""
FORM = "2"
"""Of what is kept of a measurement: others are not read again."""
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
"""Signals that a program's own fault brings; the others come from outside."""


class Prober:
    """Runs the probe of a plan in a worktree; logs and what commands leave lie in `folder`."""

    def __init__(
        self, plan: Plan, worktree: Worktree, fixups: Sequence[Fixup], folder: Path, good_tree: Worktree | None = None
    ) -> None:
        self.plan = plan
        self.worktree = worktree
        self._turns = Turns(plan, good_tree, fixups) if good_tree is not None else None
        self.fixups = fixups
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def prepare(self, commit: str, revert: str = "") -> str:
        """Check `commit` out with everything on top; returns the tree.

        Raises:
            BlockedError: it cannot be tested.
            MachineError: the disk is full.
        """
        return self.worktree.checkout(commit, self.fixups, revert)

    def measure(self, label: str, threshold: float | None = None, by_stage: bool = False) -> Observation:
        """Run the probe on what is checked out. `label` names its files; `threshold` and `by_stage` (which takes
        longer) are for a metric in turns.

        Raises:
            MachineError: it imported what was to be proved from elsewhere.
            KeyboardInterrupt: Ctrl-C; its processes are gone.
        """
        log, out = self.folder / f"{label}.log", self.folder / f"{label}.out"
        proof = self.folder / f"{label}.imports"
        for left in (log, proof):
            left.unlink(missing_ok=True)
        if self._turns is not None:
            return self._turns.measure(self.worktree, log, out, threshold, by_stage)
        shutil.rmtree(out, ignore_errors=True)
        environment = clean_environment() | {"VLMPROF_OUT": str(out)}
        environment |= witness_variables(self.plan.prove, proof, os.environ.get("PYTHONPATH", ""), self._roots())
        try:
            set_up(self.plan, self.worktree, log)
            ending = self._run_command(log, out, environment)
        except BlockedError as error:
            return Observation(blocked=str(error), log=str(log))
        origins = read_origins(proof)
        imported = check_origins(origins, self.worktree.folder, self.plan.prove)
        if not self.plan.command and ending.code in REFUSED:
            said = sight(log, ending.code).evidence
            return Observation(
                exit_code=ending.code, blocked=f"vlmprof run refuses: {' '.join(said[-1:])}", log=str(log)
            )
        return _observe(ending, log, out / "run.json").model_copy(update={"imported": imported})

    def _run_command(self, log: Path, out: Path, environment: dict[str, str]) -> Ending:
        worktree = str(self.worktree.folder)
        if not self.plan.command:
            # the yardstick is the installed vlmprof: it starts elsewhere, and hands the worktree to its worker alone
            arguments = [*self.plan.run_arguments, "--megatron", worktree, "--out", str(out)]
            return execute([sys.executable, "-m", "vlmprof", "run", *arguments], log, environment, None, self.folder)
        out.mkdir()
        command = [part.replace("{worktree}", worktree) for part in self.plan.command]
        if "/" in command[0] and not (self.worktree.folder / command[0]).exists():
            raise BlockedError(f"'{self.plan.command[0]}' is not there at this commit")
        return execute(command, log, environment, self.plan.timeout, self.worktree.folder)

    def _roots(self) -> list[str]:
        return import_roots(self.worktree.folder) if self.plan.command else []


def _observe(ending: Ending, log: Path, record: Path) -> Observation:
    """What is to be seen: the record that was left, else the log."""
    common = Observation(exit_code=ending.code, seconds=round(ending.seconds, 3), log=str(log))
    if ending.code is None:
        message = f"not done after {ending.seconds:.0f} seconds"
        seen = sight(log, None)
        evidence = seen.evidence if seen.failure_class == "hang" else ()
        return common.model_copy(
            update={"failure_class": "hang", "signature": "time limit", "message": message, "evidence": evidence}
        )
    if record.exists():
        common = common.model_copy(update={"record": str(record)})
        outcome = _outcome(record)
        if outcome is not None and outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome is not None and outcome.failure_class is not None:
            message = outcome.message or ""
            told = any(message in line for line in outcome.evidence)
            place = " ".join(filter(None, (outcome.stage, outcome.phase)))
            return common.model_copy(
                update={
                    "failure_class": outcome.failure_class,
                    "signature": outcome.signature or f"{outcome.failure_class} {place}".strip(),
                    "message": message,
                    "evidence": outcome.evidence if told else (message, *outcome.evidence),
                }
            )
    seen = sight(log, ending.code)
    if not seen.failure_class and ending.code > 128:
        return common.model_copy(update=_by_signal(ending.code - 128) | {"evidence": seen.evidence})
    return common.model_copy(update=vars(seen))


def _outcome(record: Path) -> Outcome | None:
    """What the record says of how it ended; nothing where it is damaged, as a command that fails may leave it."""
    try:
        return read_run(record).outcome
    except UserError:
        return None


def _by_signal(number: int) -> dict[str, str]:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return {}
    kind = "crash" if number in CRASHES else "killed"
    return {"failure_class": kind, "signature": f"{kind} {name}", "message": f"ended by {name}"}


def cache_key(plan: Plan, tree: str, threshold: float | None = None) -> str:
    """What a measurement depends on: the tree (submodules' commits are in it), the probe, this machine's packages; in
    turns the other side and the threshold, which says when they end."""
    turns = (plan.without, *plan.fixups, plan.symptom, str(plan.rounds), str(threshold))
    parts = (
        FORM,
        tree,
        *plan.command,
        "run",
        *plan.run_arguments,
        f"{plan.setup}\0{plan.timeout}\0{plan.prove}",
        str(sorted(package_versions().items())),
        str(sorted(relevant_variables().items())),
        os.environ.get("PYTHONPATH", ""),
        sys.version,
        *(turns if plan.rounds else ()),
    )
    return hashlib.sha256("\0\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
