"""What counts as a change, and how seldom a false alarm may be: from a TOML file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from vlmprof.errors import UserError
from vlmprof.toml_file import read_toml

__all__ = ["Thresholds", "load_thresholds"]

ONLY = "only"


@dataclass(frozen=True)
class Thresholds:
    changes: Mapping[str, float]
    """Metric -> relative change that matters."""
    false_alarms: float
    """Chance that an A/A comparison finds any metric worse."""
    step_share: float
    """Of `false_alarms`: the part of the step time; the other measured metrics share the rest."""
    only: tuple[str, ...] = ()
    """The metrics that are judged; empty: all of them."""


def load_thresholds(file: Path | None = None) -> Thresholds:
    """The shipped thresholds, with what `file` says on top.

    Raises:
        UserError: the file cannot be read, names an unknown metric, or has a value that is no share.
    """
    shipped = tomllib.loads((resources.files("vlmprof.compare") / "thresholds.toml").read_text(encoding="utf-8"))
    own = read_toml(file, f"there is no thresholds file '{file}'", f"thresholds file '{file}'") if file else {}
    for table, values in own.items():
        if not isinstance(values, dict) or table not in shipped:
            raise UserError(f"thresholds file '{file}': there is no table '{table}', only {' and '.join(shipped)}")
        for name, value in values.items():
            if name == ONLY and table == "test":
                shipped[table][name] = _metrics(values, shipped["thresholds"], file)
                continue
            if name not in shipped[table]:
                raise UserError(
                    f"thresholds file '{file}': there is no '{name}'; there are {', '.join(_names(shipped, table))}"
                )
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise UserError(f"thresholds file '{file}': {name} is {value!r}, but a share between 0 and 1 is needed")
            shipped[table][name] = float(value)
    return Thresholds(shipped["thresholds"], **shipped["test"])


def _names(shipped: Mapping[str, Mapping[str, Any]], table: str) -> list[str]:
    return [*shipped[table], *([ONLY] if table == "test" else [])]


def _metrics(values: Mapping[str, Any], known: Mapping[str, float], file: Path | None) -> tuple[str, ...]:
    """The metrics of `only`.

    Raises:
        UserError: it is no list of metrics.
    """
    names = values[ONLY]
    if not isinstance(names, list) or not names or any(name not in known for name in names):
        raise UserError(
            f"thresholds file '{file}': only is {names!r}, but a list of metrics is needed, of {', '.join(known)}"
        )
    return tuple(names)
