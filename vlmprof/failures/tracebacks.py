"""Python tracebacks, line by line as one process prints them: frames, the exception at the end, the innermost frame."""

import os.path
import re
from collections.abc import Sequence
from typing import NamedTuple

from vlmprof.failures.labels import Label

__all__ = ["CHAINED", "Frame", "Raised", "Traceback", "opens_traceback", "raised", "user_frame"]

_FRAMES_KEPT = 200
_ALIENS = 40
"""Lines that belong to no traceback, after which an open one is given up: its end was lost."""

_OPEN = re.compile(r"raceback \(most recent call last\)|\(most recent call first\)")
_FRAME = re.compile(r'(?P<indent>\s*)File "(?P<file>[^"]+)", line \d+,? in (?P<function>.+?)\s*$')
_BOXED = re.compile(r"\s*[│|] ?(?P<file>/\S+|\S+\.py):\d+ in (?P<function>[\w<>.]+)")  # rich's form
_RAISED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*|error|timeout|gaierror|herror))(?::(?:\s+(?P<message>.*))?)?$", re.DOTALL
)
_LEVELS = re.compile(r"(?:[A-Z]+|\w*Warning|Info|Debug|Note|Hint)$")
CHAINED = re.compile(
    r"During handling of the above exception|The above exception was the direct cause|Original Traceback"
)

_INSTALLED = re.compile(r".*/(?:site-packages|dist-packages)/")
_TRAINING = re.compile(r".*/(?=(?:megatron|nemo|nemo_\w+)/(?!.*/(?:megatron|nemo)/))")
_SOURCE = re.compile(r".*/src/(?=\w+/)")
_LIBRARY = re.compile(
    r"(?:^|/)lib(?:64)?/python3[\d.t]*/|/bin/torchrun$|/torch/(?:nn|optim|autograd|distributed|utils|_\w+)/"
    r"|(?:^|/)vlmprof/(?:stages|training|workload|records|profile\.py)|^<|\.(?:pyx|so|cc|cpp|cu)\b"
)
"""Not the training code: the standard library, generated code, native code, and vlmprof's own hooks."""
_FRAMEWORKS = ("megatron/", "nemo/", "nemo_")
"""Installed packages that are nevertheless the code under test."""


class Frame(NamedTuple):
    file: str
    function: str


class Raised(NamedTuple):
    """The line that ends a traceback."""

    type: str
    """Without its module."""
    message: str


class Traceback:
    """A traceback that is being read. A faulthandler's dump (innermost frame first) is one too."""

    def __init__(self, label: Label, line: int) -> None:
        self.label = label
        self.line = line
        self.innermost_first = "call first" in label.text
        self.frames: list[Frame] = []
        self.last, self.last_line = label.text, line
        """Its last frame so far."""
        self._indent: int | None = None
        self._aliens = 0

    @property
    def given_up(self) -> bool:
        return self._aliens > _ALIENS

    def belongs(self, text: str, line: int = 0) -> bool:
        """Take a line of the same process: whether it is a frame, source or empty line of this traceback."""
        frame = _FRAME.match(text) or _BOXED.match(text)
        if frame is not None:
            if self._indent is None:
                self._indent = len(frame.groupdict().get("indent") or "")
            if len(self.frames) < _FRAMES_KEPT or not self.innermost_first:
                self.frames.append(Frame(frame["file"], frame["function"]))
                del self.frames[:-_FRAMES_KEPT]
            self.last, self.last_line = text, line
            return True
        if not text.strip() or text.lstrip()[:1] in "│╭╰|":
            return not self.innermost_first
        inside = self._indent is not None and len(text) - len(text.lstrip()) > self._indent
        self._aliens += not inside
        return inside

    def end(self, text: str) -> Raised | None:
        """The exception, where this line is the one that ends the traceback."""
        indent = len(text) - len(text.lstrip())
        if self._indent is not None and indent >= self._indent and self._indent > 0:
            return None
        return raised(text.strip())


def opens_traceback(text: str) -> bool:
    """Whether a traceback begins with this line."""
    return _OPEN.search(text) is not None


def raised(text: str) -> Raised | None:
    """The exception of a line such as `pkg.SomeError: message`, or None."""
    match = _RAISED.match(text)
    if match is None:
        return None
    name = match["type"].rpartition(".")[2]
    return None if _LEVELS.match(name) else Raised(name, (match["message"] or "").strip())


def user_frame(traceback: Traceback) -> str | None:
    """The innermost frame in the training code as `module/path.py:function`, without root or line number.

    Installed packages other than Megatron and NeMo, the standard library and vlmprof itself do not count, unless there
    is nothing else. Paths are relative to site-packages, to the package's root, or to the folder that the other frames
    have in common.
    """
    frames = traceback.frames if traceback.innermost_first else traceback.frames[::-1]
    own = [frame for frame in frames if _is_own(frame.file)]
    chosen = next(iter(own or frames), None)
    return None if chosen is None else f"{_relative(chosen.file, own)}:{chosen.function.rpartition('.')[2]}"


def _is_own(file: str) -> bool:
    installed = _INSTALLED.match(file)
    if installed is not None:
        return file[installed.end() :].startswith(_FRAMEWORKS)
    return _LIBRARY.search(file) is None


def _relative(file: str, own: Sequence[Frame]) -> str:
    for root in (_INSTALLED, _TRAINING, _SOURCE):
        match = root.match(file)
        if match is not None:
            return file[match.end() :]
    loose = [
        frame.file for frame in own if not any(root.match(frame.file) for root in (_INSTALLED, _TRAINING, _SOURCE))
    ]
    folders = [os.path.dirname(each) for each in loose if each.startswith("/")]  # noqa: PTH120 - a path of another machine
    if not file.startswith("/") or not folders:
        return file.rpartition("/")[2]
    return os.path.relpath(file, os.path.commonpath(folders))
