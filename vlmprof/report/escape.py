"""Foreign text (subjects, log lines, paths) in Markdown that GitHub renders: it says what it says and does nothing."""

import html
import re

__all__ = ["code", "escaped", "fenced"]

_SPECIAL = re.compile(r"([\\`*_\[\]#|~@])")
_LINKED = re.compile(r"@(?=\w)|#(?=\d)|GH-(?=\d)|(?<=https)(?=:)|(?<=http)(?=:)|(?<=ftp)(?=:)|(?<=www)(?=\.)")
ZERO_WIDTH = "\u200b"
"""Between the parts of what GitHub links after rendering, where no escape helps: @somebody, #1, https:, www."""


def escaped(text: str, limit: int = 0) -> str:
    """Plain text on one line, of `limit` signs at most: no Markdown, no tags, no mention of anybody, no link of it."""
    line = _LINKED.sub(lambda match: match[0] + ZERO_WIDTH, _one_line(text, limit))
    return html.escape(_SPECIAL.sub(r"\\\1", line), quote=False)  # inside a tag of ours no backslash escapes


def _one_line(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if not limit or len(line) <= limit else line[: limit - 1] + "…"


def code(text: str, limit: int = 300) -> str:
    """One line as a code span that no backtick in it ends."""
    line = _one_line(text, limit)
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}".replace("|", "\\|")


def fenced(text: str) -> str:
    """A code block whose fence is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"
