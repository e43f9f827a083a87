"""From what a person names to the runs of a side: a run folder, a record, a pattern of several, or `baseline`."""

import gc
import glob
from pathlib import Path

from vlmprof.compare.samples import band_of
from vlmprof.compare.statistics import Band
from vlmprof.errors import Exit, UserError
from vlmprof.records.run import Run
from vlmprof.records.store import read_runs

__all__ = ["BASELINE", "known_band", "read_sides"]

BASELINE = "baseline"

Side = tuple[list[Run], tuple[str, ...]]
"""(runs, where each was read from)"""


def read_sides(a: str, b: str, store: Path | None) -> tuple[Side, Side]:
    """The runs of both sides.

    Args:
        a: a run folder, a folder of run folders, a record, a quoted pattern of these, or `baseline`.
        b: the same; one of them may be `baseline`: the accepted runs of the other side's workload and platform.
        store: the folder of baselines; None: the default ones.

    Raises:
        UserError: nothing is there, or a record cannot be read; no baseline holds such runs (exit code 4).
    """
    if a == b == BASELINE:
        raise UserError("both sides are 'baseline': name a run to compare it with")
    if a == BASELINE:
        other = _read(b)
        return _accepted(store, other[0][0]), other
    one = _read(a)
    return one, _accepted(store, one[0][0]) if b == BASELINE else _read(b)


def _read(named: str) -> Side:
    paths = _paths(named)
    runs = read_runs(paths)
    gc.freeze()  # a thousand records are millions of objects, which the collector would look through at every turn
    return runs, tuple(map(str, paths))


def _paths(named: str) -> list[Path]:
    path = Path(named)
    if path.is_dir() and not (path / "run.json").exists():
        found = sorted(path.glob("*/run.json"))
        if not found:
            raise UserError(f"'{named}' holds no run record: name a run folder, or a folder of run folders")
        return [file.parent for file in found]
    if path.exists() or not glob.has_magic(named):
        return [path]
    matches = [Path(one) for one in sorted(glob.glob(named, recursive=True))]  # noqa: PTH207 - absolute ones, too
    records = [one for one in matches if one.suffix == ".json" or (one / "run.json").exists()]
    if not records:
        raise UserError(f"the pattern '{named}' matches no run record")
    return records


def _accepted(store: Path | None, run: Run) -> Side:
    from vlmprof.records.baseline import find_baseline

    runs = find_baseline(store, run).runs
    if not runs:
        raise UserError("the baseline has no run that counts: accept some with vlmprof baseline add RUN... --why TEXT")
    return list(runs), ()


def known_band(store: Path | None, run: Run) -> Band | None:
    """The A/A band of the runs accepted for this workload and platform; None where there is none.

    Raises:
        UserError: the store is there but cannot be read.
    """
    from vlmprof.records.baseline import find_baseline

    platform = run.environment.platform if run.environment else "unknown"
    if platform == "unknown" or not run.workload.hash:
        return None
    try:
        return band_of(find_baseline(store, run).runs)
    except UserError as error:
        if error.exit_code is Exit.NO_ANSWER:
            return None
        raise
