"""Shared fixtures: a working folder of its own for every test, and one real Megatron in the test process."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests run in an empty folder: nothing they write lands in the checkout."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def megatron() -> Iterator[None]:
    """The CPU bridge and Megatron's parallel state for one rank, once for all tests of this process."""
    import torch

    from vlmprof.training.bridge import cpu_bridge
    from vlmprof.training.parallel import megatron_world
    from vlmprof.workload.settings import load_workload

    torch.set_num_threads(1)
    with cpu_bridge(), megatron_world(load_workload("tiny"), torch.device("cpu")):
        yield
