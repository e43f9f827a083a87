"""`vlmprof compare`: is B worse than A, by how much, in which stage, and how sure are we."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vlmprof.errors import Exit, UserError

__all__ = ["compare"]


def compare(
    a: Annotated[str, typer.Argument(help="The old side: a run folder, a record, a quoted pattern, or 'baseline'.")],
    b: Annotated[str, typer.Argument(help="The new side, named in the same way.")],
    store: Annotated[Path | None, typer.Option(help="Folder of baselines; default: baselines/, then ours.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Compare in spite of this difference; may be repeated.")
    ] = None,
    normalize: Annotated[
        str, typer.Option(metavar="useful-tokens", help="Compare times and FLOPs per useful token.")
    ] = "",
    thresholds: Annotated[Path | None, typer.Option(help="TOML file of changes that matter; see docs.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown for a pull request.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the document, and nothing else, on stdout.")] = False,
    output: Annotated[Path | None, typer.Option("-o", help="Also keep the document (JSON) in this file.")] = None,
) -> int:
    """Is B worse than A? Exit code 0: no; 1: worse; 4: undecided, or not comparable."""
    from vlmprof.compare import compare as judge
    from vlmprof.compare import load_thresholds
    from vlmprof.compare.sides import known_band, read_sides
    from vlmprof.records.store import dump_json, write_whole

    if markdown and json:
        raise UserError("--markdown and --json are two forms of one output: choose one, or add -o FILE for the other")
    limits = load_thresholds(thresholds)
    (first, first_files), (second, second_files) = read_sides(a, b, store)
    band = known_band(store, first[0]) if len(first) == len(second) == 1 else None
    found = judge(
        first,
        second,
        thresholds=limits,
        allow=allow or (),
        normalize=normalize,
        band=band,
        labels=(a, b),
        sources=(first_files, second_files),
    ).model_copy(update={"command": ("vlmprof", *sys.argv[1:])})
    if output is not None:
        write_whole(output, dump_json(found))
    if json:
        print(dump_json(found), end="")
    else:
        from vlmprof.report.comparison import markdown as as_markdown
        from vlmprof.report.comparison import print_comparison

        if markdown:
            print(as_markdown(found), end="")
        else:
            print_comparison(found)
    return int(EXIT_CODES[found.verdict])


EXIT_CODES = {"same": Exit.FINE, "better": Exit.FINE, "worse": Exit.FOUND, "undecided": Exit.NO_ANSWER}
