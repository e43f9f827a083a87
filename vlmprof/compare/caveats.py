"""What differs between two sides that may be compared, and how their runs came about: a reader should know."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vlmprof.records.run import Run
from vlmprof.records.slim import without_paths

__all__ = ["caveats"]

IDENTITY = ("name", "description", "model.deviations", "data.path", "data.fingerprint")
"""Settings that say who and where, not what is done."""
SILENT = ("host ", "data source")
"""Facts that records may be stored without (baselines are): where one side does not tell, nothing differs."""
VOLATILE = ("load_average", "memory_bytes")
BUSY = 1.0
"""Load a core from which on a machine counts as busy: our own run is part of it."""


def caveats(a: Sequence[Run], b: Sequence[Run], labels: tuple[str, str]) -> list[str]:
    """What differs beneath the rules, and what else a reader should know of how the runs came about."""
    sides = [_facts(a), _facts(b)]
    notes = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        if name.startswith(SILENT) and not all(name in side for side in sides):
            continue
        values = [" and ".join(sorted(side.get(name, {"not told"}))) for side in sides]
        if values[0] != values[1]:
            notes.append(f"{name}: {values[0]} against {values[1]}")
    return notes + list(_circumstances(a, b, labels))


def _facts(runs: Sequence[Run]) -> dict[str, set[str]]:
    facts: dict[str, set[str]] = {}
    for run in runs:
        for name, value in _facts_of(run):
            facts.setdefault(name, set()).add(value)
    return facts


def _facts_of(run: Run) -> Iterator[tuple[str, str]]:
    for path, value in _leaves(run.workload.settings or {}):
        if path not in IDENTITY and not path.startswith("knobs.freeze_"):
            yield path, str(value)
    if run.data.source:
        yield "data source", run.data.source
    environment = run.environment
    if environment is None:
        return
    yield "ranks", str(environment.ranks)
    yield "threads", str(environment.threads)
    for package, told in environment.packages.items():
        yield package, f"{told.version} ({told.commit[:10]})" if told.commit else told.version
    for name, value in environment.host.items():
        if name not in VOLATILE:
            yield f"host {name}", str(value)
    for name, value in environment.variables.items():
        yield name, without_paths(value)  # as baselines keep them


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _circumstances(a: Sequence[Run], b: Sequence[Run], labels: tuple[str, str]) -> Iterator[str]:
    first, last = (
        [min(run.created for run in side) for side in (a, b)],
        [max(run.created for run in side) for side in (a, b)],
    )
    for one, other in ((0, 1), (1, 0)):
        if last[one] < first[other]:
            yield (
                f"{labels[one]} was run before {labels[other]}, not interleaved: what changed on the machine in "
                "between counts as a change (vlmprof compare --ab interleaves them)"
            )
    for label, side in zip(labels, (a, b), strict=True):
        loads = [load for run in side if (load := _load(run)) is not None and load > BUSY]
        if loads:
            yield (
                f"the machine was busy during {len(loads)} of {len(side)} runs of {label} "
                f"(load up to {max(loads):.1f} a core)"
            )


def _load(run: Run) -> float | None:
    """Runnable processes a core when the run began; a GPU's times depend little on it."""
    host = run.environment.host if run.environment else {}
    load, cores = host.get("load_average"), host.get("cores")
    return load / cores if isinstance(load, int | float) and isinstance(cores, int) and cores else None
