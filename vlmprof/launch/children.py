"""One child process group: started guarded, watched, and ended whole."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmprof.lifeline import guarded

__all__ = ["child", "end_group", "stop_on_sigterm"]

GRACE_SECONDS = 5.0
DEAF_TO = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def child(
    command: list[str], log: Path, environment: dict[str, str], folder: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` in `folder` and a process group of its own, its output in `log`; the group is gone when the block
    ends."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            guarded(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the whole group, SIGKILL to what is left after a grace period; a second Ctrl-C does not stop this."""
    main = threading.current_thread() is threading.main_thread()  # only it may handle signals
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in DEAF_TO} if main else {}
    try:
        for sent in (signal.SIGTERM, signal.SIGKILL):
            if not _signal_group(process.pid, sent):
                break
            deadline = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < deadline and _signal_group(process.pid, 0):
                process.poll()
                time.sleep(0.02)
        process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _signal_group(group: int, number: int) -> bool:
    """Whether the group was there to be signalled."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does: in order, processes gone, what was measured kept."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
