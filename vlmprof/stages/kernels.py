"""From a trace of one step to device time by stage: every kernel belongs to the innermost range that launched it.

A trace holds the ranges by thread, the launches with their thread and correlation id, and the kernels, copies and
memsets with the same id. All times here are microseconds, as in the trace.

    busy(stage, phase)  = | union of the intervals of all it launched, itself or below |
    exposed             = | union of its communication kernels  -  union of all other kernels |
    idle                = step - union of all intervals, charged to the range that the host was in
"""

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmprof.records.stage_tree import ancestors

__all__ = ["COMMUNICATION", "DEVICE", "SYNCS", "StepKernels", "read_kernels", "subtract", "union"]

Where = tuple[str, str]
"""(stage, phase)"""
Interval = tuple[float, float]
OUTSIDE: Where = ("other", "step")

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH = ("cuda_runtime", "cuda_driver")
COMMUNICATION = re.compile(r"nccl|nvshmem|deep_?ep|hybrid_?ep|\bsendrecv\b|all_?to_?all|all_?reduce", re.IGNORECASE)
"""Names of kernels that move data between ranks."""
SYNCS = re.compile(r"(cuda|cu)(Stream|Device|Event|Ctx)Synchronize")
"""Calls in which the host waits for the device."""
GRAPH = re.compile(r"(cuda|cu)GraphLaunch")


@dataclass
class StepKernels:
    """Device time of one traced step, milliseconds."""

    step_ms: float
    busy_ms: float
    exposed_ms: float
    idle_ms: float
    kernel_ms: float
    """Sum over kernels; more than busy where streams overlap."""
    named_ms: float
    """Of it, in a stage other than `other`."""
    kernels: int
    graph_launches: dict[str, int] = field(default_factory=dict)
    """Stage -> CUDA graphs it launched."""
    rows: list[tuple[str, str, float, float, float, float, int]] = field(default_factory=list)
    """(stage, phase, busy, busy of its own, exposed, idle of its own, host syncs of its own)"""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals in order that cover the same points."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def subtract(whole: Sequence[Interval], taken: Sequence[Interval]) -> list[Interval]:
    """The points of `whole` outside `taken`; both as `union` gives them."""
    left: list[Interval] = []
    number = 0
    for begin, end in whole:
        while number < len(taken) and taken[number][1] <= begin:
            number += 1
        at = number
        while at < len(taken) and taken[at][0] < end:
            if taken[at][0] > begin:
                left.append((begin, taken[at][0]))
            begin = max(begin, taken[at][1])
            at += 1
        if begin < end:
            left.append((begin, end))
    return left


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


class HostTimeline:
    """Which range one thread was in, from moment to moment."""

    def __init__(self, ranges: Iterable[tuple[float, float, Where]]) -> None:
        self.times: list[float] = []
        self.places: list[Where | None] = []
        open_: list[tuple[float, Where]] = []
        for begin, end, where in sorted(ranges, key=lambda item: (item[0], -item[1])):
            while open_ and open_[-1][0] <= begin:
                self._close(open_)
            self._add(begin, where)
            open_.append((end, where))
        while open_:
            self._close(open_)

    def _close(self, open_: list[tuple[float, Where]]) -> None:
        end, _ = open_.pop()
        self._add(end, open_[-1][1] if open_ else None)

    def _add(self, time: float, where: Where | None) -> None:
        self.times.append(time)
        self.places.append(where)

    def at(self, time: float) -> Where | None:
        """The innermost range then; None outside all."""
        number = bisect_right(self.times, time) - 1
        return self.places[number] if number >= 0 else None

    def edges(self, begin: float, end: float) -> list[float]:
        """Moments strictly between at which the place changes."""
        return self.times[bisect_right(self.times, begin) : bisect_right(self.times, end)]


class _Host:
    """All threads: the one that runs backward counts before the one that waits for it."""

    def __init__(self, events: Sequence[Mapping[str, Any]], known: Mapping[str, Where]) -> None:
        by_thread: dict[Any, list[tuple[float, float, Where]]] = {}
        self.step: Interval | None = None
        main = None
        for event in events:
            where = known.get(event.get("name", "")) if event.get("cat") == "user_annotation" else None
            if where is None:
                continue
            begin, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
            if where == ("step", "step"):
                self.step, main, where = (begin, end), event["tid"], OUTSIDE
            by_thread.setdefault(event["tid"], []).append((begin, end, where))
        self.threads = {thread: HostTimeline(ranges) for thread, ranges in by_thread.items()}
        others = [timeline for thread, timeline in self.threads.items() if thread != main]
        self.order = [*others, *([self.threads[main]] if main is not None else [])]

    def at(self, time: float, thread: Any = None) -> Where:
        """Where the host was; where `thread` was, if it is given and was anywhere."""
        own = self.threads.get(thread)
        for timeline in [own, *self.order] if own else self.order:
            where = timeline.at(time)
            if where is not None:
                return where
        return OUTSIDE

    def split(self, gap: Interval) -> Iterable[tuple[Where, float]]:
        """A stretch of time by where the host was in it."""
        begin, end = gap
        edges = sorted({begin, end, *(edge for line in self.order for edge in line.edges(begin, end) if edge < end)})
        for left, right in itertools.pairwise(edges):
            yield self.at((left + right) / 2), right - left


