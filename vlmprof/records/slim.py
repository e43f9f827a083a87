"""What a baseline keeps of a run, what makes a run unfit for one, and what differs beneath the platform."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vlmprof.errors import UserError
from vlmprof.records.run import Run

if TYPE_CHECKING:
    from vlmprof.records.summary import Summary

__all__ = ["MIN_STEPS", "differences_beneath", "fingerprint", "refuse_unfit", "slim", "tested_state", "without_paths"]

MIN_STEPS = 3
"""Plain steps that a run needs: of three, the median still sets a lone bad step aside. How steady such values are is
seen in the runs of the baseline themselves."""

LEFT_OUT = {"layers", "hook_points", "findings", "notes", "traces"}
_PATH = re.compile(r"(?<![\w./])/(?:[^\s/:'\",]+/)*([^\s/:'\",]+)/?")


def slim(run: Run) -> Run:
    """The run without what comparing does not need, and without what names a person's machine: of a path the last part
    is left, of a host nothing."""
    content = run.model_dump(by_alias=True, exclude=LEFT_OUT, exclude_none=True)
    for facts in content["ranks"]:
        facts["host"] = ""
    for package in (content.get("environment") or {}).get("packages", {}).values():
        package["path"] = ""
    return Run.model_validate(without_paths(content))


def without_paths(value: Any) -> Any:
    """The same, of every absolute path in its strings the last part only: `/usr/local/cuda` -> `.../cuda`."""
    if isinstance(value, str):
        return _PATH.sub(r".../\1", value)
    if isinstance(value, dict):
        return {without_paths(key): without_paths(item) for key, item in value.items()}
    return [without_paths(item) for item in value] if isinstance(value, list | tuple) else value


def fingerprint(run: Run) -> str:
    """12 hex digits of the steps' times: no two runs agree in them to the nanosecond."""
    times = [(step.index, step.kind, step.ms) for step in run.steps]
    return hashlib.sha256(json.dumps(times).encode()).hexdigest()[:12]


def tested_state(run: "Run | Summary") -> str:
    """What was measured: the commit of the Megatron checkout, or `megatron-core==X` of a release; empty if unknown."""
    package = run.environment.packages.get("megatron-core") if run.environment else None
    if package is None:
        return ""
    return package.commit or f"megatron-core=={package.version}"


def refuse_unfit(runs: Sequence[Run], others: Sequence[Run] = ()) -> None:
    """Check that each run is one to compare with, and did the same work as the first of `others` (or of `runs`).

    Raises:
        UserError: it failed, is too short, holds a figure that is no number, or did other work.
    """
    first = (*others, *runs)[0]
    for run in runs:
        name = f"the run of {run.created}"
        if run.outcome.status != "ok":
            raise UserError(f"{name} {run.outcome.status}: only a run that ended well can be accepted")
        steps = [step for step in run.steps if step.kind == "plain" and not step.warmup]
        if len(steps) < MIN_STEPS:
            raise UserError(f"{name} has {len(steps)} plain steps: a baseline needs {MIN_STEPS} or more (--steps)")
        if any(step.ms <= 0 for step in steps) or not all(map(math.isfinite, _numbers(run.model_dump()))):
            raise UserError(f"{name} holds a figure that is no number or no time: it is damaged")
        for what, own, wanted in _work_differences(run, first):
            raise UserError(f"{name} has {what} {own}, the baseline's runs have {wanted}: they cannot be compared")


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)


def _work_differences(run: Run, other: Run) -> Iterator[tuple[str, object, object]]:
    if run.data.realism != other.data.realism:
        yield "data", run.data.realism, other.data.realism
    precision, wanted = (one.environment.precision if one.environment else "" for one in (run, other))
    if precision != wanted:
        yield "precision", precision, wanted
    batches, others = (len({s.batch for s in one.steps if s.kind == "plain" and not s.warmup}) for one in (run, other))
    if batches != others:
        yield "plain steps", batches, others
    work, rest = (one.effective_work.model_dump() if one.effective_work else {} for one in (run, other))
    for name in {**work, **rest}:
        if work.get(name) != rest.get(name):
            yield name, work.get(name), rest.get(name)


VARYING = ("load_average",)


def differences_beneath(runs: Sequence[Run]) -> tuple[str, ...]:
    """One line for every fact beneath the platform that is not the same in all runs, e.g. `torch: 2.12.0, 2.13.0`."""
    facts: dict[str, list[str]] = {}
    of_hosts: set[str] = set()  # a host that does not tell one (older records know no driver) does not differ in it
    for run in runs:
        environment = run.environment
        if environment is None:
            continue
        own: dict[str, object] = {"device": environment.device, "threads": environment.threads}
        of_hosts |= {*environment.host}
        own |= {name: value for name, value in environment.host.items() if name not in VARYING}
        own |= {
            name: f"{package.version} ({package.commit[:10]})" if package.commit else package.version
            for name, package in environment.packages.items()
        }
        own |= environment.variables
        own["bridge"] = ", ".join(environment.bridge)
        for name, value in own.items():
            facts.setdefault(name, []).append(str(value))
    known = sum(run.environment is not None for run in runs)
    lines = []
    for name, values in facts.items():
        different = sorted({*values, *(["not set"] if len(values) < known and name not in of_hosts else [])})
        if len(different) > 1:
            lines.append(f"{name}: {', '.join(different)}")
    return tuple(lines)
