"""From a preset's name or a TOML file and `--set KEY=VALUE`s to a typed workload, or one sentence that says why not."""

import difflib
import hashlib
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from vlmprof.errors import UserError
from vlmprof.workload.check import check
from vlmprof.workload.spec import Data, Workload

__all__ = ["data_overrides", "load_workload", "presets", "setting_paths", "split_data"]

Tree = dict[str, Any]


def presets() -> dict[str, Path]:
    """Name -> TOML file of every preset: those of the working folder's `presets/` come before the installed ones."""
    found: dict[str, Path] = {}
    for folder in (Path("presets"), Path(str(resources.files("vlmprof.workload") / "presets"))):
        for file in sorted(folder.glob("*.toml")):
            found.setdefault(file.stem, file)
    return found


def load_workload(source: str, assignments: Iterable[str] = (), overrides: Mapping[str, Any] | None = None) -> Workload:
    """The workload `source` (a preset's name or a TOML file) with `KEY=VALUE` assignments, then `overrides`, on top.

    Raises:
        UserError: the name, a key, a value or the combination is wrong; the message names the nearest key.
    """
    tree, name = _read(source, seen=())
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key.strip():
            raise UserError(f"--set takes KEY=VALUE, but got '{assignment}'")
        _put(tree, resolve_key(key.strip()), _parse_value(text.strip()))
    for path, value in (overrides or {}).items():
        _put(tree, path, value)
    tree["name"] = name
    _fingerprint_data(tree)
    try:
        workload = Workload.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"workload '{source}': {_sentence(error)}") from None
    return check(workload)


def split_data(data: str | None) -> list[str | None]:
    """The parts of `--data A,B`; a path that exists as it is written is one part, commas or not."""
    if data is None or _exists(Path(data)):
        return [data]
    return [part.strip() for part in data.split(",")]


def data_overrides(data: str | None) -> dict[str, Any]:
    """The settings that `--data real|mock|text-only|PATH` stands for.

    Raises:
        UserError: it is neither a kind nor an existing path.
    """
    if data is None:
        return {}
    kinds = [kind for kind in typing.get_args(Data.model_fields["kind"].annotation) if kind != "path"]
    if data in kinds:
        return {"data.kind": data, "data.path": ""}
    path = Path(data)
    if not _exists(path):
        raise UserError(f"--data '{data}' is neither {', '.join(kinds)} nor an existing folder or JSONL file")
    return {"data.kind": "path", "data.path": str(path.resolve())}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, a folder that may not be entered
        return False


def _fingerprint_data(tree: Tree) -> None:
    """Set `data.fingerprint`, which is of the data behind `data.path` and nobody's to choose."""
    data = tree.get("data")
    if isinstance(data, dict):
        data.pop("fingerprint", None)
        if data.get("kind") == "path" and isinstance(data.get("path"), str) and _exists(Path(data["path"])):
            data["fingerprint"] = _fingerprint(Path(data["path"]))


def _fingerprint(path: Path) -> str:
    """Of names and sizes: tells data sets apart without reading them."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        name = file.relative_to(path) if path.is_dir() else Path(file.name)
        digest.update(f"{name}\0{file.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]


def setting_paths(model: type[BaseModel] = Workload, prefix: str = "") -> Iterator[str]:
    """Every full dotted path that `--set` takes."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_paths(field.annotation, f"{prefix}{name}.")
        elif prefix or name == "seed":
            yield prefix + name


def resolve_key(key: str) -> str:
    """The full path of `key`, which is a full path or an unambiguous last segment of one.

    Raises:
        UserError: unknown (with the nearest key) or ambiguous (with the candidates).
    """
    paths = list(setting_paths())
    if key in paths:
        return key
    ending = [path for path in paths if path.endswith("." + key)]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise UserError(f"setting '{key}' is ambiguous: write {' or '.join(ending)}")
    raise UserError(f"there is no setting '{key}'{_nearest(key, paths)}")


def _read(source: str, seen: tuple[str, ...]) -> tuple[Tree, str]:
    """The raw tree of a preset or file, its `base` merged beneath, and the workload's name."""
    if source in seen:
        raise UserError(f"workload '{source}' is its own base: {' -> '.join((*seen, source))}")
    known = presets()
    is_file = source.endswith(".toml") or "/" in source
    if not is_file and source not in known:
        near = difflib.get_close_matches(source, known, 1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UserError(f"there is no preset '{source}': {hint}the presets are {', '.join(sorted(known))}")
    path = Path(source) if is_file else known[source]
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no workload file '{source}'") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"workload file '{source}' cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"workload file '{source}' is not valid TOML: {error}") from None
    name = path.stem
    base = tree.pop("base", None)
    if base is not None:
        if not isinstance(base, str):
            raise UserError(f"workload file '{source}': base must be the name of a preset or a file")
        tree = _merge(_read(base, (*seen, source))[0], tree)
    tree.pop("name", None)
    return tree, name


def _merge(below: Tree, above: Tree) -> Tree:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _put(tree: Tree, path: str, value: Any) -> None:
    *folders, leaf = path.split(".")
    for folder in folders:
        child = tree.setdefault(folder, {})
        if not isinstance(child, dict):
            raise UserError(f"'{folder}' is a table of settings, not a single value")
        tree = child
    tree[leaf] = value


def _parse_value(text: str) -> Any:
    """A TOML value (`4`, `true`, `["mlp"]`); what is none is a plain string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _nearest(key: str, paths: Iterable[str]) -> str:
    """' - did you mean X?' by full path or last segment, or where to look."""
    by_name: dict[str, str] = {}
    for path in paths:
        by_name.setdefault(path, path)
        by_name.setdefault(path.rsplit(".", 1)[-1], path)
    near = difflib.get_close_matches(key, by_name, 1) or difflib.get_close_matches(key.rsplit(".", 1)[-1], by_name, 1)
    return f": did you mean '{by_name[near[0]]}'?" if near else "; docs/workloads.md lists them all"


def _sentence(error: ValidationError) -> str:
    """pydantic's first complaint as one sentence."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"there is no setting '{path}'{_nearest(path, setting_paths())}"
    if first["type"] == "missing":
        return f"setting '{path}' is missing"
    kind = _expected(path)
    return f"setting '{path}' is {first['input']!r}, but {kind or first['msg'][0].lower() + first['msg'][1:]}"


def _expected(path: str) -> str:
    """What a setting takes, in plain words, from its annotation; empty when nothing better than pydantic's words."""
    annotation: Any = Workload
    for part in path.split("."):
        fields = getattr(annotation, "model_fields", {})
        if part not in fields:
            return ""
        field = fields[part]
        annotation = field.annotation
    bounds = "".join(
        f" {text} {getattr(item, name)}"
        for item in field.metadata
        for name, text in (("gt", "above"), ("ge", "of at least"))
        if getattr(item, name, None) is not None
    )
    if typing.get_origin(annotation) is typing.Literal:
        return f"it takes one of {', '.join(typing.get_args(annotation))}"
    if typing.get_origin(annotation) is tuple:
        return 'it takes a list of names, e.g. ["mlp", "core_attn"]'
    words = {
        int: f"it takes a whole number{bounds}",
        float: f"it takes a number{bounds}",
        bool: "it takes true or false",
    }
    return words.get(annotation, "")
