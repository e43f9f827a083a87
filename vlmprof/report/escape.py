"""Foreign text (subjects, log lines, paths) in Markdown that GitHub renders: it says what it says and does nothing."""

import re

__all__ = ["escaped", "fenced"]

_SPECIAL = re.compile(r"([\\`*_\[\]|~])")


def escaped(text: str) -> str:
    """Plain text on one line: no Markdown, no tags, no mention of anybody, no link made of it."""
    line = text.replace("\r", " ").replace("\n", " ")
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _SPECIAL.sub(r"\\\1", line)
    return re.sub(r"([@#]|(?:https?|ftp):|www\.)(?=\S)", lambda match: match[0][:-1] + _entity(match[0][-1]), line)


def _entity(letter: str) -> str:
    return f"&#{ord(letter)};"


def fenced(text: str) -> str:
    """A code block whose fence is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"
