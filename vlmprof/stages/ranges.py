"""NVTX ranges in the domain `vlmprof`. Without a tool attached they cost well under a microsecond."""

from typing import Any

__all__ = ["NvtxRanges"]

DOMAIN = "vlmprof"


class NvtxRanges:
    """Push and pop by range id. Names are registered once and kept alive as long as this object: a name that is
    collected while a tool still refers to it crashes that tool under CUDA graphs."""

    def __init__(self) -> None:
        import nvtx

        self._domain = nvtx.get_domain(DOMAIN)
        self._attributes: list[Any] = []
        self.pop = self._domain.pop_range

    def register(self, name: str) -> None:
        """Give the next range id its name."""
        self._attributes.append(self._domain.get_event_attributes(message=name))  # registers it

    def push(self, range_id: int) -> None:
        self._domain.push_range(self._attributes[range_id])
