"""Foreign text (subjects, log lines, paths) in Markdown that GitHub renders: it says what it says and does nothing."""

import re

__all__ = ["code", "plain"]

ACTIVE = re.compile(r"([\\`*_{}\[\]()<>#|~!-])")
ZERO_WIDTH = "\u200b"


def plain(text: str, limit: int = 300) -> str:
    """One line, every sign with a meaning escaped; names nobody (@somebody), links nowhere (#1, https:, www.)."""
    line = " ".join(text.split())
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    inert = re.sub(r"@(?=\w)|(?<=https)(?=:)|(?<=http)(?=:)|(?<=www)(?=\.)", lambda match: match[0] + ZERO_WIDTH, line)
    return ACTIVE.sub(r"\\\1", inert)


def code(text: str, limit: int = 300) -> str:
    """One line as a code span that no backtick in it ends."""
    line = " ".join(text.split())
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}".replace("|", "\\|")
