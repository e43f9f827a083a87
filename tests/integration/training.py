"""Train in the test process, where a test can plant things; and the small workload that most such tests use."""

import torch

from vlmprof.records.assemble import assemble
from vlmprof.records.journal import MemoryJournal
from vlmprof.records.run import Run
from vlmprof.records.schedule import PlannedStep, plan_kinds
from vlmprof.stages.clock import Clock
from vlmprof.workload.samples import open_source
from vlmprof.workload.settings import load_workload
from vlmprof.workload.spec import Workload

SMALL = ("model.encoder.num_layers=2", "model.decoder.num_layers=2", "seq_length=192", "global_batch_size=2")


ENVIRONMENT = {
    "platform": "cpu-x1",
    "device": "cpu",
    "precision": "fp32",
    "ranks": 1,
    "threads": 1,
    "packages": {},
    "host": {},
}


def small(*assignments: str, kind: str = "real") -> Workload:
    return load_workload("tiny", [*SMALL, *assignments], {"data.kind": kind})


def train_here(
    workload: Workload,
    steps: int = 2,
    warmup: int = 1,
    clock: Clock | None = None,
    schedule: list[PlannedStep] | None = None,
    memory_limit: int = 0,
) -> Run:
    """The record of training `workload` in this process; needs the fixture `megatron`."""
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

    from vlmprof.training.loop import train

    MoEAuxLossAutoScaler.main_loss_backward_scale = None  # of the class: a backward without a schedule leaves another
    journal = MemoryJournal()
    settings = workload.model_dump(mode="json")
    journal.tell("start", workload={"name": workload.name, "hash": workload.hash8, "settings": settings})
    journal.tell("environment", environment=ENVIRONMENT)
    schedule = schedule or plan_kinds(steps, warmup, ("spanned",))
    try:
        train(
            workload, open_source(workload), schedule, torch.float32, torch.device("cpu"), journal, clock, memory_limit
        )
        journal.tell("done")
    except torch.OutOfMemoryError as error:
        journal.tell("failure", outcome={"class": "oom", "message": str(error)})
    return assemble(journal.events)


def losses(run: Run) -> list[float | None]:
    return [step.loss for step in run.steps]
