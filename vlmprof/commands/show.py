"""`vlmprof show`: a run record on the terminal again."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["show"]


def show(run: Annotated[Path, typer.Argument(help="A run folder or a run.json.")]) -> None:
    """Show a run again: summary, stage tree, findings."""
    from vlmprof.records.store import read_run
    from vlmprof.report.terminal import print_run

    print_run(read_run(run), breakdown=True)
