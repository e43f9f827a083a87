"""Suites: what a night runs, as TOML, checked; those of the working folder's `suites/` come before the installed."""

import difflib
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vlmprof.errors import UserError
from vlmprof.launch import RunOptions
from vlmprof.sizes import parse_size
from vlmprof.toml_file import read_toml
from vlmprof.workload.check import check_ranks
from vlmprof.workload.settings import data_overrides, load_workload
from vlmprof.workload.spec import Workload

__all__ = ["Suite", "SuiteWorkload", "load_suite", "suites"]

Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""Also the name of a folder."""


class SuiteWorkload(BaseModel):
    """What a suite says of one workload; `workload` empty means the preset that the table is named after."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = ""
    workload: str = ""
    set: tuple[str, ...] = ()
    data: str = ""
    steps: Count = 5
    warmup: Annotated[int, Field(ge=0)] = 1
    nproc: Count = 1
    stage_breakdown: bool = False
    """Also counts memory."""
    memory_limit: str = ""
    timeout: Annotated[float, Field(ge=1)] = 600.0
    """Seconds without a new step after which a run counts as hung."""
    rounds: Annotated[int, Field(ge=0)] = 0
    """Of the A/B comparison of times with the last good commit; 0: times are not compared."""
    slowdown: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Relative change of times that matters; default: what `vlmprof compare` takes."""
    confirm: Annotated[int, Field(ge=0)] = 2
    """How often a bisect tries culprit and parent again."""

    def load(self, name: str) -> Workload:
        """The typed workload, its data by their whole path: probes start in other folders.

        Raises:
            UserError: a name, a setting, a size or the number of ranks is wrong.
        """
        workload = load_workload(self.workload or name, self.set, data_overrides(self.data or None))
        check_ranks(workload, self.nproc)
        if not workload.data.path:
            return workload
        data = workload.data.model_copy(update={"path": str(Path(workload.data.path).resolve())})
        return workload.model_copy(update={"data": data})

    def options(self, megatron: Path, out: Path) -> RunOptions:
        """Of a run with the checkout `megatron`, recorded in `out`."""
        return RunOptions(
            steps=self.steps,
            warmup=self.warmup,
            nproc=self.nproc,
            stage_breakdown=self.stage_breakdown,
            megatron=str(megatron),
            timeout=self.timeout,
            out=out,
            memory_limit=parse_size(self.memory_limit) if self.memory_limit else 0,
        )


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = ""
    workloads: Annotated[dict[Name, SuiteWorkload], Field(min_length=1)]


@dataclass(frozen=True)
class Suite:
    source: str
    """Name or file as it was given."""
    digest: str
    """Of the content of all that counts: the suite and its workloads."""
    description: str
    workloads: dict[str, SuiteWorkload]


def suites() -> dict[str, Path]:
    """Name -> file of every suite: those of the working folder's `suites/` come before the installed ones."""
    found: dict[str, Path] = {}
    for folder in (Path("suites"), Path(str(resources.files("vlmprof.nightly") / "suites"))):
        for file in sorted(folder.glob("*.toml")):
            found.setdefault(file.stem, file)
    return found


def load_suite(source: str) -> Suite:
    """The suite `source` (a name or a file), every workload of it checked.

    Raises:
        UserError: there is none, it is no TOML, a key, a value or a workload is wrong.
    """
    content = _read(source)
    try:
        checked = _Content.model_validate(content)
    except ValidationError as error:
        told = sorted(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
        raise UserError(f"suite '{source}': {_complaint(told[0])}") from None
    digest = hashlib.sha256()
    for name, entry in checked.workloads.items():
        try:
            workload = entry.load(name)
            entry.options(Path(), Path())
        except UserError as error:
            raise UserError(f"suite '{source}', workload '{name}': {error}") from None
        digest.update(f"{name}\0{workload.hash8}\0{entry.model_dump_json()}\n".encode())
    return Suite(source, digest.hexdigest()[:16], checked.description, checked.workloads)


def _read(source: str) -> dict[str, Any]:
    known = suites()
    is_file = source.endswith(".toml") or "/" in source
    if not is_file and source not in known:
        raise UserError(
            f"there is no suite '{source}': {_near(source, known)}the suites are {', '.join(sorted(known))}"
        )
    path = Path(source) if is_file else known[source]
    return read_toml(path, f"there is no suite file '{source}'", f"suite '{source}'")


def _complaint(error: Any) -> str:
    """pydantic's first complaint as half a sentence."""
    location = [str(part) for part in error["loc"]]
    where = ".".join(part for part in location if part != "[key]")
    if error["type"] == "extra_forbidden":
        fields = SuiteWorkload.model_fields if len(location) > 1 else _Content.model_fields
        return f"there is no key '{where}': {_near(location[-1], fields)}the keys are {', '.join(fields)}"
    if error["type"] in ("missing", "too_short"):
        return "it names no workloads: write a table [workloads.NAME] for each"
    if "[key]" in location:
        return f"'{where}' is no name: use letters, digits, '.', '-' and '_'"
    return f"{where} is {error['input']!r}, but {error['msg'][0].lower()}{error['msg'][1:]}"


def _near(word: str, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(words), 1)
    return f"did you mean '{near[0]}'? " if near else ""
