"""`vlmprof diagnose`: what went wrong, from a run's logs."""

from pathlib import Path
from typing import Annotated

import typer

from vlmprof.errors import Exit

__all__ = ["diagnose"]


def diagnose(
    logs: Annotated[
        list[Path], typer.Argument(help="Logs of one run: plain or gzip, of any size; all ranks, or one each.")
    ],
    exit_code: Annotated[int | None, typer.Option(help="How the run ended, where known, e.g. 137.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the document, and nothing else, on stdout.")] = False,
) -> int:
    """Say what went wrong: class, root line and rank, signature, and what to do. Exit code 4 where it is unknown."""
    from vlmprof.failures import diagnose as find
    from vlmprof.records.store import dump_json
    from vlmprof.report.diagnosis import print_diagnosis

    found = find(logs, exit_code)
    if json:
        print(dump_json(found), end="")
    else:
        print_diagnosis(found)
    return int(Exit.NO_ANSWER if found.failure_class is None else Exit.FINE)
