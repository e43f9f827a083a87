"""NVTX ranges in the domain `vlmprof`. Without a tool attached they cost well under a microsecond."""

from typing import Any

__all__ = ["NvtxRanges"]

DOMAIN = "vlmprof"


class NvtxRanges:
    """`push(names[id])` and `pop()`. Names are registered once and kept alive as long as this object: a name that is
    collected while a tool still refers to it crashes that tool under CUDA graphs."""

    def __init__(self) -> None:
        import nvtx

        self._domain = nvtx.get_domain(DOMAIN)
        self.push, self.pop = self._domain.push_range, self._domain.pop_range
        self.names: list[Any] = []
        """Event attributes with a registered name, by range id."""

    def register(self, name: str) -> None:
        """Give the next range id its name."""
        self.names.append(self._domain.get_event_attributes(message=name))
