"""TOML files of a person's own: recipes, suites, thresholds. What is wrong with one is one sentence."""

import tomllib
from pathlib import Path
from typing import Any

from vlmprof.errors import UserError

__all__ = ["read_toml"]


def read_toml(path: Path, missing: str, name: str) -> dict[str, Any]:
    """The content of a file.

    Args:
        missing: what to say where there is none.
        name: what the file is called in other complaints, e.g. `recipe 'mine.toml'`.

    Raises:
        UserError: it is not there, cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(missing) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name} is not valid TOML: {error}") from None
