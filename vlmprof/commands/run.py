"""`vlmprof run`: train a workload and say where the step's time goes."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vlmprof.errors import Exit, UserError

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
            metavar="real|mock|text-only|PATH",
            help="Photographs, or your folder of pictures or LLaVA JSONL; several, with commas, are compared.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Plain steps; the other kinds come on top.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="Steps that are set aside first.")] = 3,
    seed: Annotated[int | None, typer.Option(min=0, help="Of data and initial values.")] = None,
    nproc: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    stage_breakdown: Annotated[
        bool, typer.Option("--stage-breakdown", help="Also observe steps stage by stage, and show the tree.")
    ] = False,
    memory_limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Run out of memory at SIZE (64MiB, 2GiB), to see who holds what.")
    ] = None,
    memory_snapshot: Annotated[
        bool,
        typer.Option("--memory-snapshot", help="On a GPU: leave PyTorch's memory snapshot, too."),
    ] = False,
    nvtx: Annotated[
        bool, typer.Option("--nvtx", help="NVTX ranges in every step, for a profiler of your own such as nsys.")
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
    from vlmprof.launch import RunOptions, joined_rank, run_joined, run_workloads
    from vlmprof.sizes import parse_size
    from vlmprof.workload.settings import data_overrides, load_workload, split_data

    if list_:
        from vlmprof.commands.listing import list_presets

        return list_presets()
    overrides: dict[str, object] = {} if seed is None else {"seed": seed}
    kinds = split_data(data)
    chosen = [load_workload(workload, set_ or [], {**overrides, **data_overrides(kind)}) for kind in kinds]
    options = RunOptions(
        steps=steps,
        warmup=warmup,
        nproc=nproc,
        stage_breakdown=stage_breakdown,
        megatron=megatron,
        timeout=timeout,
        out=out,
        skip_bad_samples=skip_bad_samples,
        memory_limit=parse_size(memory_limit) if memory_limit else 0,
        memory_snapshot=memory_snapshot,
        nvtx=nvtx,
        command=("vlmprof", *sys.argv[1:]),
    )
    from vlmprof.report.progress import RunProgress

    joined = joined_rank()
    if joined is not None and len(chosen) > 1:
        raise UserError("several kinds of data run one after the other: run them one by one under torchrun or srun")
    with RunProgress(chosen[0].name, options.total_steps, len(chosen)) as progress:
        if joined is None:
            done = run_workloads(chosen, options, progress.watch)
        else:
            part = run_joined(chosen[0], options, joined, progress.watch)
            if isinstance(part, Exit):
                return int(part)
            done = [part]
    from vlmprof.report.terminal import print_comparison, print_json, print_run

    if json:
        print_json([record for record, _ in done])
    else:
        for record, folder in done:
            print_run(record, stage_breakdown or bool(memory_limit), footer=f"record: {folder / 'run.json'}\n")
        if len(done) > 1:
            print_comparison([record for record, _ in done])
    return int(max(EXIT_CODES[record.outcome.status] for record, _ in done))


EXIT_CODES = {"ok": Exit.FINE, "failed": Exit.RUN_FAILED, "interrupted": Exit.INTERRUPTED}