def read_kernels(events: Sequence[Mapping[str, Any]], known: Mapping[str, Where]) -> StepKernels:
    """Device time by stage of the step that a trace holds.

    Args:
        events: complete events (`ph` "X") of a Chrome trace as PyTorch's profiler writes it; ts and dur in us.
        known: range name -> (stage, phase); other annotations are nobody's.

    Raises:
        ValueError: the trace holds no step.
    """
    host = _Host(events, known)
    if host.step is None:
        raise ValueError("the trace holds no range of the step")
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in LAUNCH and "correlation" in event.get("args", {})
    }
    own: dict[Where, list[Interval]] = {}
    talk: dict[Where, list[Interval]] = {}
    compute: list[Interval] = []
    kernel_us = named_us = 0.0
    for event in events:
        if event.get("cat") not in DEVICE:
            continue
        begin = float(event["ts"])
        launch = launches.get(event.get("args", {}).get("correlation"))
        at, thread = (float(launch["ts"]), launch["tid"]) if launch else (begin, None)
        if not host.step[0] <= at <= host.step[1]:
            continue
        where = host.at(at, thread)
        interval = (begin, begin + float(event["dur"]))
        own.setdefault(where, []).append(interval)
        kernel_us += float(event["dur"])
        named_us += float(event["dur"]) if where[0] != "other" else 0.0
        if COMMUNICATION.search(str(event.get("name"))):
            talk.setdefault(where, []).append(interval)
        else:
            compute.append(interval)
    everything = union(interval for intervals in own.values() for interval in intervals)
    window = (host.step[0], max(host.step[1], everything[-1][1] if everything else 0.0))
    return StepKernels(
        step_ms=(window[1] - window[0]) / 1e3,
        busy_ms=length(everything) / 1e3,
        exposed_ms=length(subtract(union(i for one in talk.values() for i in one), union(compute))) / 1e3,
        idle_ms=length(subtract([window], everything)) / 1e3,
        kernel_ms=kernel_us / 1e3,
        named_ms=named_us / 1e3,
        kernels=sum(map(len, own.values())),
        graph_launches=_count(host, events, GRAPH),
        rows=_rows(own, talk, union(compute), _idle(host, window, everything), _by_place(host, events, SYNCS)),
    )


def _idle(host: _Host, window: Interval, everything: Sequence[Interval]) -> dict[Where, float]:
    idle: dict[Where, float] = {}
    for gap in subtract([window], everything):
        for where, us in host.split(gap):
            idle[where] = idle.get(where, 0.0) + us
    return idle


def _by_place(host: _Host, events: Iterable[Mapping[str, Any]], names: "re.Pattern[str]") -> dict[Where, int]:
    """Calls by the innermost range that made them, inside the step."""
    counts: dict[Where, int] = {}
    for event in events:
        if event.get("cat") in LAUNCH and names.match(str(event.get("name"))):
            at = float(event["ts"])
            if host.step and host.step[0] <= at <= host.step[1]:
                where = host.at(at, event["tid"])
                counts[where] = counts.get(where, 0) + 1
    return counts


def _count(host: _Host, events: Iterable[Mapping[str, Any]], names: "re.Pattern[str]") -> dict[str, int]:
    counts: dict[str, int] = {}
    for (stage, _), count in _by_place(host, events, names).items():
        counts[stage] = counts.get(stage, 0) + count
    return counts


def _rows(
    own: Mapping[Where, list[Interval]],
    talk: Mapping[Where, list[Interval]],
    compute: Sequence[Interval],
    idle: Mapping[Where, float],
    syncs: Mapping[Where, int],
) -> list[tuple[str, str, float, float, float, float, int]]:
    below: dict[Where, list[Interval]] = {}
    talk_below: dict[Where, list[Interval]] = {}
    for source, target in ((own, below), (talk, talk_below)):
        for (stage, phase), intervals in source.items():
            for name in (stage, *ancestors(stage)):
                target.setdefault((name, phase), []).extend(intervals)
    rows = []
    for where in sorted({*below, *idle, *syncs}):
        rows.append(
            (
                *where,
                length(union(below.get(where, ()))) / 1e3,
                length(union(own.get(where, ()))) / 1e3,
                length(subtract(union(talk_below.get(where, ())), compute)) / 1e3,
                idle.get(where, 0.0) / 1e3,
                syncs.get(where, 0),
            )
        )
    return rows
