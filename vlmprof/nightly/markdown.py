"""Foreign text (subjects, log lines, paths) in Markdown that GitHub renders: it says what it says and does nothing."""

import re

__all__ = ["code", "plain"]

ACTIVE = re.compile(r"([\\`*_\[\]<>#|~&])")
AUTOLINKED = re.compile(r"@(?=\w)|#(?=\d)|GH-(?=\d)|(?<=https)(?=:)|(?<=http)(?=:)|(?<=www)(?=\.)")
ZERO_WIDTH = "\u200b"


def plain(text: str, limit: int = 300) -> str:
    """One line, every sign with a meaning escaped; it calls nobody (@somebody) and links nowhere (#1, https:, www.)."""
    line = " ".join(text.split())
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    return ACTIVE.sub(r"\\\1", AUTOLINKED.sub(lambda match: match[0] + ZERO_WIDTH, line))


def code(text: str, limit: int = 300) -> str:
    """One line as a code span that no backtick in it ends."""
    line = " ".join(text.split())
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}".replace("|", "\\|")
