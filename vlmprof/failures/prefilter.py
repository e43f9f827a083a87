"""Where in a block any of some hundred texts may be: a few passes over the bytes, however many texts there are.

Each text is looked for by the four of its bytes that ordinary log lines hold least. Pairs of bytes go through two
tables of eight bits a pair (the idea of Hyperscan's Teddy), so that a gigabyte takes seconds.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["WINDOW", "Prefilter", "choose_windows"]

WINDOW = 4


def choose_windows(texts: Iterable[str], ordinary: str) -> dict[str, str]:
    """Text -> the four characters it is looked for by: those that `ordinary` has least reason to hold.

    Raises:
        ValueError: a text is shorter than that.
    """
    pairs = Counter(ordinary[at : at + 2] for at in range(len(ordinary) - 1))

    def commonness(window: str) -> tuple[int, int]:
        return ordinary.count(window), sum(pairs[window[at : at + 2]] for at in range(WINDOW - 1))

    chosen: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        if len(text) < WINDOW:
            raise ValueError(f"{text!r} is too short to be looked for")
        chosen[text] = min((text[at : at + WINDOW] for at in range(len(text) - WINDOW + 1)), key=commonness)
    return chosen


class Prefilter:
    """Finds windows in blocks of bytes."""

    def __init__(self, windows: Sequence[str]) -> None:
        encoded = sorted(window.encode() for window in windows)
        pairs = np.frombuffer(b"".join(encoded), "<u2").reshape(-1, 2)
        self._wide = np.frombuffer(b"".join(encoded), "<u4")
        self._first = np.zeros(1 << 16, np.uint8)
        self._second = np.zeros(1 << 16, np.uint8)
        for index, (first, second) in enumerate(pairs):
            bit = 1 << (index * 8 // len(pairs))
            self._first[first] |= bit
            self._second[second] |= bit

    def places(self, data: bytes) -> list[int]:
        """Where windows begin in `data`, ascending."""
        found: list[npt.NDArray[np.int64]] = []
        for parity in (0, 1):
            count = (len(data) - parity) // 2
            if count < 2:
                continue
            pairs = np.frombuffer(data, "<u2", count, parity)
            both = self._first.take(pairs[:-1])
            both &= self._second.take(pairs[1:])
            at = np.flatnonzero(both)
            wide = pairs[at].astype(np.uint32) | pairs[at + 1].astype(np.uint32) << 16
            found.append(at[np.isin(wide, self._wide)] * 2 + parity)
        places: list[int] = np.sort(np.concatenate(found)).tolist() if found else []
        return places
