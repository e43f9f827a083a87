"""Run records for tests, made from events as a worker tells them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from vlmprof.records.assemble import assemble
from vlmprof.records.journal import Event
from vlmprof.records.run import Run
from vlmprof.records.store import dump_json

WORK = {
    "tokens": 1024,
    "useful_tokens": 500,
    "padding_tokens": 100,
    "images": 4,
    "image_patches": 400,
    "lengths": [200, 300],
    "patch_counts": [100, 300],
    "flops": {"model": 1e9, "useful": 8e8, "stages": {"head": {"forward": 1e8}}},
}
ENVIRONMENT = {
    "platform": "cpu-x1",
    "device": "cpu",
    "precision": "fp32",
    "ranks": 1,
    "threads": 1,
    "packages": {
        "torch": {"version": "2.13.0", "path": "/home/ada/venv/torch"},
        "megatron-core": {"version": "0.16.1", "path": "/home/ada/megatron", "commit": "a" * 40},
    },
    "host": {"system": "Linux 6.1", "cpu": "EPYC", "load_average": 0.5},
    "variables": {"TORCH_HOME": "/home/ada/.torch"},
}
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def a_run(
    number: int = 0,
    ms: float = 100.0,
    router: float = 10.0,
    steps: int = 6,
    *,
    workload: str = "tiny",
    hash8: str = "0123abcd",
    environment: dict[str, Any] | None = None,
    outcome: str = "done",
    peak: int = 1000,
) -> Run:
    """A run of `steps` plain, spanned and counted steps: `number` makes its times and its date differ from others'."""
    start = {
        "event": "start",
        "created": (BEGIN + timedelta(hours=number)).isoformat(timespec="seconds"),
        "command": ["vlmprof", "run", "--out", "/home/ada/runs/7"],
        "workload": {"name": workload, "hash": hash8},
        "realism": "real",
    }
    facts = {"event": "environment", "environment": {**ENVIRONMENT, **(environment or {})}}
    events: list[Event] = [start, facts]
    for index in range(steps):
        wobble = 1 + index / 100 + number / 1e6
        events += [
            _step(3 * index, index, "plain", ms * wobble),
            _step(3 * index + 1, index, "spanned", ms * wobble, ranges=_ranges(ms * wobble, router * wobble)),
            _step(3 * index + 2, index, "counted", ms * wobble, memory=_memory(peak)),
        ]
    events.append({"event": "failure", "outcome": {"class": "oom"}} if outcome == "failed" else {"event": outcome})
    return assemble(events)


def _step(index: int, batch: int, kind: str, ms: float, **facts: object) -> Event:
    common = {"event": "step", "index": index, "batch": batch, "kind": kind, "warmup": False, "ms": ms}
    return {**common, "loss": 2.0, "grad_norm": 1.0, "work": WORK, "ranges": [], "source": "wall-clock", **facts}


def _ranges(ms: float, router: float) -> list[object]:
    rest = ms - router - 5.0
    return [
        ["step", None, "step", 5.0, 1],
        ["decoder.router", 0, "forward", router, 2],
        ["decoder.experts", 0, "backward", rest, 2],
    ]


def _memory(peak: int) -> dict[str, object]:
    return {
        "peak": peak,
        "peak_where": ["head", "forward"],
        "held_at_peak": {"head": {"tensors": peak}},
        "held_after": {"head": {"parameters": 100}},
        "stage_peaks": [["head", "forward", peak]],
        "saved": [["decoder.experts", "forward", 50]],
        "sent": {},
        "rss": 1,
        "tokens_per_expert": [],
        "dropped": 0,
    }


def write_run(folder: Path, run: Run, **edits: object) -> Path:
    """A run folder with the record, some of its fields overwritten."""
    folder.mkdir(parents=True)
    content = {**json.loads(dump_json(run)), **edits}
    (folder / "run.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
