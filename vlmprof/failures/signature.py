"""A failure's signature: the same on every run and machine, different for a different failure."""

import re

__all__ = ["normalise", "signature_of"]

LONGEST = 200

_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"\x1b\[[0-9;]*m", ""),
        (r"\b\w+://[^\s'\",)]+", "<url>"),
        (r"\b20\d\d[-/]\d\d[-/]\d\d(?:[ T_]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?Z?", "<time>"),
        (r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b", "<time>"),
        (r"\b0x[0-9a-fA-F]+\b", "<address>"),
        (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<id>"),
        (r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", "<id>"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<host>"),
        (r"(?i)\b(host(?:name)?|node|server)([ =:]+)(?!is\b|was\b|has\b|of\b|and\b)['\"]?[\w.-]+['\"]?", r"\1\2<host>"),
        (r"\[?\b[A-Za-z][\w-]*(?:\.[\w-]+)*\]?:\d{4,5}\b", "<host>"),
        (r"(?:(?<=^)|(?<=[\s'\"(=:\[<,]))(?:~|\.{0,2})(?:/[\w.+@%~-]+)+/?(?::\d+)?", "<path>"),
        (r"\b([\w-]+\.(?:cpp|cc|cu|cuh|h|hpp|py)):\d+", r"\1"),
        (r"\b\d+(?:\.\d+)? ?(?:[KMGTkmgt]i?B|bytes|[Bb]ytes?)\b", "<size>"),
        (r"(?i)\b(rank|node|gpu|worker|device|pid|cuda|layer|task)(?=\d)\d+", r"\1<n>"),
        (r"(?<![A-Za-z\d])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![A-Za-z]\w)", "<n>"),
        (r"<n>(?:\s*[,x]\s*<n>)+", "<n>"),
        (r"\s+", " "),
    )
)  # fmt: skip


def normalise(message: str) -> str:
    """A message without what differs from run to run: numbers, sizes, addresses, paths, hosts, times."""
    text = message[: LONGEST * 5]
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.strip()[:LONGEST].rstrip()


def signature_of(exception: str, message: str, frame: str | None) -> str:
    """`ExceptionType: message @ module/path.py:function`; parts that are not known are left out.

    Args:
        message: normalised.
    """
    text = ": ".join(part for part in (exception, message) if part)
    return f"{text} @ {frame}" if frame else text
