"""How a run ended, and on which rank that began: from what the ranks told and how their processes went. Pure.

A rank that says itself what failed is the root, unless it only says that another one is gone (`COLLATERAL`): the
earliest first, and before those that see what is everybody's (a gradient norm). Else it is the rank that went without
a word.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vlmprof.records.assemble import failed
from vlmprof.records.journal import Event
from vlmprof.records.run import FailureClass, Outcome

__all__ = ["Ending", "first_failure", "outcome_of"]

COLLATERAL = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket|gloo/|remote process|DistBackendError|DistNetworkError"
    r"|NCCL|recvBytes|sendBytes|store|SIGTERM",
    re.IGNORECASE,
)


@dataclass
class Ending:
    """What the launcher saw of the processes."""

    code: int | None = None
    """Of the process that was started: the worker, or torchrun's agent."""
    interrupted: bool = False
    hung: float = 0.0
    """Seconds without a sign after which it was given up; 0: it was not."""
    vanished: dict[int, float] = field(default_factory=dict)
    """Rank -> when its process was seen gone without having said anything."""
    signals: dict[int, str] = field(default_factory=dict)
    """Rank -> name of the signal that ended it, where known."""
    stands: dict[int, Outcome] = field(default_factory=dict)
    """Rank -> where it stood when the run was given up."""
    culprit: int | None = None
    """Of a hang: the rank that did not arrive, where it can be told."""
    host_oom: str = ""
    """What the kernel's OOM killer left behind, if it struck meanwhile."""
    disk_full: bool = False
    """No space was left where the run folder is."""
    last_lines: tuple[str, ...] = ()


def first_failure(ranks: Mapping[int, Sequence[Event]]) -> tuple[int, Event] | None:
    """(rank, event) of the failure that is the root, or None when every failure told of is another rank's."""
    told = [
        (event["time"], rank, event)
        for rank, events in ranks.items()
        for event in events
        if event["event"] == "failure"
    ]
    own = [one for one in told if not COLLATERAL.search(str(one[2]["outcome"].get("message", "")))]
    chosen = min(own, key=lambda one: (one[2].get("shared", False), one[0]), default=None)
    return (chosen[1], chosen[2]) if chosen else None


def outcome_of(ranks: Mapping[int, Sequence[Event]], ending: Ending) -> Outcome:
    """The outcome of a run, from the events of each rank and what the launcher saw."""
    steps = {rank: _last_step(events) for rank, events in ranks.items()}
    latest = max((step for step in steps.values() if step is not None), default=None)
    if ending.interrupted:
        return Outcome(status="interrupted", step=latest, message="interrupted by the user")
    if ending.hung:
        return _hang(ending, steps)
    root = first_failure(ranks)
    if root is not None:
        rank, event = root
        return failed(ranks[rank], event, rank)
    if ranks and all(any(event["event"] == "done" for event in events) for events in ranks.values()):
        return Outcome(status="ok")
    return _silent(ranks, ending, steps)


def _hang(ending: Ending, steps: Mapping[int, int | None]) -> Outcome:
    culprit = ending.culprit
    stood = ending.stands.get(culprit) if culprit is not None else None
    evidence = tuple(line for rank in sorted(ending.stands) for line in ending.stands[rank].evidence)
    return Outcome(
        status="failed",
        failure_class="hang",
        message=f"no new step for {ending.hung:g} seconds",
        step=steps.get(culprit)
        if culprit is not None
        else max((s for s in steps.values() if s is not None), default=None),
        rank=culprit,
        stage=stood.stage if stood else None,
        phase=stood.phase if stood else None,
        evidence=evidence or ending.last_lines,
    )


def _silent(ranks: Mapping[int, Sequence[Event]], ending: Ending, steps: Mapping[int, int | None]) -> Outcome:
    """Nobody said what failed: whoever was ended by a signal that we did not send, else whoever went first."""
    struck = [rank for rank, name in ending.signals.items() if name != "SIGTERM"]
    rank = min(struck, default=min(ending.vanished, key=lambda one: ending.vanished[one], default=0))
    name = ending.signals.get(rank)
    if name == "SIGKILL" and ending.host_oom:
        return _end("host-oom", "the kernel's OOM killer ended the worker", rank, steps, (ending.host_oom,))
    if name in CRASHES:
        return _end("crash", f"the worker crashed with {name}", rank, steps, ending.last_lines)
    if name is not None:
        return _end("killed", f"the worker was ended by {name}", rank, steps)
    if ending.disk_full:
        return _end("setup", "no space left on the disk of the run folder", rank, steps)
    told = next((event for event in ranks.get(rank, ()) if event["event"] == "failure"), None)
    if told is not None:
        return failed(ranks[rank], told, rank)
    return _end("crash", f"the worker ended with code {ending.code}", rank, steps, ending.last_lines)


CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL")


def _end(
    failure_class: FailureClass,
    message: str,
    rank: int,
    steps: Mapping[int, int | None],
    evidence: tuple[str, ...] = (),
) -> Outcome:
    return Outcome(
        status="failed",
        failure_class=failure_class,
        message=message,
        rank=rank,
        step=steps.get(rank),
        evidence=evidence,
    )


def _last_step(events: Sequence[Event]) -> int | None:
    return next((event["index"] for event in reversed(events) if event["event"] == "begin"), None)
