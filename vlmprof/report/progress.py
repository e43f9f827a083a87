"""Progress of a run on stderr: a live line on a terminal, nothing elsewhere."""

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["RunProgress"]


class RunProgress:
    """`with RunProgress(name, steps) as progress: run_workload(..., progress.watch)`

    Args:
        steps: of one run, as planned; its worker knows better once it has a device.
        runs: how many follow each other.
    """

    def __init__(self, name: str, steps: int, runs: int = 1) -> None:
        self._runs, self._done = runs, 0
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(
            name, total=steps * runs, note="starting the worker, importing torch and Megatron"
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def watch(self, event: dict[str, Any]) -> None:
        """Take one event of the journal."""
        if event["event"] == "step":
            loss = f", loss {event['loss']:.4f}" if event.get("loss") is not None else ""
            kind = "warm-up" if event["warmup"] else event["kind"]
            self._done += 1
            self._progress.update(self._task, advance=1, note=f"{kind} {event['ms']:.0f} ms{loss}")
        elif event["event"] == "schedule":  # a GPU adds traced steps
            self._progress.update(self._task, total=self._done + event["steps"] * self._runs)
            self._runs -= 1
        elif event["event"] == "environment":
            self._progress.update(self._task, note="building the model")
