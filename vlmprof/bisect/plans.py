"""From a recipe and a range to a plan: everything checked that can be checked before the first probe."""

import hashlib
import os
import shutil
from pathlib import Path

import tomli_w

from vlmprof.bisect.history import Ends, Repository
from vlmprof.bisect.metrics import LOSSES, default_rounds, metric_names
from vlmprof.bisect.proved import DEFAULT_MODULE
from vlmprof.bisect.recipes import FAILURES, Recipe
from vlmprof.bisect.worktree import parse_fixup
from vlmprof.errors import UserError
from vlmprof.records.bisect import Plan
from vlmprof.records.store import write_whole
from vlmprof.sizes import parse_share, parse_size
from vlmprof.workload.check import check_ranks
from vlmprof.workload.settings import data_overrides, load_workload
from vlmprof.workload.spec import Workload

__all__ = ["make_plan"]

STEPS, STEPS_IN_TURNS = 3, 10


def make_plan(
    repository: Repository,
    text: str,
    recipe: Recipe,
    folder: Path,
    *,
    find_fix: bool = False,
    first_parent: bool = False,
    name: str = "",
) -> Plan:
    """The plan of a bisect over the range `text`.

    Args:
        repository: under test.
        text: the range, `GOOD..BAD`.
        recipe: what to hunt, and how.
        folder: of the bisect's state: the workload is kept there as it was understood, since probes start elsewhere and
            its files may change.
        find_fix: the old end has the symptom.
        first_parent: only the main line.
        name: of the recipe.

    Raises:
        UserError: the range, the command, the workload, a fix-up or a flag is wrong, or the clone is shallow.
    """
    rounds, threshold = _rounds(recipe), _threshold(recipe)
    repository.refuse_shallow()
    ends = repository.ends(text, find_fix)
    if recipe.confirm < 0 or (recipe.timeout is not None and recipe.timeout <= 0):
        raise UserError("--confirm takes a number of at least 0, --timeout one above 0")
    if recipe.command and "/" not in recipe.command[0] and shutil.which(recipe.command[0]) is None:
        raise UserError(f"the command '{recipe.command[0]}' does not exist on this machine")
    fixups = [(parse_fixup(text, repository), text) for text in recipe.fixup]
    command = _anchored(recipe.command, repository, ends)
    return Plan(
        repository=str(repository.folder),
        range=text,
        old=ends.old,
        new=ends.new,
        bases=ends.bases,
        symptom=recipe.symptom,
        threshold=threshold,
        rounds=rounds,
        find_fix=find_fix,
        first_parent=first_parent,
        command=command,
        run_arguments=() if command else _run_arguments(recipe, rounds, folder),
        setup=recipe.setup,
        setup_depends=recipe.setup_depends,
        fixups=tuple(fixup.sha + (f"@{text.rpartition('@')[2]}" if fixup.commits else "") for fixup, text in fixups),
        timeout=recipe.timeout,
        prove=recipe.prove,
        confirm=recipe.confirm,
        recipe=name,
    )


def _threshold(recipe: Recipe) -> float | None:
    """Raises:
    UserError: it is no share, or there is nothing for it to be a share of.
    """
    if recipe.threshold is None:
        return None
    if recipe.symptom in (*FAILURES, LOSSES):
        raise UserError("--threshold is for a metric that has a size: name one with --symptom, such as step_ms")
    if isinstance(recipe.threshold, float) and 0 < recipe.threshold < 1:
        return recipe.threshold
    return parse_share(str(recipe.threshold))


def _rounds(recipe: Recipe) -> int:
    """Runs a side of a metric that is told in turns; 0 for what one run tells.

    Raises:
        UserError: a flag does not go with the symptom.
    """
    if recipe.symptom in FAILURES:
        if recipe.rounds is not None:
            raise UserError("--rounds is for a metric: name one with --symptom, such as step_ms")
        return 0
    rounds = default_rounds(recipe.symptom) if recipe.rounds is None else recipe.rounds
    if rounds and recipe.command:
        raise UserError(
            f"{recipe.symptom} is told by running both commits in turns, which takes a workload of vlmprof's, not a "
            "command (a command may leave a record for what is exact: losses, flops)"
        )
    if rounds and recipe.memory_limit:
        raise UserError("--memory-limit makes every step a counted one: it does not go with runs in turns")
    if rounds and recipe.prove not in ("", DEFAULT_MODULE):
        raise UserError(
            f"--prove does not go with runs in turns: their records tell where {DEFAULT_MODULE} came from, no others"
        )
    return rounds


def _anchored(command: tuple[str, ...], repository: Repository, ends: Ends) -> tuple[str, ...]:
    """The command with files of the caller's own (a test script that no commit holds) by their whole path: it runs in
    the worktree, where they are not."""

    def own(part: str) -> bool:
        if part.startswith(("/", "-")) or not os.path.isfile(part):  # noqa: PTH113  pathlib's raises on a long program text
            return False
        inside = ".." not in Path(part).parts
        return not (inside and any(repository.holds(end, Path(part).as_posix()) for end in (ends.old, ends.new)))

    return tuple(str(Path(part).resolve()) if own(part) else part for part in command)


def _run_arguments(recipe: Recipe, rounds: int, folder: Path) -> tuple[str, ...]:
    """Those of `vlmprof run`, or in turns of `vlmprof compare --ab`."""
    workload = load_workload(recipe.workload, recipe.set, data_overrides(recipe.data or None))
    check_ranks(workload, recipe.nproc)
    steps = recipe.steps or (STEPS_IN_TURNS if rounds else STEPS)
    warmup = recipe.warmup if recipe.warmup is not None else (3 if rounds else 1)
    arguments = ["--workload", str(_kept(workload, folder)), "--steps", str(steps), "--warmup", str(warmup)]
    if recipe.symptom in metric_names() and recipe.stage_breakdown and not rounds:
        arguments += ["--stage-breakdown"]
    if recipe.nproc > 1:
        arguments += ["--nproc", str(recipe.nproc)]
    if recipe.memory_limit:
        parse_size(recipe.memory_limit)
        arguments += ["--memory-limit", recipe.memory_limit]
    if recipe.timeout is not None:
        arguments += ["--timeout", f"{recipe.timeout:g}"]
    return tuple(arguments)


def _kept(workload: Workload, folder: Path) -> Path:
    """A file of the whole workload, named after its content: what was measured is kept by it."""
    tree = workload.model_dump(mode="json", exclude={"name"}, exclude_defaults=True)
    data = tree.get("data", {})
    if data.get("path"):
        data["path"] = str(Path(data["path"]).resolve())
    text = tomli_w.dumps(tree)
    file = folder / "workloads" / hashlib.sha256(text.encode()).hexdigest()[:16] / f"{workload.name}.toml"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text)
    return file
