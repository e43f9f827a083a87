"""Where each rank stands when nothing moves any more: its Python stack, dumped by a signal, and the stage of it."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from vlmprof.records.run import Outcome
from vlmprof.records.stage_frames import Frame, place_of_frames, read_stack

__all__ = ["DUMP_SIGNAL", "stands"]

DUMP_SIGNAL = signal.SIGUSR1
"""What makes a worker write its stack to its log (faulthandler)."""
WAIT_SECONDS = 2.0
SHOWN_FRAMES = 4
_WAITS = re.compile(r"torch/distributed/distributed_c10d\.py$|torch/distributed/_functional_collectives\.py$")
"""Frames of a rank that waits in a collective."""


def stands(pids: Mapping[int, int | None], folder: Path) -> tuple[dict[int, Outcome], int | None]:
    """(rank -> where it stands, the rank that the others wait for, if it can be told).

    A rank that is stopped (SIGSTOP, a debugger) is the one; else the only one that is in no collective.
    """
    states = {rank: _state(pid) for rank, pid in pids.items() if pid is not None}
    sizes = {rank: _size(folder / f"rank{rank}.log") for rank in pids}
    for rank, pid in pids.items():
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, DUMP_SIGNAL)
                if states.get(rank) == psutil.STATUS_STOPPED:
                    os.kill(pid, signal.SIGCONT)  # it cannot answer while it is stopped; it is ended right after
    frames = _collect(folder, sizes)
    found, outside = {}, []
    for rank in pids:
        stack, state = frames.get(rank, []), states.get(rank, "gone")
        stage, phase = place_of_frames(stack)
        found[rank] = Outcome(
            status="failed", rank=rank, stage=stage, phase=phase, evidence=_evidence(rank, state, stage, phase, stack)
        )
        if stack and not any(_WAITS.search(frame.file) for frame in stack):
            outside.append(rank)
    stopped = [rank for rank, state in states.items() if state in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)]
    if len(stopped) == 1 or len(pids) == 1:
        return found, (stopped or list(pids))[0]
    return found, outside[0] if len(outside) == 1 else None


def _state(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return "gone"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _collect(folder: Path, sizes: Mapping[int, int]) -> dict[int, list[Frame]]:
    """Stacks as they arrive in the logs, for a little while."""
    deadline = time.monotonic() + WAIT_SECONDS
    frames: dict[int, list[Frame]] = {}
    while time.monotonic() < deadline and len(frames) < len(sizes):
        time.sleep(0.1)
        for rank, before in sizes.items():
            log = folder / f"rank{rank}.log"
            if rank not in frames and _size(log) > before:
                time.sleep(0.1)  # let it finish the dump
                with log.open("rb") as file:
                    file.seek(before)
                    stack = read_stack(file.read().decode("utf-8", "replace"))
                if stack:
                    frames[rank] = stack
    return frames


def _evidence(rank: int, state: str, stage: str | None, phase: str | None, stack: list[Frame]) -> tuple[str, ...]:
    place = f"in {stage} ({phase})" if stage else f"in {phase}" if phase else "at an unknown place"
    lines = [f"rank {rank}: {state}, {place if stack else 'gave no stack'}"]
    lines += [f"  {frame.file}:{frame.line} in {frame.function}" for frame in stack[:SHOWN_FRAMES]]
    return tuple(lines)
