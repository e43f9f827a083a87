"""The minutes that a night may take: nothing new begins when they are used up."""

import math
import time

__all__ = ["Budget", "BudgetError"]


class BudgetError(Exception):
    """The budget is used up: what was to begin is left for another night."""


class Budget:
    """Counts from its making. A resumed night has its whole budget again."""

    def __init__(self, minutes: float | None) -> None:
        self._end = math.inf if minutes is None else time.monotonic() + minutes * 60

    @property
    def used_up(self) -> bool:
        return time.monotonic() >= self._end

    def check(self) -> None:
        """Raises:
        BudgetError: it is used up.
        """
        if self.used_up:
            raise BudgetError
