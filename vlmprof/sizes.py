"""Bytes and shares as people write and read them."""

import re

from vlmprof.errors import UserError

__all__ = ["axis_unit", "parse_share", "parse_size", "show_bytes"]

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def parse_size(text: str) -> int:
    """Bytes of `64MiB`, `1.5GB`, `2G` or `1000000`.

    Raises:
        UserError: it is none of these, or not above 0.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", text.upper())
    size = int(float(match[1]) * UNITS[match[2]]) if match and match[2] in UNITS else 0
    if size <= 0:
        raise UserError(f"'{text}' is not a size: write 512MiB, 2GiB or a number of bytes")
    return size


def parse_share(text: str) -> float:
    """The share that `3%` or `0.03` is.

    Raises:
        UserError: it is neither, or not between 0 and 1.
    """
    match = re.fullmatch(r"\s*(\d*\.?\d+)\s*(%?)\s*", text)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        raise UserError(f"'{text}' is not a share between 0 and 1: write 3% or 0.03")
    return share


def axis_unit(largest: float) -> tuple[int, str]:
    """The bytes and the name of the unit for an axis that reaches to `largest` bytes."""
    return (2**30, "GiB") if abs(largest) >= 2**32 else (2**20, "MiB")


def show_bytes(count: float) -> str:
    """Two to four digits and a binary unit: `12.3 MiB`, `640 KiB`."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.1f} {unit}"
