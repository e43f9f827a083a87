"""Recipes: a probe for a kind of failure as TOML, and how flags on top of one become a plan."""

import difflib
import os
import shutil
import typing
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from vlmprof.bisect.history import Ends, Repository
from vlmprof.bisect.metrics import TIMES, default_rounds, metric_names
from vlmprof.bisect.worktree import parse_fixup
from vlmprof.errors import UserError
from vlmprof.records.bisect import FailureSymptom, Plan
from vlmprof.sizes import parse_share, parse_size
from vlmprof.toml_file import read_toml
from vlmprof.workload.check import check_ranks
from vlmprof.workload.settings import data_overrides, load_workload, presets

__all__ = ["Recipe", "load_recipe", "make_plan", "recipes"]

FAILURES = typing.get_args(FailureSymptom)
STEPS, STEPS_IN_TURNS = 3, 10
LEAST_ROUNDS = 3


class Recipe(BaseModel):
    """What a recipe may hold; each field is the flag of the same name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = ""
    symptom: str = "same"
    threshold: str | float | None = None
    rounds: int | None = None
    command: tuple[str, ...] = ()
    workload: str = "tiny"
    set: tuple[str, ...] = ()
    data: str = ""
    steps: int | None = None
    nproc: int = 1
    memory_limit: str = ""
    setup: str = ""
    setup_depends: tuple[str, ...] = ()
    fixup: tuple[str, ...] = ()
    timeout: float | None = None
    prove: str = ""
    confirm: int = 2

    @field_validator("symptom")
    @classmethod
    def _known(cls, symptom: str) -> str:
        if symptom not in (*FAILURES, *metric_names()):
            raise ValueError("unknown")
        return symptom


def recipes() -> dict[str, Path]:
    """Name -> file of every recipe: those of the working folder's `bisect/` come before the installed ones."""
    found: dict[str, Path] = {}
    for folder in (Path("bisect"), Path(str(resources.files("vlmprof.bisect") / "recipes"))):
        for file in sorted(folder.glob("*.toml")):
            found.setdefault(file.stem, file)
    return found


def load_recipe(source: str, flags: dict[str, Any]) -> Recipe:
    """The recipe `source` (a name, a file, or empty for the defaults) with the flags that were given on top.

    Raises:
        UserError: there is none, it is no TOML, it has an unknown key or a wrong value.
    """
    content = _read(source) if source else {}
    given = {key: value for key, value in flags.items() if value is not None and value != ()}
    if given.get("workload"):
        content.pop("command", None)
    try:
        return Recipe.model_validate(content | given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        where = f"recipe '{source}'" if source and key not in given else "the flags"
        raise UserError(f"{where}: {_complaint(key, first)}") from None


def _read(source: str) -> dict[str, Any]:
    known = recipes()
    is_file = source.endswith(".toml") or "/" in source
    if not is_file and source not in known:
        raise UserError(
            f"there is no recipe '{source}': {_near(source, known)}the recipes are {', '.join(sorted(known))}"
        )
    path = Path(source) if is_file else known[source]
    return read_toml(path, f"there is no recipe file '{source}'", f"recipe '{source}'")


def _complaint(key: str, error: Any) -> str:
    if error["type"] == "extra_forbidden":
        near = _near(key, Recipe.model_fields)
        return f"there is no key '{key}': {near}the keys are {', '.join(Recipe.model_fields)}"
    if key == "symptom" and isinstance(error["input"], str):
        near = _near(error["input"], (*FAILURES, *metric_names()))
        return (
            f"there is no symptom '{error['input']}': {near}it is a failure ({', '.join(FAILURES)}) or a metric "
            f"({', '.join(metric_names())})"
        )
    return f"{key} is {error['input']!r}, but {error['msg'][0].lower()}{error['msg'][1:]}"


def _near(word: str, words: typing.Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(words), 1)
    return f"did you mean '{near[0]}'? " if near else ""


def make_plan(
    repository: Repository,
    text: str,
    recipe: Recipe,
    *,
    find_fix: bool = False,
    first_parent: bool = False,
    name: str = "",
) -> Plan:
    """The plan of a bisect over the range `text`, everything checked that can be checked before the first probe.

    Raises:
        UserError: the range, the command, the workload or a fix-up is wrong, or the clone is shallow.
    """
    rounds = _rounds(recipe)
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
        threshold=parse_share(str(recipe.threshold)) if recipe.threshold is not None else None,
        rounds=rounds,
        find_fix=find_fix,
        first_parent=first_parent,
        command=command,
        run_arguments=() if command else _run_arguments(recipe, rounds),
        setup=recipe.setup,
        setup_depends=recipe.setup_depends,
        fixups=tuple(fixup.sha + (f"@{text.rpartition('@')[2]}" if fixup.commits else "") for fixup, text in fixups),
        timeout=recipe.timeout,
        prove=recipe.prove,
        confirm=recipe.confirm,
        recipe=name,
    )


