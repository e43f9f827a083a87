"""A bisect on the screen: its attempts while they come, the answer, and the same as Markdown."""

import io
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Literal, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vlmprof.records.bisect import Answer, Bisect, CommitRecord, Confirmation, Probe
from vlmprof.records.store import dump_json
from vlmprof.report.escape import escaped

__all__ = [
    "TITLES",
    "BisectProgress",
    "answer_facts",
    "attempts_table",
    "duration",
    "print_bisect",
    "print_status",
    "render_answer",
    "seconds_of",
    "to_markdown",
]

STYLES = {"good": "green", "bad": "red", "skip": "yellow"}
TITLES = {
    "found": "found",
    "found-set": "narrowed down",
    "inconclusive": "no answer",
    "ends-not-confirmed": "ends not confirmed",
    "intermittent": "intermittent",
}


class BisectProgress:
    """Shows attempts on stderr: a live table on a terminal, a line each elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._probes: list[tuple[Probe, int]] = []
        self._current: tuple[CommitRecord, str, float, int] | None = None
        self._live = Live(get_renderable=self._table, console=self._console, auto_refresh=True, refresh_per_second=2)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._current = None
        self._live.stop()

    def trying(self, commit: CommitRecord, role: str, steps_left: int) -> None:
        """An attempt begins."""
        self._current = (commit, role, time.monotonic(), steps_left)

    def tried(self, probe: Probe, steps_left: int) -> None:
        """An attempt has its verdict."""
        self._current = None
        self._probes.append((probe, max(steps_left - 1, 0)))
        if not self._console.is_terminal:
            commit, seen = probe.commit, probe.observation
            line = f"{probe.role:<18} {commit.sha[:12]} {commit.date[:10]} {probe.verdict:<4} {seconds_of(probe):>8}"
            left = self._left(max(steps_left - 1, 0)) if seen and steps_left else ""
            print(f"{line}  {commit.subject[:50]}: {probe.reason}{left}", file=sys.stderr, flush=True)
            if probe.warning:
                print(f"  warning: {probe.warning}", file=sys.stderr, flush=True)

    def _left(self, steps: int) -> str:
        """Steps left in the worst case and about how long they take, from those that were measured."""
        took = [
            probe.observation.seconds for probe, _ in self._probes if not probe.cached and probe.observation.seconds
        ]
        eta = f", about {duration(steps * sum(took) / len(took))}" if took and steps else ""
        return f"  [{steps} left{eta}]"

    def _table(self) -> RenderableType:
        table = attempts_table(probe for probe, _ in self._probes)
        if self._current is None:
            return table
        commit, role, since, steps = self._current
        seconds = f"{time.monotonic() - since:.0f} s"
        table.add_row(role, commit.sha[:12], commit.date[:10], commit.subject, "…", self._left(steps).strip(), seconds)
        return table


def attempts_table(probes: Iterable[Probe]) -> Table:
    """Every attempt: what was tried, the verdict and its reason."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("tried as", "commit", "date"):
        table.add_column(title, no_wrap=True)
    table.add_column("subject", no_wrap=True, overflow="ellipsis", max_width=40)
    table.add_column("verdict", no_wrap=True)
    table.add_column("reason", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    for probe in probes:
        commit = probe.commit
        reason = Text(probe.reason)
        if probe.warning:
            reason.append(f"\n{probe.warning}", style="yellow")
        verdict = Text(probe.verdict, style=STYLES[probe.verdict])
        table.add_row(
            probe.role, commit.sha[:12], commit.date[:10], Text(commit.subject), verdict, reason, seconds_of(probe)
        )
    return table


def seconds_of(probe: Probe) -> str:
    """How long an attempt took; `known` where it was not made again."""
    return "known" if probe.cached else duration(probe.observation.seconds)


def duration(seconds: float) -> str:
    """`4.2 s`, `12 min`, `3 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def print_bisect(document: Bisect, form: Literal["terminal", "json", "markdown"]) -> None:
    """Print the answer on stdout."""
    if form == "json":
        print(dump_json(document), end="")
    elif form == "markdown":
        print(to_markdown(document), end="")
    elif document.answer is not None:
        Console().print(render_answer(document.answer, document), soft_wrap=True)


def print_status(told: Bisect | str, json: bool = False) -> None:
    """Print how far a bisect is, or plain text."""
    if json and isinstance(told, Bisect):
        told = dump_json(told)
    if isinstance(told, str):
        print(told, end="" if told.endswith("\n") else "\n")
        return
    console = Console()
    made = f"{told.plan.range} in {told.plan.repository}: {len(told.probes)} attempts since {told.created}"
    console.print(Text(made), soft_wrap=True)
    console.print(attempts_table(told.probes))
    if told.answer is not None:
        console.print(render_answer(told.answer, told), soft_wrap=True)
    else:
        console.print(Text("unfinished: vlmprof bisect --resume goes on, --abort drops it"))


def render_answer(answer: Answer, document: Bisect) -> RenderableType:
    """Everything a person wants to know of the answer first."""
    style = "bold red" if answer.kind in ("found", "found-set") else "bold yellow"
    text = Text(TITLES[answer.kind], style=style)
    text.append(f": {answer.text}", style="not bold default")
    parts: list[RenderableType] = [Text(), text]
    parts += [Text(f"  {line}") for line in _facts(answer, document)]
    return Group(*parts)


def _facts(answer: Answer, document: Bisect) -> list[str]:
    """Facts below the answer, a line each."""
    lines = [f"{name:<7} {text}" for name, text in answer_facts(answer)]
    if answer.inside is not None:
        lines.append(answer.inside.text)
        lines += [f"  {line}" for line in _facts(answer.inside, document)]
    warned = [probe for probe in document.probes if probe.warning]
    lines += [f"warning {probe.commit.sha[:12]}: {probe.warning}" for probe in warned] if answer.kind == "found" else []
    return lines


def answer_facts(answer: Answer) -> list[tuple[str, str]]:
    """What is known of an answer: name and text. Without what was found inside a submodule."""
    rows = [("commit", f"{one.sha}  {one.author}, {one.date}: {one.subject}") for one in answer.commits]
    if answer.merge is not None:
        rows.append(("merged", f"by {answer.merge.sha[:12]} {answer.merge.date[:10]} '{answer.merge.subject}'"))
    if answer.files:
        more = f" and {len(answer.files) - 8} more" if len(answer.files) > 8 else ""
        rows.append(("files", ", ".join(answer.files[:8]) + more))
    rows += [(side, line) for side, told in answer.evidence.items() for line in told]
    rows += [("log", f"{log} ({side})") for side, log in answer.logs.items()]
    rows += [("landed", f"before as {one.sha[:12]} {one.date[:10]} '{one.subject}'") for one in answer.landed_before]
    if answer.confirmation is not None:
        rows += _confirmation(answer.confirmation)
    return rows + [("note", note) for note in answer.notes]


def _confirmation(done: Confirmation) -> list[tuple[str, str]]:
    """How sure it is."""
    again = (
        f"the commit: {', '.join(done.culprit_verdicts)}; its parent {done.parent.sha[:12]}: "
        f"{', '.join(done.parent_verdicts)}"
    )
    return [("again", again), *([("revert", f"on the bad end: {done.revert}")] if done.revert else [])]


def to_markdown(document: Bisect) -> str:
    """The answer and every attempt, for an issue or a report."""
    out = io.StringIO()
    plan, answer = document.plan, document.answer
    print(f"# Bisect of {escaped(plan.range)}\n", file=out)
    if answer is not None:
        print(f"**{TITLES[answer.kind]}**: {escaped(answer.text)}\n", file=out)
        for line in _facts(answer, document):
            print(f"- {escaped(line.strip())}", file=out)
    print("\n| tried as | commit | date | subject | verdict | reason | time |", file=out)
    print("|---|---|---|---|---|---|---:|", file=out)
    for probe in document.probes:
        commit = probe.commit
        told = (commit.date[:10], commit.subject, probe.verdict, probe.reason, seconds_of(probe))
        cells = (escaped(probe.role), f"`{commit.sha[:12]}`", *map(escaped, told))
        print(f"| {' | '.join(cells)} |", file=out)
    return out.getvalue()
