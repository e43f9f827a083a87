"""Times of two checkouts of one repository, run in turns on this machine: a night's A/B."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vlmprof.compare import compare
from vlmprof.compare.ab import drop_set_aside, run_ab
from vlmprof.nightly.held_against import thresholds
from vlmprof.nightly.suite import SuiteWorkload
from vlmprof.records.comparison import Comparison
from vlmprof.workload.spec import Workload

__all__ = ["Checkout", "interleave"]


@dataclass(frozen=True)
class Checkout:
    folder: Path
    label: str


def interleave(
    workload: Workload, entry: SuiteWorkload, good: Checkout, other: Checkout, out: Path, tell: Callable[[str], None]
) -> Comparison:
    """The comparison of times; `entry.rounds` runs of each side at most, of plain steps only.

    Args:
        workload: what both train.
        entry: what the suite says of it.
        good: the last good commit.
        other: the commit in question.
        out: for the runs; those that are there already are counted.
        tell: gets a line after every run. What it raises ends it, and the runs are kept.

    Raises:
        UserError: a run fails, or the two do not do the same work.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the runs are kept.
    """
    options = replace(entry.options(other.folder, out), stage_breakdown=False)
    limits = thresholds(entry.slowdown)
    sides = str(good.folder), str(other.folder)
    rounds = run_ab(*sides, workload, options, entry.rounds, out, limits, tell=tell)
    drop_set_aside(out)
    labels = good.label, other.label
    return compare(rounds.a, rounds.b, thresholds=rounds.thresholds, labels=labels)
