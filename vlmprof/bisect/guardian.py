"""Runs one command and sees that nothing of it is left, whichever way it ends and whoever is killed:

    python -I guardian.py PARENT_PID COMMAND...

On Linux it adopts its orphans (torchrun's workers, daemons: they leave the process group), and is told by the kernel
when its parent dies. Elsewhere it ends the process group. Ends with the command's code, 128 + N for signal N.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 3.0
NOT_EXECUTABLE, NOT_FOUND = 126, 127


class StopRequest(BaseException):
    """SIGTERM: from vlmprof, or from the kernel because vlmprof is dead."""


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise StopRequest


def main(parent: int, command: list[str]) -> int:
    """Run `command` to its end."""
    try:
        signal.signal(signal.SIGTERM, _stop)
        if sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            return 128 + signal.SIGTERM
        code = _run(command)
    except StopRequest:
        code = 128 + signal.SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_all()
    return code


def _run(command: list[str]) -> int:
    try:
        process = subprocess.Popen(command)
    except FileNotFoundError:
        print(f"{command[0]}: command not found", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE
    code = process.wait()
    return 128 - code if code < 0 else code


def _end_all() -> None:
    """SIGTERM to every descendant, SIGKILL to what is left after a grace period."""
    deadline = time.monotonic() + GRACE_SECONDS
    asked: set[int] = set()
    while left := _descendants():
        late = time.monotonic() > deadline
        for pid in left:
            if late or pid not in asked:
                asked.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        _reap()
        time.sleep(0.01)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _descendants() -> set[int]:
    """Every process below this one, zombies that were reaped left out."""
    _reap()
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, ppid = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(ppid), []).append(int(folder.name))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            found.add(pid)
            waiting.append(pid)
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
