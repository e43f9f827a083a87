"""`vlmprof baseline`: the runs that others are judged by."""

from pathlib import Path
from typing import Annotated

import typer

from vlmprof.errors import Exit

__all__ = ["baseline"]

baseline = typer.Typer(name="baseline", help="The accepted runs that others are judged by.", rich_markup_mode=None)

Why = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept.")]
Who = Annotated[str, typer.Option(metavar="NAME", help="Who says so; default: git's user.name, or the login name.")]
Store = Annotated[Path | None, typer.Option(metavar="DIR", help="The store; default: baselines/ of this folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print the document, and nothing else, on stdout.")]


@baseline.command()
def add(
    run: Annotated[list[Path], typer.Argument(help="Run folders or records, of one workload on one platform.")],
    why: Why,
    store: Store = None,
    who: Who = "",
) -> int:
    """Accept runs, all of them or none."""
    from datetime import UTC, datetime

    from vlmprof.records import baseline as records
    from vlmprof.records.environment import user_name
    from vlmprof.records.store import read_run
    from vlmprof.report.baseline import print_baseline

    runs = [read_run(path) for path in run]
    folder = store or records.default_store()
    after = records.add(folder, runs, who or user_name(), why, datetime.now(UTC))
    print_baseline(records.baseline_path(folder, runs[0]), after)
    return int(Exit.FINE)


@baseline.command("list")
def list_(store: Store = None, json: Json = False) -> int:
    """List the baselines of a store, or of this folder and those shipped with vlmprof."""
    from vlmprof.records.baseline import list_baselines
    from vlmprof.report.baseline import print_baselines

    print_baselines(list_baselines(store), json)
    return int(Exit.FINE)


@baseline.command()
def show(
    name: Annotated[str, typer.Argument(help="Workload, hash or platform, or a file's path.")] = "",
    store: Store = None,
    json: Json = False,
) -> int:
    """Show every accepted run: who, when, what and why; dropped ones, too."""
    from vlmprof.records.baseline import select_baselines
    from vlmprof.report.baseline import print_baseline, print_baselines

    found = select_baselines(store, name)
    if json:
        print_baselines(found, json)
    else:
        for path, one in found.items():
            print_baseline(path, one)
    return int(Exit.FINE)


@baseline.command()
def drop(
    id_: Annotated[str, typer.Argument(metavar="ID", help="As vlmprof baseline show prints it, or its beginning.")],
    why: Why,
    store: Store = None,
    who: Who = "",
) -> int:
    """Let an accepted run no longer count; it stays in the file, with the reason."""
    from datetime import UTC, datetime

    from vlmprof.records import baseline as records
    from vlmprof.records.environment import user_name
    from vlmprof.report.baseline import print_baseline

    folder = store or records.default_store()
    path, after = records.drop(folder, id_, who or user_name(), why, datetime.now(UTC))
    print_baseline(path, after)
    return int(Exit.FINE)
