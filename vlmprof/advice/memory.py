"""What would free how much memory, with the arithmetic. Each estimate is held against a run that follows it, in tests.

The figures come from what was counted: bytes saved for backward by stage (of the micro-batch that saved most, or of
the one that ran out), and bytes of gradients and optimizer state by stage.
"""

from typing import Any

from vlmprof.records.figures import Figure
from vlmprof.records.run import Run

__all__ = ["freed_by_freezing_vision", "freed_by_full_recompute", "freed_by_half_micro_batch", "saved_by_stage"]

Figures = dict[str, float | str]
BYTES = {"fp32": 4, "bf16": 2}


def saved_by_stage(run: Run) -> dict[str, float]:
    """Stage -> bytes saved for backward: at the failure where there was one, else in counted steps."""
    if run.outcome.saved is not None:
        return dict(run.outcome.saved)
    found: dict[str, float] = {}
    for row in run.stages:
        saved = row.memory.saved_activations if row.memory else None
        if isinstance(saved, Figure) and row.phase == "forward":
            found[row.name] = saved.value
    return found


def lasting_by_stage(run: Run, *categories: str) -> dict[str, float]:
    """Stage -> bytes of gradients, optimizer state, ..."""
    found: dict[str, float] = {}
    if run.outcome.held is not None:
        for stage, row in run.outcome.held.items():
            found[stage] = sum(row.get(category, 0) for category in categories)
        return found
    for one in run.stages:
        for category in categories:
            measured = getattr(one.memory, category) if one.memory else None
            if isinstance(measured, Figure):
                found[one.name] = found.get(one.name, 0.0) + measured.value
    return found


def _sum_under(table: dict[str, float], *tops: str) -> float:
    return sum(size for stage, size in table.items() if stage.split(".")[0] in tops)


def _settings(run: Run) -> dict[str, Any] | None:
    return run.workload.settings


def _shapes(run: Run) -> tuple[float, float]:
    """(tokens, patches) of the micro-batch that failed; else means."""
    shapes = run.outcome.shapes
    if shapes is not None:
        length = run.workload.settings["data"]["seq_length"] if run.workload.settings else 0
        return shapes["sequences"] * length, sum(shapes["patches"])
    settings, work = run.workload.settings, run.effective_work
    if settings is None or work is None:
        return 0.0, 0.0
    micro_batches = settings["knobs"]["global_batch_size"] / settings["knobs"]["micro_batch_size"]
    return work.tokens / micro_batches, work.image_patches / micro_batches


def freed_by_full_recompute(run: Run) -> Figures | None:
    """saved by the layers - the inputs that full recompute keeps instead (one hidden state a layer).

    Outside the layers stay: the encoder's patches, the decoder's final norm's input.
    """
    settings = _settings(run)
    if settings is None or settings["knobs"]["recompute"] == "full" or run.environment is None:
        return None
    saved = saved_by_stage(run)
    width = BYTES[run.environment.precision]
    tokens, patches = _shapes(run)
    encoder, decoder = settings["model"]["encoder"], settings["model"]["decoder"]
    stays = width * tokens * decoder["hidden_size"]
    kept = width * decoder["num_layers"] * tokens * decoder["hidden_size"]
    if _sum_under(saved, "encoder"):
        stays += width * patches * 3 * encoder["temporal_patch_size"] * encoder["patch_size"] ** 2
        kept += width * encoder["num_layers"] * patches * encoder["hidden_size"]
    layers = _sum_under(saved, "encoder", "decoder")
    freed = layers - stays - kept
    return {"freed": freed, "saved": layers, "kept": kept + stays} if freed > 0 else None


def freed_by_freezing_vision(run: Run) -> Figures | None:
    """What the encoder saves for backward, its gradients and its optimizer state."""
    settings = _settings(run)
    if settings is None or settings["knobs"]["freeze_vision"]:
        return None
    saved = _sum_under(saved_by_stage(run), "encoder")
    lasting = _sum_under(lasting_by_stage(run, "gradients", "optimizer_state"), "encoder")
    return {"freed": saved + lasting, "saved": saved, "lasting": lasting} if saved + lasting else None


def freed_by_half_micro_batch(run: Run) -> Figures | None:
    """Half of what a micro-batch saves for backward: every sequence saves its own."""
    settings = _settings(run)
    size = settings["knobs"]["micro_batch_size"] if settings else 1
    saved = sum(saved_by_stage(run).values())
    if size < 2 or not saved:
        return None
    smaller = size // 2
    return {"freed": saved * (1 - smaller / size), "saved": saved, "from": float(size), "to": float(smaller)}
