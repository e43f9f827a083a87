"""`vlmprof compare`: is B worse than A, by how much, in which stage, and how sure are we."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmprof.errors import Exit, UserError

if TYPE_CHECKING:
    from vlmprof.compare import Thresholds
    from vlmprof.records.run import Run

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
    ab: Annotated[
        bool,
        typer.Option(
            "--ab", help="Run A and B in turns here: each a checkout, megatron-core==X, or a Python environment."
        ),
    ] = False,
    workload: Annotated[str, typer.Option(help="With --ab: a preset's name or a TOML file.")] = "tiny",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="With --ab: change a setting.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=3, help="With --ab: runs of each side at most.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="With --ab: plain steps of each run.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="With --ab: steps that each run sets aside first.")] = 3,
    stage_breakdown: Annotated[
        bool,
        typer.Option(
            "--stage-breakdown/--no-stage-breakdown",
            help="With --ab: also observe stages and memory; without, runs are shorter and only times are told.",
        ),
    ] = True,
    data: Annotated[str | None, typer.Option(metavar="real|mock|text-only|PATH", help="With --ab: the data.")] = None,
    nproc: Annotated[int, typer.Option(min=1, help="With --ab: ranks of each run.")] = 1,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="With --ab: without a new step a run hangs.")
    ] = 600.0,
    out: Annotated[Path | None, typer.Option(help="With --ab: folder for the runs; one begun is gone on with.")] = None,
) -> int:
    """Is B worse than A? Exit code 0: no; 1: worse; 4: undecided, or not comparable."""
    from vlmprof.compare import compare as judge
    from vlmprof.compare import load_thresholds
    from vlmprof.compare.sides import known_band, read_sides
    from vlmprof.records.store import collector_paused, dump_json, write_whole

    if markdown and json:
        raise UserError("--markdown and --json are two forms of one output: choose one, or add -o FILE for the other")
    limits, band = load_thresholds(thresholds), None
    if ab:
        if store is not None or normalize or allow:
            raise UserError(
                "--ab trains one workload on both sides: --store, --allow and --normalize do not go with it"
            )
        options = {
            "steps": steps,
            "warmup": warmup,
            "nproc": nproc,
            "timeout": timeout,
            "stage_breakdown": stage_breakdown,
        }
        first, second, files, limits = _run(a, b, (workload, set_ or [], data), options, rounds, out, limits)
    else:
        with collector_paused():
            (first, first_files), (second, second_files) = read_sides(a, b, store)
        files = first_files, second_files
        band = known_band(store, first[0]) if len(first) == len(second) == 1 else None
    with collector_paused():  # over a thousand records it takes as long as judging them
        found = judge(
            first,
            second,
            thresholds=limits,
            allow=allow or (),
            normalize=normalize,
            band=band,
            labels=(a, b) if a != b else (f"{a} (A)", f"{b} (B)"),
            sources=files,
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


def _run(
    a: str,
    b: str,
    workload: tuple[str, list[str], str | None],
    options: dict[str, Any],
    rounds: int,
    out: Path | None,
    limits: "Thresholds",
) -> "tuple[list[Run], list[Run], tuple[tuple[str, ...], tuple[str, ...]], Thresholds]":
    from vlmprof.compare.ab import run_ab
    from vlmprof.launch import RunOptions
    from vlmprof.launch.folders import default_folder
    from vlmprof.report.progress import RunProgress
    from vlmprof.workload.check import check_ranks
    from vlmprof.workload.settings import data_overrides, load_workload

    name, settings, data = workload
    chosen = load_workload(name, settings, data_overrides(data))
    each = RunOptions(command=("vlmprof", *sys.argv[1:]), **options)
    check_ranks(chosen, each.nproc)
    folder = out or default_folder(f"ab-{chosen.name}", chosen.hash8)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with RunProgress(chosen.name, each.total_steps * 2 * rounds) as progress:
        done = run_ab(a, b, chosen, each, rounds, folder, limits, progress.watch, tell)
    return done.a, done.b, done.sources, done.thresholds


EXIT_CODES = {"same": Exit.FINE, "better": Exit.FINE, "worse": Exit.FOUND, "undecided": Exit.NO_ANSWER}
