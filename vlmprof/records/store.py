"""Documents on disk: written whole or not at all, read by schema name and version."""

import contextlib
import gc
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from vlmprof.errors import MachineError, UserError
from vlmprof.records.comparison import COMPARISON_SCHEMA, Comparison
from vlmprof.records.figures import Record
from vlmprof.records.run import RUN_SCHEMA, Run

__all__ = [
    "collector_paused",
    "dump_json",
    "read_comparison",
    "read_document",
    "read_run",
    "read_runs",
    "write_output",
    "write_whole",
]

R = TypeVar("R", bound=Record)


def dump_json(document: Record, indent: int | None = 1) -> str:
    """The document as JSON, fields under their public names."""
    return document.model_dump_json(by_alias=True, indent=indent, exclude_none=True) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Write by temporary file, fsync and rename: a reader sees the old file or the new one, never part of one.

    Raises:
        MachineError: no space, or no right to write there.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o666 & ~_umask())
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise MachineError(f"'{path}' cannot be written: {error.strerror}") from None


def write_output(path: Path, text: str) -> None:
    """`write_whole` to a place that a person named.

    Raises:
        UserError: it is a folder, or lies in none.
        MachineError: no space, or no right to write there.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"'{path}' cannot be written: name a file in a folder that exists with -o")
    write_whole(path, text)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_run(path: Path) -> Run:
    """The run record of a run folder or a file.

    Raises:
        UserError: there is none, it is damaged, of another kind, or of a newer vlmprof (named).
    """
    return read_document(path / "run.json" if path.is_dir() else path, Run, RUN_SCHEMA, "run record")


def read_document(file: Path, kind: type[R], schema: str, what: str) -> R:
    """The document in `file`.

    Args:
        file: where it is.
        kind: its model.
        schema: name and version of the newest form that `kind` reads.
        what: how a person calls it, e.g. "run record".

    Raises:
        UserError: there is none, it is damaged, of another kind, or of a newer vlmprof (named).
    """
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"there is no {what} '{file}'") from None
    except OSError as error:
        raise UserError(f"'{file}' cannot be read: {error.strerror}") from None
    try:
        document = kind.model_validate_json(data)  # a third of the time of json.loads and model_validate
    except ValidationError as error:
        raise UserError(_trouble(file, data, schema, what, error)) from None
    if getattr(document, "schema_", schema) != schema or "schema_" not in document.model_fields_set:
        _check_schema(file, _object(file, data), schema)
    return document


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """Many run records, each a run folder or a file: a thousand take about a second.

    Raises:
        UserError: as `read_run`, for the first that cannot be read.
    """
    with collector_paused():
        return [read_run(path) for path in paths]


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """While many records are read the garbage collector would search the growing heap again and again, for two thirds
    of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _trouble(file: Path, data: bytes, schema: str, what: str, error: ValidationError) -> str:
    """What is wrong with a document that its model refused, in one sentence."""
    try:
        _check_schema(file, _object(file, data), schema)
    except UserError as plainer:
        return str(plainer)
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"'{file}' is not a whole {what}: {where}: {first['msg']}"


def _object(file: Path, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"'{file}' cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"'{file}' is not valid JSON (line {error.lineno}): it is damaged or cut off") from None
    except RecursionError:
        raise UserError(f"'{file}' is not a vlmprof document: it is nested too deeply") from None
    if not isinstance(content, dict):
        raise UserError(f"'{file}' is not a vlmprof document")
    return content


def _check_schema(file: Path, content: dict[str, Any], wanted: str) -> None:
    found = content.get("schema")
    kind, _, version = wanted.partition("/")
    if not isinstance(found, str) or found.partition("/")[0] != kind:
        raise UserError(f"'{file}' is {found or 'no vlmprof document'}, but a {kind} is needed")
    number = found.partition("/")[2]
    if not number.isdecimal() or int(number) > int(version):
        raise UserError(f"'{file}' is {found}, newer than the {wanted} that this vlmprof reads: upgrade vlmprof")


def read_comparison(path: Path) -> Comparison:
    """The comparison in a file.

    Raises:
        UserError: there is none, it is damaged, of another kind, or of a newer vlmprof (named).
    """
    return read_document(path, Comparison, COMPARISON_SCHEMA, "comparison")
