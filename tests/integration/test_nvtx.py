"""NVTX ranges as a profiler sees them: read back through NVTX's own injection, not through our code."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PROGRAM = """
import sys, warnings
warnings.filterwarnings("ignore")
import torch
from vlmprof.training.bridge import cpu_bridge
from vlmprof.training.parallel import megatron_world
from tests.integration.training import small, train_here
workload = small("recompute=selective", 'recompute_modules=["moe"]')
with cpu_bridge(), megatron_world(workload, torch.device("cpu")):
    if sys.argv[1] == "raise":
        from megatron.core.transformer.moe.router import TopKRouter
        plain = TopKRouter.forward
        def broken(self, *args):
            if "forward" in vars(self):  # wrapped: a step with ranges
                raise ValueError("planted")
            return plain(self, *args)
        TopKRouter.forward = broken
    try:
        train_here(workload, steps=1, warmup=0)
    except ValueError:
        assert sys.argv[1] == "raise"
"""


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("nvtx") / "listener.so"
    source = Path(__file__).with_name("nvtx_listener.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return library


def heard(listener: Path, folder: Path, mode: str) -> list[list[str]]:
    """What the listener wrote: [push, domain, name, message type] and [pop, domain]."""
    written = folder / "ranges.tsv"
    root = str(Path(__file__).parents[2])
    environment = dict(
        os.environ, NVTX_INJECTION64_PATH=str(listener), NVTX_LISTENER_FILE=str(written), PYTHONPATH=root
    )
    subprocess.run([sys.executable, "-c", PROGRAM, mode], check=True, env=environment)
    return [line.split("\t") for line in written.read_text().splitlines()]


@pytest.mark.parametrize("mode", ["train", "raise"])
def test_ranges_are_nested_named_registered_and_balanced(listener: Path, tmp_path: Path, mode: str) -> None:
    events = [event for event in heard(listener, tmp_path, mode) if event[1] == "vlmprof"]
    stack: list[str] = []
    seen: Counter[str] = Counter()
    parents: dict[str, set[str]] = {}
    for event in events:
        if event[0] == "pop":
            stack.pop()
            continue
        _, _, name, message_type = event
        assert message_type == "3"  # a registered string: its name outlives the range
        parents.setdefault(name, set()).add(stack[-1] if stack else "")
        stack.append(name)
        seen[name] += 1
    assert stack == []
    assert seen["step/step"] == 1
    if mode == "raise":
        assert seen["decoder.0.router/forward"] == 1
        return
    assert seen["decoder.1.router/forward"] == seen["decoder.1.router/recompute"] == 2
    assert seen["projector/backward"] == 2
    assert parents["decoder.1.router/forward"] == {"decoder.1/forward"}
    assert parents["decoder.1.experts/recompute"] == {"decoder/backward"}
    assert parents["encoder.0.attention/backward"] == {"encoder/backward"}
