"""A run's sampled steps as a trace in the Chrome trace event format, which Perfetto and chrome://tracing open.

Ranks are processes. In each the track `stages` holds the ranges as nested slices; they lie where they lay in time on
their host's clock, from the first sampled step on.

Format: "Trace Event Format" of the Chromium project (complete events `X`, metadata events `M`; times in microseconds).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmprof.errors import UserError
from vlmprof.records.journal import Event, read_journal
from vlmprof.records.stage_tree import range_name

__all__ = ["read_ranks", "trace_of", "trace_text"]

NO_SPANS = (
    "holds no spans of steps: they are in the journals (rank0.jsonl, ...) that vlmprof run --stage-breakdown leaves"
)
TRACK = 1
PHASE_COLOURS = {
    "forward": "thread_state_running",
    "backward": "thread_state_iowait",
    "recompute": "bad",
    "step": "grey",
}
"""Reserved colour names of the format; viewers that do not know them choose by name."""
_JOURNAL = re.compile(r"rank(\d+)\.jsonl")


def read_ranks(folder: Path) -> dict[int, list[Event]]:
    """Rank -> the events of its journal, for a run folder.

    Raises:
        UserError: it is no folder, or none of its journals holds the spans of a step.
    """
    if not folder.is_dir():
        raise UserError(f"'{folder}' is one file: name the run folder, a trace is made from its journals")
    ranks: dict[int, list[Event]] = {}
    for path in folder.iterdir():
        match = _JOURNAL.fullmatch(path.name)
        if match is not None:
            try:
                ranks[int(match[1])] = read_journal(path)[0]
            except OSError as error:
                raise UserError(f"'{path}' cannot be read: {error.strerror}") from None
    if not any(_sampled(events) for events in ranks.values()):
        raise UserError(f"'{folder}' {NO_SPANS}")
    return dict(sorted(ranks.items()))


def _sampled(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event["event"] == "step" and event.get("spans") and not event.get("warmup")]


def trace_of(ranks: Mapping[int, Sequence[Event]], about: Mapping[str, str]) -> dict[str, Any]:
    """The trace as a JSON object: `traceEvents` and `otherData` (`about`).

    Raises:
        UserError: a journal is damaged.
    """
    try:
        origin = min(event["spans_began"] for events in ranks.values() for event in _sampled(events))
        events = [one for rank, told in ranks.items() for one in _rank_events(rank, told, origin)]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"the spans of a journal are damaged ({error}): repeat the run") from None
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(about)}


def _rank_events(rank: int, events: Sequence[Event], origin: float) -> Iterator[dict[str, Any]]:
    host = next((str(event.get("host", "")) for event in events if event["event"] == "worker"), "")
    yield _metadata(rank, "process_name", {"name": f"rank {rank}" + (f" on {host}" if host else "")})
    yield _metadata(rank, "process_sort_index", {"sort_index": rank})
    yield _metadata(rank, "thread_name", {"name": "stages"}, TRACK)
    for event in _sampled(events):
        start = (event["spans_began"] - origin) * 1e6
        for stage, layer, phase, begin, end, _ in event["spans"]:
            arguments = {"stage": stage, "phase": phase, "step": event["index"]}
            yield {
                "name": f"step {event['index']}" if stage == "step" else range_name(stage, layer, phase),
                "cat": phase,
                "ph": "X",
                "pid": rank,
                "tid": TRACK,
                "ts": round(start + begin * 1e3, 1),
                "dur": round(round(start + end * 1e3, 1) - round(start + begin * 1e3, 1), 1),
                "cname": PHASE_COLOURS.get(phase, "grey"),
                "args": arguments if layer is None else {**arguments, "layer": layer},
            }


def _metadata(rank: int, name: str, arguments: dict[str, Any], track: int = 0) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": rank, "tid": track, "args": arguments}


def trace_text(trace: Mapping[str, Any]) -> str:
    """The trace as JSON, an event a line."""
    head = json.dumps({key: value for key, value in trace.items() if key != "traceEvents"})
    lines = ",\n".join(json.dumps(event) for event in trace["traceEvents"])
    return f'{head[:-1]}, "traceEvents": [\n{lines}\n]}}\n'
