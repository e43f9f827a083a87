"""No child outlives vlmprof: `die_with_parent`, and the same for commands that are not ours:

    python -I lifeline.py PARENT_PID COMMAND...

On Linux the kernel kills the process when its parent dies, SIGKILL of the parent included (prctl PR_SET_PDEATHSIG,
which survives exec). Elsewhere a thread watches the parent.
"""

import ctypes
import os
import signal
import sys
import threading
import time

__all__ = ["die_with_parent", "guarded"]

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Have this process killed when its parent dies. `parent` is its pid where known: it may be dead already."""
    parent = parent or os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(128 + signal.SIGKILL)


def guarded(command: list[str]) -> list[str]:
    """`command` as a child of this process that dies with it. Isolated (-I): neither the folder it starts in nor its
    PYTHONPATH, which may lead with a checkout under test, decides what runs here."""
    return [sys.executable, "-I", __file__, str(os.getpid()), *command]


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