def _anchored(command: tuple[str, ...], repository: Repository, ends: Ends) -> tuple[str, ...]:
    """The command with files of the caller's own (a test script that no commit holds) by their whole path: it runs in
    the worktree, where they are not."""

    def own(part: str) -> bool:
        if part.startswith(("/", "-")) or not os.path.isfile(part):  # noqa: PTH113  pathlib's raises on a long program text
            return False
        inside = ".." not in Path(part).parts
        return not (inside and any(repository.holds(end, Path(part).as_posix()) for end in (ends.old, ends.new)))

    return tuple(str(Path(part).resolve()) if own(part) else part for part in command)


def _rounds(recipe: Recipe) -> int:
    """Runs a side of a metric that is told in turns; 0 for what one run tells.

    Raises:
        UserError: a flag does not go with the symptom.
    """
    if recipe.symptom in FAILURES:
        if recipe.threshold is not None or recipe.rounds is not None:
            raise UserError("--threshold and --rounds are for a metric: name one with --symptom, such as step_ms")
        return 0
    rounds = default_rounds(recipe.symptom) if recipe.rounds is None else recipe.rounds
    if rounds != 0 and rounds < LEAST_ROUNDS:
        raise UserError(f"--rounds takes at least {LEAST_ROUNDS} runs of each side")
    if rounds == 0 and recipe.symptom in TIMES:
        raise UserError(f"{recipe.symptom} varies from run to run: --rounds takes at least {LEAST_ROUNDS}")
    if rounds and recipe.command:
        raise UserError(
            f"{recipe.symptom} is told by running both commits in turns, which takes a workload of vlmprof's, not a "
            "command (of exact metrics a command may leave the record: memory_peak, flops, losses, ...)"
        )
    if rounds and recipe.memory_limit:
        raise UserError("--memory-limit makes every step a counted one: it does not go with runs in turns")
    return rounds


def _run_arguments(recipe: Recipe, rounds: int) -> tuple[str, ...]:
    """Those of `vlmprof run`, or in turns of `vlmprof compare --ab`; files by their whole path, as it starts in another
    folder."""
    check_ranks(load_workload(recipe.workload, recipe.set, data_overrides(recipe.data or None)), recipe.nproc)
    source = presets().get(recipe.workload, Path(recipe.workload)).resolve()
    arguments = ["--workload", str(source), "--steps", str(recipe.steps or (STEPS_IN_TURNS if rounds else STEPS))]
    if not rounds:
        arguments += ["--warmup", "1"]
        arguments += ["--stage-breakdown"] if recipe.symptom in metric_names() else []
    if recipe.nproc > 1:
        arguments += ["--nproc", str(recipe.nproc)]
    for assignment in recipe.set:
        arguments += ["--set", assignment]
    if recipe.data:
        arguments += ["--data", str(Path(recipe.data).resolve()) if Path(recipe.data).exists() else recipe.data]
    if recipe.memory_limit:
        parse_size(recipe.memory_limit)
        arguments += ["--memory-limit", recipe.memory_limit]
    if recipe.timeout is not None:
        arguments += ["--timeout", f"{recipe.timeout:g}"]
    return tuple(arguments)
