"""Any document of vlmprof from disk, by the schema that it names."""

import json
from pathlib import Path

from vlmprof.errors import UserError
from vlmprof.records.bisect import BISECT_SCHEMA, Bisect
from vlmprof.records.comparison import COMPARISON_SCHEMA, Comparison
from vlmprof.records.figures import Record
from vlmprof.records.history import HISTORY_SCHEMA, History
from vlmprof.records.night import NIGHT_SCHEMA, Night
from vlmprof.records.run import RUN_SCHEMA, Run
from vlmprof.records.store import read_document

__all__ = ["read_any"]

KINDS: dict[str, tuple[type[Record], str, str]] = {
    "vlmprof.run": (Run, RUN_SCHEMA, "run record"),
    "vlmprof.comparison": (Comparison, COMPARISON_SCHEMA, "comparison"),
    "vlmprof.night": (Night, NIGHT_SCHEMA, "night"),
    "vlmprof.history": (History, HISTORY_SCHEMA, "history"),
    "vlmprof.bisect": (Bisect, BISECT_SCHEMA, "bisect document"),
}
"""Kind -> its model, the newest schema that is read, how a person calls it."""
FILES = ("result.json", "comparison.json", "bisect.json", "run.json")
"""What a folder is asked for, in order: a night's folder holds runs, too."""


def read_any(path: Path) -> Record:
    """The document in a file, or in a folder that vlmprof wrote.

    Raises:
        UserError: there is none, it is damaged, of a kind that is not shown, or of a newer vlmprof (named).
    """
    file = path
    if path.is_dir():
        file = next((path / name for name in FILES if (path / name).is_file()), path / "run.json")
    schema = _schema_of(file)
    kind = KINDS.get(schema.partition("/")[0])
    if kind is None:
        names = ", ".join(what for _, _, what in KINDS.values())
        raise UserError(f"'{file}' is {schema or 'no vlmprof document'}: name a {names}")
    return read_document(file, *kind)


def _schema_of(file: Path) -> str:
    """What the file calls itself; a file that cannot be read is left to the reader's own words."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return RUN_SCHEMA
    return str(content.get("schema", "")) if isinstance(content, dict) else ""
