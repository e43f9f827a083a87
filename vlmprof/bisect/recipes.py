"""Recipes: a probe for a kind of failure as TOML, and how flags on top of one become a plan."""

import difflib
import os
import shutil
import typing
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from vlmprof.bisect.history import Ends, Repository
from vlmprof.bisect.worktree import parse_fixup
from vlmprof.errors import UserError
from vlmprof.records.bisect import Plan, Symptom
from vlmprof.sizes import parse_size
from vlmprof.toml_file import read_toml
from vlmprof.workload.settings import data_overrides, load_workload, presets

__all__ = ["Recipe", "load_recipe", "make_plan", "recipes"]


class Recipe(BaseModel):
    """What a recipe may hold; each field is the flag of the same name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = ""
    symptom: Symptom = "same"
    command: tuple[str, ...] = ()
    workload: str = "tiny"
    set: tuple[str, ...] = ()
    data: str = ""
    steps: int = 3
    memory_limit: str = ""
    setup: str = ""
    setup_depends: tuple[str, ...] = ()
    fixup: tuple[str, ...] = ()
    timeout: float | None = None
    prove: str = ""
    confirm: int = 2


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
    if key == "symptom":
        return f"there is no symptom '{error['input']}': it is one of {', '.join(typing.get_args(Symptom))}"
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
        find_fix=find_fix,
        first_parent=first_parent,
        command=command,
        run_arguments=() if command else _run_arguments(recipe),
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


def _run_arguments(recipe: Recipe) -> tuple[str, ...]:
    """Those of `vlmprof run`; files by their whole path, as it starts in another folder."""
    load_workload(recipe.workload, recipe.set, data_overrides(recipe.data or None))
    source = presets().get(recipe.workload, Path(recipe.workload)).resolve()
    arguments = ["--workload", str(source), "--steps", str(recipe.steps), "--warmup", "1"]
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
