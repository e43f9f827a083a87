"""Run records to compare, made from figures: what a real run's record holds, without a real run."""

from collections.abc import Sequence
from typing import Any

from vlmprof.records.assemble import assemble
from vlmprof.records.journal import Event
from vlmprof.records.run import Run

ENVIRONMENT = {
    "platform": "cpu-x1",
    "device": "cpu",
    "precision": "fp32",
    "ranks": 1,
    "threads": 1,
    "packages": {"megatron-core": {"version": "0.16.1"}},
    "host": {"load_average": 0.5, "cores": 2},
}
SETTINGS = {
    "data": {"kind": "real", "path": "", "seq_length": 256},
    "knobs": {"freeze_vision": False, "freeze_projector": False, "freeze_decoder": False, "global_batch_size": 4},
    "layout": {"ep": 1},
    "seed": 1,
}
WORK = {
    "tokens": 1024,
    "useful_tokens": 500,
    "padding_tokens": 100,
    "images": 4,
    "image_patches": 400,
    "lengths": [200, 300],
    "patch_counts": [100, 300],
    "flops": {"model": 1e9, "useful": 8e8, "stages": {"head": {"forward": 1e8, "backward": 2e8}}},
}
BATCH_MS = (90.0, 100.0, 130.0, 95.0, 105.0, 120.0)
"""What batches take: they differ more than runs do."""


def a_run(
    slow: float = 1.0,
    *,
    router_ms: float = 10.0,
    saved: int = 10_000,
    losses: Sequence[float] = (3.0, 2.9, 2.8, 2.7, 2.6, 2.5),
    created: str = "2026-01-01T00:00:00+00:00",
    batches: int = 6,
    work: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    hash8: str = "0" * 8,
    realism: str = "real",
    rss: float = 5e8,
    failed: dict[str, Any] | None = None,
) -> Run:
    """A run of `batches` batches, each trained on plain, spanned and counted; times are `slow` times the usual."""
    events: list[Event] = [
        {
            "event": "start",
            "created": created,
            "realism": realism,
            "workload": {"name": "tiny", "hash": hash8, "settings": settings or SETTINGS},
        },
        {"event": "environment", "environment": {**ENVIRONMENT, **(environment or {})}},
        {"event": "model", "parameters": {"trained": 1000}},
    ]
    for batch in range(batches):
        usual = BATCH_MS[batch % len(BATCH_MS)]
        for turn, kind in enumerate(("plain", "spanned", "counted")):
            events.append(
                _step(3 * batch + turn, batch, kind, usual * slow, router_ms * slow, saved, work or WORK, rss)
            )
            events[-1]["loss"] = losses[batch % len(losses)]
    events.append({"event": "failure", "outcome": failed} if failed else {"event": "done"})
    return assemble(events)


def _step(
    index: int, batch: int, kind: str, ms: float, router_ms: float, saved: int, work: dict[str, Any], rss: float
) -> Event:
    ranges = [["decoder.router", 0, "forward", router_ms, 1], ["decoder.experts", 0, "forward", 0.7 * ms, 1]]
    rest = 0.2 * ms
    event: Event = {
        "event": "step",
        "index": index,
        "batch": batch,
        "kind": kind,
        "warmup": False,
        "ms": ms,
        "grad_norm": 1.0,
        "work": work,
        "source": "wall-clock",
        "ranges": [],
    }
    if kind == "spanned":
        event |= {"ranges": [*ranges, ["step", None, "step", rest, 1]], "ms": router_ms + 0.9 * ms}
    if kind == "counted":
        experts = {"parameters": 50_000, "gradients": 50_000, "optimizer_state": 100_000}
        event["memory"] = {
            "peak": 300_000 + 10 * batch + saved,
            "peak_where": ["head", "backward"],
            "held_at_peak": {"decoder.experts": {**experts, "tensors": 100_000 + 10 * batch + saved}},
            "held_after": {"decoder.experts": experts},
            "saved": [["decoder.experts", "forward", saved]],
            "stage_peaks": [["decoder.experts", "forward", 300_000]],
            "rss": rss,
            "tokens_per_expert": [[0, [1, 2]]],
            "dropped": 0,
            "sent": {},
        }
    return event
