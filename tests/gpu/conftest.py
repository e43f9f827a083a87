"""Real training on a CUDA device in this process; skipped with a reason where there is none."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from vlmprof.records.run import Run


def why_not() -> str:
    import torch

    if not torch.cuda.is_available():
        return "needs a CUDA device, and this machine has none"
    try:
        import transformer_engine.pytorch
    except Exception as error:  # a broken installation fails in many ways
        return f"Transformer Engine does not load ({error}): pip install 'vlmprof[gpu]'"
    return "" if transformer_engine.pytorch else "Transformer Engine is empty"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = why_not() if here else ""
    for item in here:
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.timeout(600))
        # Megatron, TE and torch.compile warn about each other; what they say is not ours to mend.
        item.add_marker(pytest.mark.filterwarnings("ignore"))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


SMALL = (
    "model.encoder.num_layers=2",
    "model.decoder.num_layers=2",
    "model.decoder.num_moe_experts=16",
    "model.decoder.moe_router_topk=4",
    "seq_length=2048",
    "global_batch_size=2",
)


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Run, Path]]:
    """`train(*assignments, steps=, kinds=, memory_limit=)` -> (record, folder): a wide, shallow h200-reference."""
    import torch

    from vlmprof.advice import advise
    from vlmprof.records.assemble import assemble
    from vlmprof.records.job import Job
    from vlmprof.records.journal import MemoryJournal
    from vlmprof.training.worker import work
    from vlmprof.workload.settings import load_workload

    def run(
        *assignments: str, steps: int = 3, kinds: tuple[str, ...] = ("spanned",), **options: object
    ) -> tuple[Run, Path]:
        folder = tmp_path_factory.mktemp("run")
        workload = load_workload("h200-reference", [*SMALL, *assignments])
        journal = MemoryJournal()
        settings = workload.model_dump(mode="json")
        journal.tell("start", workload={"name": workload.name, "hash": workload.hash8, "settings": settings})
        job = Job.model_validate({"workload": workload, "steps": steps, "warmup": 2, "kinds": kinds, **options})
        work(job, journal, folder)
        gc.collect()
        torch.cuda.empty_cache()
        return advise(assemble(journal.events)), folder

    return run


@pytest.fixture(scope="session")
def breakdown(train: Callable[..., tuple[Run, Path]]) -> tuple[Run, Path]:
    return train(kinds=("spanned", "counted"))
