"""`vlmprof bisect GOOD..BAD`: which commit did it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vlmprof.errors import Exit

__all__ = ["bisect"]

EXIT_CODES = {"found": Exit.FOUND, "found-set": Exit.FOUND}


def bisect(
    range_: Annotated[
        str | None, typer.Argument(metavar="GOOD..BAD", help="From where it was good to where not.")
    ] = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="The probe; without it: vlmprof run.")
    ] = None,
    repo: Annotated[Path, typer.Option(metavar="PATH", help="The repository under test.")] = Path(),
    symptom: Annotated[
        str | None,
        typer.Option(
            metavar="FAILURE|METRIC",
            help="What to hunt: same, oom, nan, hang, crash, any; or a metric: step_ms, memory_peak, losses, ...",
        ),
    ] = None,
    threshold: Annotated[
        str | None, typer.Option(metavar="3%", help="Change of the metric that counts; default: half of the whole.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=3, help="Runs of each side, in turns; default: 10 for times, else one run.")
    ] = None,
    recipe: Annotated[str, typer.Option(metavar="NAME|FILE", help="A probe for a kind of failure: oom, nan, ...")] = "",
    workload: Annotated[str | None, typer.Option(help="A preset or a TOML file, for vlmprof run.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of it.")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="real|mock|text-only|PATH", help="Its data.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Its steps.")] = None,
    warmup: Annotated[int | None, typer.Option(min=0, help="Its steps that are set aside first.")] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Its ranks.")] = None,
    stage_breakdown: Annotated[
        bool | None,
        typer.Option(
            "--stage-breakdown/--no-stage-breakdown",
            help="Whether one run of each commit for a metric observes stages.",
        ),
    ] = None,
    memory_limit: Annotated[str | None, typer.Option(metavar="SIZE", help="Its memory.")] = None,
    setup: Annotated[
        str | None, typer.Option(metavar="CMD", help="Run by sh in the worktree before the probe.")
    ] = None,
    setup_depends: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Repeat the set-up only when these files changed.")
    ] = None,
    fixup: Annotated[list[str] | None, typer.Option(metavar="SHA[@RANGE]", help="Cherry-pick it on top.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="After which a probe hangs.")] = None,
    prove: Annotated[str | None, typer.Option(metavar="MODULE", help="Must come from the worktree.")] = None,
    confirm: Annotated[int | None, typer.Option(help="How often culprit and parent are tried again.")] = None,
    find_fix: Annotated[bool, typer.Option("--find-fix", help="Find where the symptom went away.")] = False,
    first_parent: Annotated[bool, typer.Option("--first-parent", help="Only the main line of merges.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the one that was interrupted.")] = False,
    status: Annotated[bool, typer.Option("--status", help="How far it is.")] = False,
    log: Annotated[bool, typer.Option("--log", help="Print its git bisect log.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Drop it; measurements are kept.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the document, and nothing else, on stdout.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the answer as Markdown.")] = False,
) -> int:
    """Find the commit with which training began to fail, or grew slower or larger; nothing of yours is touched."""
    from vlmprof.bisect import State, begin, load_recipe, make_plan, open_repository, state_folder
    from vlmprof.bisect import resume as go_on
    from vlmprof.errors import UserError
    from vlmprof.report.bisect import BisectProgress, print_bisect, print_status

    repository = open_repository(repo)
    state = State(state_folder(repository.key))
    if status or log or abort:
        print_status(state.tell(log=log, abort=abort), json)
        return int(Exit.FINE)
    if resume and range_ is not None:
        raise UserError("--resume goes on with what was asked: leave the range out, or drop it with --abort first")
    if not resume and range_ is None:
        raise UserError("name the range GOOD..BAD, or --resume, --status, --log, --abort")
    flags = {
        "symptom": symptom,
        "threshold": threshold,
        "rounds": rounds,
        "command": tuple(command or ()),
        "workload": workload,
        "set": tuple(set_ or ()),
        "data": data,
        "steps": steps,
        "warmup": warmup,
        "nproc": nproc,
        "stage_breakdown": stage_breakdown,
        "memory_limit": memory_limit,
        "setup": setup,
        "setup_depends": tuple(setup_depends or ()),
        "fixup": tuple(fixup or ()),
        "timeout": timeout,
        "prove": prove,
        "confirm": confirm,
    }
    try:
        with BisectProgress() as progress:
            if resume:
                document = go_on(state, progress)
            else:
                chosen = load_recipe(recipe, flags)
                options = {"find_fix": find_fix, "first_parent": first_parent}
                plan = make_plan(repository, range_ or "", chosen, state.folder, name=recipe, **options)
                document = begin(plan, state, progress)
    except KeyboardInterrupt:
        print("vlmprof: interrupted: vlmprof bisect --resume goes on, --abort drops it", file=sys.stderr)
        return int(Exit.INTERRUPTED)
    print_bisect(document, "json" if json else "markdown" if markdown else "terminal")
    return int(EXIT_CODES.get(document.answer.kind, Exit.NO_ANSWER)) if document.answer else int(Exit.NO_ANSWER)
