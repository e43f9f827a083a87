"""`vlmprof history FOLDER`: where the level changed over runs in time."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from vlmprof.errors import Exit

__all__ = ["history"]


def history(
    folder: Annotated[Path, typer.Argument(help="Searched for run records, at any depth.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this metric or stage: step_ms, memory_peak, decoder.router, ..."),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Baselines: a level that they accept is no finding.")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], help="Leave out earlier runs (UTC).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the document, and nothing else, on stdout.")] = False,
) -> int:
    """Find where step time, memory or a stage changed its level over many runs, and the first run after it."""
    from datetime import UTC

    from vlmprof.compare.history import find_history
    from vlmprof.report.history import print_history

    found = find_history(folder, metric or (), store, since.replace(tzinfo=UTC) if since else None)
    print_history(found, json)
    worse = any(one.worse_now for series in found.series for one in series.metrics)
    return int(Exit.FOUND if worse else Exit.FINE)
