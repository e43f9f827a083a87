"""`vlmprof.attach` in somebody else's training loop."""

import pytest
import torch

import vlmprof
from tests.integration.training import small
from vlmprof.records.run import Run
from vlmprof.records.store import read_run

pytestmark = [pytest.mark.usefixtures("megatron"), pytest.mark.filterwarnings("ignore")]


def own_loop(profile: vlmprof.Profile, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
    """A loop as a user writes it: no Megatron schedule, no Megatron optimizer."""
    for batch in profile.data(batches):
        optimizer.zero_grad()
        loss = (model(batch) * batch.loss_mask).mean()
        loss.backward()
        optimizer.step()
        profile.step(loss.item())


def attached_run() -> tuple[vlmprof.Profile, Run]:
    import itertools

    from vlmprof.workload.batches import make_micro_batch
    from vlmprof.workload.initial import initialise
    from vlmprof.workload.model import build_model
    from vlmprof.workload.packing import plan_steps
    from vlmprof.workload.samples import open_source

    workload = small()
    model = build_model(workload, torch.float32)
    initialise(model, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [
        make_micro_batch(workload, step.sequences[:1], torch.float32)
        for step in itertools.islice(plan_steps(workload, open_source(workload)), 9)
    ]
    profile = vlmprof.attach(model, optimizer)
    own_loop(profile, model, optimizer, batches)
    profile.close()
    return profile, profile.record()


def test_the_same_record_and_table(tmp_path) -> None:
    profile, run = attached_run()
    assert run.outcome.status == "ok"
    assert [step.kind for step in run.steps] == ["plain"] * 4 + ["spanned", "plain"] * 2 + ["spanned"]
    assert run.coverage is not None
    assert run.coverage > 0.9
    for stage, phase in (
        ("encoder.attention", "backward"),
        ("decoder.experts", "forward"),
        ("optimizer", "step"),
        ("data", "step"),
        ("head", "backward"),
    ):
        row = run.stage(stage, phase)
        assert row is not None
        assert row.self_ms.value > 0
    assert "├─ decoder" in profile.table()
    profile.save(tmp_path / "run.json")
    assert read_run(tmp_path).stages == run.stages


def test_throughput_is_absent_with_a_reason_when_the_work_is_not_told() -> None:
    _, run = attached_run()
    assert "pass work=" in run.throughput["tokens_per_second"].absent


def test_a_closed_profile_ignores_further_steps() -> None:
    profile, run = attached_run()
    profile.step()
    assert len(profile.record().steps) == len(run.steps)


def test_a_model_without_megatron_modules_is_reported_as_missing_everything() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profile = vlmprof.attach(model, optimizer)
    for _ in range(6):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        profile.step()
    run = profile.record()
    assert {"encoder", "decoder.router", "head"} <= set(run.missing)
    assert run.stage("optimizer", "step") is not None
    assert run.stage("decoder.router", "forward") is None
