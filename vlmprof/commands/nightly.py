"""`vlmprof nightly`: a suite on a repository's newest commit, held against the last good one, and who did it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vlmprof.errors import Exit, UserError

__all__ = ["nightly"]


def nightly(
    suite: Annotated[str, typer.Option(metavar="NAME|FILE", help="What to run: cpu, h200, or a TOML file.")] = "cpu",
    target: Annotated[
        str, typer.Option(metavar="PATH|URL", help="The git repository under test; default: Megatron-LM's.")
    ] = "",
    ref: Annotated[str, typer.Option(metavar="REF", help="Its branch, tag or commit; default: main.")] = "",
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What is remembered from night to night lies here.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="MINUTES", help="After which nothing new begins; default: no limit.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The night's folder; default: nights/... of the state.")
    ] = None,
    bisect: Annotated[
        str,
        typer.Option(metavar="GOOD..BAD", help="Hold BAD against GOOD and bisect between; nothing is remembered."),
    ] = "",
    accept: Annotated[
        bool, typer.Option("--accept", help="Take the commit as good where it trains: what is worse is meant.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the document, and nothing else, on stdout.")] = False,
) -> int:
    """Spend a night: run a suite on the newest commit, compare with the last good one, find the commit to blame.

    Interrupted, the same command goes on."""
    from vlmprof.nightly import Asked, State, default_state, load_suite, spend_night
    from vlmprof.nightly.target import DEFAULT_REF, DEFAULT_TARGET
    from vlmprof.records.store import dump_json
    from vlmprof.report.bisect import BisectProgress

    if budget is not None and not budget > 0:
        raise UserError("--budget takes minutes, a number above 0")
    asked = Asked(load_suite(suite), target or DEFAULT_TARGET, ref or DEFAULT_REF, bisect, budget, out, accept)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        with BisectProgress() as progress:
            night, folder = spend_night(asked, State((state or default_state()).resolve()), say, progress)
    except KeyboardInterrupt:
        say("vlmprof: interrupted: the same command goes on")
        return int(Exit.INTERRUPTED)
    print(dump_json(night) if json else (folder / "summary.md").read_text(encoding="utf-8"), end="")
    say(f"night: {folder}")
    return night.exit_code
