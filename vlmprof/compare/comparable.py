"""May these runs be compared at all? A table of rules; what differs beneath them is in `caveats`.

A rule that the runs do not agree on is a refusal that names both values and the way out; what only one side knows is a
caveat; a layout, a knob or a Megatron version with equal effective work is what comparing is for: a caveat, too.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from vlmprof.compare.values import shared_batches
from vlmprof.errors import NoAnswerError, UserError
from vlmprof.records.comparison import Difference
from vlmprof.records.run import Run

__all__ = ["NORMALIZATIONS", "RULES", "NotComparable", "check_comparable", "check_outcomes"]

NORMALIZATIONS = ("useful-tokens",)
CLOSE = 1e-9
"""Relative difference of two means that are the same number, summed in another order."""

Value = str | float | tuple[float, ...]


class NotComparable(NoAnswerError):  # noqa: N818 - not an error of anybody's
    """The comparison makes no sense as it was asked for; the message says why and what to do. Exit code 4."""


class Rule(NamedTuple):
    name: str
    """What `--allow` takes."""
    title: str
    read: Callable[[Run], Value | None]
    """None where the record does not tell."""
    by_batch: bool = False
    """A mean over the run's own batches: of runs of one workload it differs only when their numbers of steps do."""
    per_token: bool = False
    """Covered by `--normalize useful-tokens`."""


def _known(value: str) -> str | None:
    return None if value in ("", "unknown") else value


def _environment(name: str) -> Callable[[Run], Value | None]:
    return lambda run: _known(getattr(run.environment, name)) if run.environment else None


def _work(name: str) -> Callable[[Run], Value | None]:
    return lambda run: getattr(run.effective_work, name) if run.effective_work else None


def _distribution(name: str) -> Callable[[Run], Value | None]:
    def read(run: Run) -> Value | None:
        spread = getattr(run.effective_work, name, None)
        return tuple(spread.get(key, 0.0) for key in ("min", "median", "mean", "max")) if spread else None

    return read


def _trained(run: Run) -> Value | None:
    told = run.effective_work.trained_parameters if run.effective_work else None
    return told if told is not None else run.parameters.get("trained")


def _frozen(run: Run) -> Value | None:
    knobs = (run.workload.settings or {}).get("knobs")
    if not isinstance(knobs, dict):
        return None
    return ", ".join(part for part in ("vision", "projector", "decoder") if knobs.get(f"freeze_{part}")) or "nothing"


RULES: tuple[Rule, ...] = (
    Rule("platform", "platform", _environment("platform")),
    Rule("precision", "precision", _environment("precision")),
    Rule("realism", "data", lambda run: _known(run.data.realism)),
    Rule("freezing", "frozen parts", _frozen),
    Rule("trained-parameters", "trained parameters", _trained),
    Rule("useful-tokens", "useful tokens a step", _work("useful_tokens"), by_batch=True, per_token=True),
    Rule("image-patches", "image patches a step", _work("image_patches"), by_batch=True, per_token=True),
    Rule(
        "sequence-lengths",
        "sequence lengths (min, median, mean, max)",
        _distribution("sequence_lengths"),
        by_batch=True,
        per_token=True,
    ),
    Rule(
        "image-sizes",
        "patches of an image (min, median, mean, max)",
        _distribution("image_patch_counts"),
        by_batch=True,
        per_token=True,
    ),
    Rule("model-flops", "model FLOPs a step", _work("model_flops"), by_batch=True, per_token=True),
)


def check_outcomes(runs: Sequence[Run], label: str) -> None:
    """Raises:
    NotComparable: a run failed, or was interrupted.
    """
    for number, run in enumerate(runs, 1):
        outcome = run.outcome
        if outcome.status != "ok":
            which = f"run {number} of {label}" if len(runs) > 1 else label
            where = f" in {outcome.stage}" if outcome.stage else ""
            what = f" ({outcome.failure_class or 'unknown'}{where})" if outcome.status == "failed" else ""
            message = f": {outcome.message}" if outcome.message else ""
            raise NotComparable(f"{which} {outcome.status}{what}{message}; compare runs that came to their end")


