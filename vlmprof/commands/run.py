"""`vlmprof run`: train a workload and say where the step's time goes."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vlmprof.errors import Exit

__all__ = ["run"]


def run(
    workload: Annotated[str, typer.Option(help="A preset's name or a TOML file.")] = "tiny",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting: full path, or its last part if unambiguous."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="real|mock|text-only|PATH", help="Photographs, or your folder of pictures or LLaVA JSONL."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Plain steps; the other kinds come on top.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="Steps that are set aside first.")] = 3,
    seed: Annotated[int | None, typer.Option(min=0, help="Of data and initial values.")] = None,
    nproc: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    stage_breakdown: Annotated[
        bool, typer.Option("--stage-breakdown", help="Also observe steps stage by stage, and show the tree.")
    ] = False,
    megatron: Annotated[
        str, typer.Option(metavar="PATH", help="A Megatron-LM or Megatron Bridge checkout to use instead.")
    ] = "",
    skip_bad_samples: Annotated[
        bool, typer.Option("--skip-bad-samples", help="Go on without samples whose picture is bad, and count them.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds without a new step after which it counts as hung.")
    ] = 600,
    out: Annotated[Path | None, typer.Option(help="Folder for the record; default: vlmprof-runs/...")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record, and nothing else, on stdout.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the presets and exit.")] = False,
) -> int:
    """Train an MoE VLM through Megatron's own code and report where its step time goes."""
    from vlmprof.launch import RunOptions, run_workload
    from vlmprof.workload.settings import data_overrides, load_workload

    if list_:
        from vlmprof.commands.listing import list_presets

        return list_presets()
    overrides = data_overrides(data)
    if seed is not None:
        overrides["seed"] = seed
    chosen = load_workload(workload, set_ or [], overrides)
    options = RunOptions(
        steps=steps,
        warmup=warmup,
        nproc=nproc,
        stage_breakdown=stage_breakdown,
        megatron=megatron,
        timeout=timeout,
        out=out,
        skip_bad_samples=skip_bad_samples,
        command=("vlmprof", *sys.argv[1:]),
    )
    from vlmprof.report.progress import RunProgress

    with RunProgress(chosen.name, options.total_steps) as progress:
        record, folder = run_workload(chosen, options, progress.watch)
    if json:
        from vlmprof.records.store import dump_json

        print(dump_json(record), end="")
    else:
        from vlmprof.report.terminal import print_run

        print_run(record, stage_breakdown, footer=f"record: {folder / 'run.json'}")
    return int({"ok": Exit.FINE, "failed": Exit.RUN_FAILED, "interrupted": Exit.INTERRUPTED}[record.outcome.status])
