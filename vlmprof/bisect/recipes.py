"""Recipes: what to hunt and how to probe for it, as TOML, with flags on top."""

import difflib
import typing
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from vlmprof.bisect.metrics import metric_names
from vlmprof.compare.ab import LEAST_ROUNDS
from vlmprof.errors import UserError
from vlmprof.records.bisect import FailureSymptom
from vlmprof.toml_file import read_toml

__all__ = ["FAILURES", "Recipe", "load_recipe", "recipes"]

FAILURES = typing.get_args(FailureSymptom)
Count = Annotated[int, Field(ge=1)]


class Recipe(BaseModel):
    """What a recipe may hold; each field is the flag of the same name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = ""
    symptom: str = "same"
    threshold: str | float | None = None
    rounds: Annotated[int, Field(ge=LEAST_ROUNDS)] | None = None
    command: tuple[str, ...] = ()
    workload: str = "tiny"
    set: tuple[str, ...] = ()
    data: str = ""
    steps: Count | None = None
    warmup: Annotated[int, Field(ge=0)] | None = None
    nproc: Count = 1
    stage_breakdown: bool = True
    """Of a metric's runs, where one of each commit tells it."""
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
