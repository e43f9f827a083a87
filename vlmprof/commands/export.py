"""`vlmprof export`: a run for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from vlmprof.errors import UserError

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, or a run.json for csv.")],
    format_: Annotated[str, typer.Option("--format", metavar="perfetto|csv", help="A trace, or tables.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT", help="Default: trace.json, or the new folder tables."),
    ] = None,
) -> None:
    """Write sampled steps as a trace for ui.perfetto.dev, or all tables as CSV."""
    if format_ not in ("perfetto", "csv"):
        raise UserError(f"there is no format '{format_}': the formats are perfetto and csv")
    from vlmprof.interop.export import export_csv, export_perfetto

    if format_ == "perfetto":
        target = output or Path("trace.json")
        export_perfetto(run, target)
        print(f"trace: {target} (open it in ui.perfetto.dev or chrome://tracing)")
    else:
        target = output or Path("tables")
        names = export_csv(run, target)
        print(f"tables: {target} ({', '.join(names)})")
