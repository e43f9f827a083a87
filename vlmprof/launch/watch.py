"""Watches a running job: journals of all ranks, their processes, the deadline; ends it and says how it ended."""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from vlmprof.launch.children import child, stop_on_sigterm
from vlmprof.launch.roots import Ending
from vlmprof.launch.stacks import stands
from vlmprof.records.journal import Event, read_journal

__all__ = ["Watcher", "supervise"]

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
"""What the other ranks get to end by themselves once one has failed."""
Watcher = Callable[[Event], None]


class Tail:
    """Follows the journal of one rank."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.pid: int | None = None
        self.ended = False

    def new(self) -> list[Event]:
        fresh, self._position = read_journal(self._path, self._position)
        for event in fresh:
            if event["event"] == "worker":
                self.pid = event["pid"]
            self.ended |= event["event"] in ("done", "failure", "refused")
        return fresh

    @property
    def vanished(self) -> bool:
        """Whether its process is gone without a last word."""
        return self.pid is not None and not self.ended and not _alive(self.pid)


def supervise(
    folder: Path,
    command: list[str],
    environment: dict[str, str],
    ranks: Sequence[int],
    timeout: float,
    watch: Watcher,
) -> Ending:
    """Run `command` to its end, or to the deadline, or to Ctrl-C; nothing of it is left running.

    `ranks` are those that `command` starts; `watch` gets the events of rank 0. `timeout` is in seconds without an
    event of any of them.
    """
    tails = {rank: Tail(folder / f"rank{rank}.jsonl") for rank in ranks}
    ending = Ending()
    killed_before = _oom_kills()
    log = folder / (f"rank{ranks[0]}.log" if len(ranks) == 1 else "torchrun.log")
    with stop_on_sigterm(), child(command, log, environment) as process:
        try:
            _follow(process, tails, timeout, watch, ending)
            if ending.hung:
                ending.stands, ending.culprit = stands({rank: tail.pid for rank, tail in tails.items()}, folder)
                _drain(tails, watch, ending)
                if all(tail.ended for tail in tails.values()):
                    ending.hung = 0.0  # it was only slow, and finished meanwhile
                return ending
        except KeyboardInterrupt:
            ending.interrupted = True
            return ending
        ending.code = process.poll()
    _drain(tails, watch, ending)
    if len(ranks) == 1 and ending.code is not None and ending.code < 0:
        ending.signals[ranks[0]] = signal.Signals(-ending.code).name
    ending.signals |= _signals_told_by_torchrun(log)
    if _oom_kills() > killed_before:
        ending.host_oom = f"the kernel's oom_kill counter rose by {_oom_kills() - killed_before} during the run"
    ending.last_lines = _last_lines(log)
    return ending


def _follow(
    process: subprocess.Popen[bytes], tails: dict[int, Tail], timeout: float, watch: Watcher, ending: Ending
) -> None:
    last_sign = time.monotonic()
    give_up: float | None = None
    while process.poll() is None:
        if _drain(tails, watch, ending):
            last_sign = time.monotonic()
        now = time.monotonic()
        if give_up is None and (ending.vanished or any(tail.ended for tail in tails.values())):
            give_up = now + max(GRACE_SECONDS, 0.0)
        if give_up is not None and now > give_up and not all(tail.ended for tail in tails.values()):
            return  # the block's end ends them
        if now - last_sign > timeout:
            ending.hung = timeout
            return
        time.sleep(POLL_SECONDS)


def _drain(tails: dict[int, Tail], watch: Watcher, ending: Ending) -> bool:
    """Take what is new; whether there was anything."""
    anything = False
    for rank, tail in tails.items():
        fresh = tail.new()
        anything |= bool(fresh)
        for event in fresh:
            if rank == 0:
                watch(event)
        if tail.vanished:
            ending.vanished.setdefault(rank, time.time())
    return anything


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


_EXIT = re.compile(r"rank\s*:\s*(\d+) \(local_rank.*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


def _signals_told_by_torchrun(log: Path) -> dict[int, str]:
    """Rank -> signal, from torchrun's closing summary; those that it ended itself (SIGTERM) are left out."""
    text = "\n".join(_last_lines(log, 200))
    told = {int(rank): -int(code) for rank, code in _EXIT.findall(text) if int(code) < 0}
    return {rank: signal.Signals(number).name for rank, number in told.items() if number != signal.SIGTERM}


def _oom_kills() -> int:
    """How often the kernel's OOM killer has struck: in our own cgroup where that counts, else on the machine."""
    for file in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        with contextlib.suppress(OSError, ValueError):
            for line in Path(file).read_text(encoding="utf-8").splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def _last_lines(log: Path, count: int = 5) -> tuple[str, ...]:
    if not log.exists():
        return ()
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 65536))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return tuple(line for line in lines if line.strip())[-count:]
