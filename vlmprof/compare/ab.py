"""A/B on one machine: runs of both sides in turns, A B B A ..., a process each, until it is sure or out of rounds.

Sequential: the comparison is looked at after half, three quarters and all of the rounds, and no other time. The
chance of a false alarm is spent over these looks after O'Brien and Fleming (Lan & DeMets, Biometrika 70, 1983):
alpha(t) = 2 (1 - Phi(z_(alpha/2) / sqrt t)) at the share t of the rounds, each look being judged at what it adds. The
early looks take little of it (at half: 3 % of alpha), so they stop for what is plain only.
"""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vlmprof.compare.candidates import Candidate, expose, resolve
from vlmprof.compare.comparison import compare
from vlmprof.compare.summary import may_be_worse
from vlmprof.compare.thresholds import Thresholds
from vlmprof.errors import Exit, UserError
from vlmprof.launch import RunOptions, run_workload
from vlmprof.launch.watch import Watcher
from vlmprof.records.comparison import Metric
from vlmprof.records.run import Run
from vlmprof.records.store import read_run, write_whole
from vlmprof.workload.spec import Workload

__all__ = ["LEAST_ROUNDS", "Rounds", "RunFailed", "drop_set_aside", "levels", "run_ab"]

SHARES = (0.5, 0.75, 1.0)
"""Of the rounds, after which the comparison is looked at."""
LEAST_ROUNDS = 3
SET_ASIDE = ".unfinished-"
"""Between a run folder's name and a number: what an interrupted or failed run left."""


class RunFailed(UserError):  # noqa: N818 - the run's failure, not one of the caller's
    """A run of one side did not come to its end. Exit code 3."""

    exit_code = Exit.RUN_FAILED


@dataclass(frozen=True)
class Rounds:
    """The runs of both sides, in the order they were made."""

    a: list[Run]
    b: list[Run]
    sources: tuple[tuple[str, ...], tuple[str, ...]]
    """Run folders of either side."""
    thresholds: Thresholds
    """To judge them by: the level of the look at which the rounds ended."""


def levels(rounds: int, alarm: float) -> dict[int, float]:
    """Rounds after which to look -> one-sided level of that look; the levels add up to `alarm`."""
    from scipy import special

    looks = sorted({min(max(math.ceil(share * rounds), LEAST_ROUNDS), rounds) for share in SHARES})
    quantile = -float(special.ndtri(alarm / 2))
    spent, found = 0.0, {}
    for look in looks:
        total = 2 * float(special.ndtr(-quantile / math.sqrt(look / rounds)))
        found[look], spent = total - spent, total
    return found


def run_ab(
    a: str,
    b: str,
    workload: Workload,
    options: RunOptions,
    rounds: int,
    out: Path,
    thresholds: Thresholds,
    watch: Watcher = lambda event: None,
    tell: Callable[[str], None] = lambda line: None,
) -> Rounds:
    """Run A and B in turns, each `rounds` times at most; stops at a look that is sure.

    Args:
        a: a checkout, `megatron-core==X`, or an environment.
        b: the same.
        workload: what both train.
        options: of each run; `out`, `megatron` and `python` are set here.
        rounds: runs of each side.
        out: folder for the run folders; runs of the same comparison that are there already are counted.
        thresholds: what counts as a change.
        watch: gets the events of each worker.
        tell: gets a line a run.

    Raises:
        UserError: a side is nothing that can be run, or `out` holds another comparison.
        RunFailed: a run did not come to its end; its folder says why.
        NotComparable: the two do not do the same work.
        KeyboardInterrupt: the runs that were made are kept, and counted the next time.
    """
    candidates = [resolve(a), resolve(b)]
    asked = {
        "steps": options.steps,
        "warmup": options.warmup,
        "nproc": options.nproc,
        "by stage": options.stage_breakdown,
    }
    _claim(out, {"a": a, "b": b, "workload": workload.hash8, **asked})
    yardstick = (out / "yardstick").absolute()
    if any(candidate.python for candidate in candidates):
        expose(yardstick)
    tell(f"runs go to '{out}'; after Ctrl-C the same command with --out '{out}' goes on")
    looks = levels(rounds, thresholds.false_alarms)
    done: tuple[list[Run], list[Run]] = ([], [])
    folders: tuple[list[str], list[str]] = ([], [])
    limits = thresholds
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            folder = out / f"{'ab'[side]}-{number + 1:02}"
            run = _one(folder, candidates[side], workload, options, yardstick, watch, tell)
            done[side].append(run)
            folders[side].append(str(folder))
        limits = replace(thresholds, false_alarms=looks.get(number + 1, thresholds.false_alarms))
        if number == 0 or number + 1 in looks:
            found = compare(done[0], done[1], thresholds=limits, labels=_labels(a, b))
            if number + 1 in looks and _sure(found.metrics):
                break
    return Rounds(*done, (tuple(folders[0]), tuple(folders[1])), limits)