def check_comparable(
    a: Sequence[Run], b: Sequence[Run], labels: tuple[str, str], allow: Collection[str] = (), normalize: str = ""
) -> tuple[list[Difference], list[str]]:
    """(refusals that were lifted, caveats of what one side does not tell).

    Raises:
        NotComparable: with each difference, both values, and the way out.
        UserError: `allow` or `normalize` is no known name.
    """
    names = [rule.name for rule in RULES]
    unknown = next((name for name in allow if name not in names), None)
    if unknown is not None:
        raise UserError(f"--allow '{unknown}' is no rule of comparing: there are {', '.join(names)}")
    if normalize and normalize not in NORMALIZATIONS:
        raise UserError(f"--normalize '{normalize}' is unknown: there is {', '.join(NORMALIZATIONS)}")
    lifted: list[Difference] = []
    refused: list[Difference] = []
    notes: list[str] = []
    same_work = _same_workload([*a, *b])
    for rule in RULES:
        if rule.by_batch and same_work:
            continue
        difference, note = _differs(rule, a, b, labels)
        notes += [note] if note else []
        if difference is None:
            continue
        may = rule.name in allow or (rule.per_token and bool(normalize))
        (lifted if may else refused).append(difference)
    if refused:
        raise NotComparable(_refusal(refused, labels))
    if same_work and len({len(shared_batches([run], "plain")) for run in (*a, *b)}) > 1:
        notes.append("the runs have different numbers of steps: compared over the batches that all of them trained on")
    return lifted, notes


def _same_workload(runs: Sequence[Run]) -> bool:
    """One workload hash, and a batch that all have: then the work of a batch is the same by construction."""
    return bool(runs[0].workload.hash) and len({run.workload.hash for run in runs}) == 1 and _share_batches(runs)


def _share_batches(runs: Sequence[Run]) -> bool:
    return bool(shared_batches(runs, "plain"))


def _differs(rule: Rule, a: Sequence[Run], b: Sequence[Run], labels: tuple[str, str]) -> tuple[Difference | None, str]:
    sides = [_distinct([rule.read(run) for run in side]) for side in (a, b)]
    if not sides[0] and not sides[1]:
        return None, f"neither side tells {rule.title}: whether it is the same is not known"
    if not sides[0] or not sides[1]:
        silent, told = (0, 1) if not sides[0] else (1, 0)
        return None, (
            f"{labels[silent]} does not tell {rule.title} ({labels[told]}: {show(sides[told][0])}): "
            "whether it is the same is not known"
        )
    if len(_distinct([*sides[0], *sides[1]])) == 1:
        return None, ""
    return Difference(name=rule.name, a=_show_all(sides[0]), b=_show_all(sides[1])), ""


def _distinct(values: Sequence[Value | None]) -> list[Value]:
    found: list[Value] = []
    for value in values:
        if value is not None and not any(_equal(value, other) for other in found):
            found.append(value)
    return found


def _equal(one: Value, other: Value) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    if isinstance(one, tuple) or isinstance(other, tuple):
        pairs = zip(one, other, strict=True) if isinstance(one, tuple) and isinstance(other, tuple) else ()
        return all(_equal(x, y) for x, y in pairs)
    return abs(one - other) <= CLOSE * max(abs(one), abs(other))


def show(value: Value) -> str:
    """A rule's value for people."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return " / ".join(map(show, value))
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1e6 else f"{value:,.1f}"


def _show_all(values: Sequence[Value]) -> str:
    return " and ".join(map(show, values))


def _refusal(refused: Sequence[Difference], labels: tuple[str, str]) -> str:
    titles = {rule.name: rule.title for rule in RULES}
    told = "; ".join(f"{titles[one.name]}: {one.a} against {one.b}" for one in refused)
    flags = " ".join(f"--allow {one.name}" for one in refused)
    covered = {rule.name for rule in RULES if rule.per_token}
    ways = f"lift what you know to be harmless with {flags}"
    if all(one.name in covered for one in refused):
        ways += ", or compare per useful token with --normalize useful-tokens"
    return f"{labels[0]} and {labels[1]} do not do the same work: {told}; {ways}"
