"""CUDA graphs by Megatron's own machinery, each in a process of its own, as `vlmprof run` does it."""

from pathlib import Path

import pytest

from tests.gpu.conftest import SMALL
from vlmprof.launch import RunOptions, run_workload
from vlmprof.records.figures import Figure
from vlmprof.workload.settings import load_workload


@pytest.mark.parametrize(
    ("implementation", "hidden"),
    [("transformer_engine", {"decoder.attention", "decoder.router"}), ("local", {"decoder.router"})],
)
def test_what_a_graph_swallows_is_hidden_and_never_0(tmp_path: Path, implementation: str, hidden: set[str]) -> None:
    workload = load_workload("h200-reference", [*SMALL, f"cuda_graph={implementation}"])
    run, _ = run_workload(workload, RunOptions(steps=2, stage_breakdown=True, out=tmp_path / "run"))
    assert run.outcome.status == "ok", run.outcome
    assert run.device is not None
    assert {text.partition(":")[0] for text in run.device.hidden if " in part " not in text} == hidden
    for stage in hidden:
        assert run.device.hides(stage)
        rows = [row for row in run.stages if row.name == stage]
        assert not any(isinstance(figure, Figure) for row in rows for figure in (row.busy_ms, row.total_ms))
    # What replays is charged to what launches it, not to a neighbour that happens to be open.
    (told,) = {text.partition("launches a step: ")[2].partition(")")[0] for text in run.device.hidden}
    assert told == "8 in decoder" if implementation == "transformer_engine" else "decoder" in told
    assert run.coverage_kernels is not None
    assert run.coverage_kernels >= 0.99
    assert run.memory is not None
    assert run.memory.device is not None
    assert isinstance(run.memory.device.graph_pools, Figure)
    assert run.memory.device.graph_pools.value > 0
    losses = [step.loss for step in run.steps]
    assert losses[-1] < losses[0] / 2  # type: ignore[operator]
