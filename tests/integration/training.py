"""Train in the test process, where a test can plant things; and the small workload that most such tests use."""

import torch

from vlmprof.records.assemble import assemble
from vlmprof.records.journal import MemoryJournal
from vlmprof.records.run import Run
from vlmprof.records.schedule import plan_kinds
from vlmprof.stages.clock import Clock
from vlmprof.workload.samples import open_source
from vlmprof.workload.settings import load_workload
from vlmprof.workload.spec import Workload

SMALL = ("model.encoder.num_layers=2", "model.decoder.num_layers=2", "seq_length=192", "global_batch_size=2")


def small(*assignments: str, kind: str = "real") -> Workload:
    return load_workload("tiny", [*SMALL, *assignments], {"data.kind": kind})


def train_here(workload: Workload, steps: int = 2, warmup: int = 1, clock: Clock | None = None) -> Run:
    """The record of training `workload` in this process; needs the fixture `megatron`."""
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

    from vlmprof.training.loop import train

    MoEAuxLossAutoScaler.main_loss_backward_scale = None  # of the class: a backward without a schedule leaves another
    journal = MemoryJournal()
    journal.tell("start", workload={"name": workload.name, "hash": workload.hash8})
    schedule = plan_kinds(steps, warmup, ("spanned",))
    train(workload, open_source(workload), schedule, torch.float32, torch.device("cpu"), journal, clock)
    journal.tell("done")
    return assemble(journal.events)


def losses(run: Run) -> list[float | None]:
    return [step.loss for step in run.steps]