def _sure(metrics: Sequence[Metric]) -> bool:
    """Whether more runs would change nothing: what is exact was known after the first of them."""
    measured = [row for row in metrics if not row.exact]
    return any(row.verdict == "worse" for row in measured) or not any(map(may_be_worse, measured))


def _labels(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a != b else (f"{a} (A)", f"{b} (B)")


def _claim(out: Path, wanted: dict[str, object]) -> None:
    """Take `out` for this comparison, or go on with it there."""
    note = out / "ab.json"
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if out.is_dir() and any(out.iterdir()):
            raise UserError(f"output folder '{out}' is not empty: name another one with --out") from None
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"output folder '{out}' cannot be made: {error.strerror}") from None
        write_whole(note, json.dumps(wanted, indent=1) + "\n")
        return
    except (OSError, ValueError):
        raise UserError(f"'{note}' is damaged: name another folder with --out") from None
    if found != wanted:
        changed = ", ".join(name for name in wanted if not isinstance(found, dict) or found.get(name) != wanted[name])
        raise UserError(f"'{out}' holds the runs of another comparison ({changed} differ): name another one with --out")


def _one(
    folder: Path,
    candidate: Candidate,
    workload: Workload,
    options: RunOptions,
    yardstick: Path,
    watch: Watcher,
    tell: Callable[[str], None],
) -> Run:
    """The run of a folder: the one that is there, or a new one."""
    if (folder / "run.json").exists():
        run = read_run(folder)
        if run.outcome.status == "ok":
            return run
    if folder.exists():
        _set_aside(folder)
    own = replace(options, out=folder, megatron=candidate.megatron)
    if candidate.python:
        own = replace(own, python=candidate.python, yardstick=str(yardstick))
    run, _ = run_workload(workload, own, watch)
    if run.outcome.status == "interrupted":
        raise KeyboardInterrupt
    if run.outcome.status != "ok":
        what = f"{run.outcome.failure_class or 'unknown'}: {run.outcome.message}"
        raise RunFailed(f"the run of {candidate.label} failed ({what}); see '{folder}'")
    tell(f"{folder.name}  {candidate.label}  {_step_ms(run)}")
    return run


def _step_ms(run: Run) -> str:
    value = getattr(run.throughput.get("step_ms"), "value", None)
    return f"{value:,.1f} ms a step" if value is not None else "no plain step"


def _set_aside(folder: Path) -> None:
    """Keep what an interrupted or failed run left, out of the way."""
    taken: Sequence[str] = [other.name for other in folder.parent.iterdir()]
    name = next(name for number in range(1, 10_000) if (name := f"{folder.name}{SET_ASIDE}{number}") not in taken)
    folder.rename(folder.with_name(name))


def drop_set_aside(out: Path) -> None:
    """Remove what interrupted runs left in the folder of an A/B: for those who run many."""
    for left in out.glob(f"*{SET_ASIDE}*"):
        shutil.rmtree(left, ignore_errors=True)
