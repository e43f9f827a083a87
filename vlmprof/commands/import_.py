"""`vlmprof import`: what other programs measured, as a run record."""

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["import_"]

import_ = typer.Typer(name="import", help="Make a run record of what another program measured.", rich_markup_mode=None)


@import_.callback()
def _formats() -> None:
    """Keep the format a word of its own, though there is only one yet."""


@import_.command("megatron-log")
def megatron_log(
    file: Annotated[Path, typer.Argument(help="A training log, plain or gzip.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the record; default: vlmprof-runs/...")] = None,
    warmup: Annotated[
        int | None,
        typer.Option(min=0, help="Iterations to set aside first; default: 3, or more where the start is slow."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record, and nothing else, on stdout.")] = False,
) -> int:
    """Make a run record of a Megatron-LM, Megatron Bridge or NeMo training log."""
    from vlmprof.commands.run import EXIT_CODES
    from vlmprof.interop import import_megatron_log
    from vlmprof.report.terminal import print_json, print_run

    record, folder = import_megatron_log(file, out, warmup, command=("vlmprof", *sys.argv[1:]))
    if json:
        print_json([record])
    else:
        notes = "\n".join(record.notes)
        print_run(record, breakdown=False, footer=f"{notes}\nrecord: {folder / 'run.json'}\n")
    return int(EXIT_CODES[record.outcome.status])
