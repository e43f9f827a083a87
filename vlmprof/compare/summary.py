"""The comparison in a sentence: the overall verdict, what moved, where."""

from collections.abc import Sequence

from vlmprof.records.comparison import Losses, MemoryChange, Metric, StageChange, Verdict
from vlmprof.records.figures import Figure
from vlmprof.records.run import Run

__all__ = ["may_be_worse", "overall", "place_of", "relation", "summarize"]

SHOWN = 3
LEAST_SHARE = 0.3
PLACED = {
    "memory_peak": ("the peak's change", "held_at_peak"),
    "saved_activations": ("the change of saved activations", "saved_activations"),
    "parameter_bytes": ("the parameters' change", "parameters"),
    "gradient_bytes": ("the gradients' change", "gradients"),
    "optimizer_bytes": ("the optimizer's change", "optimizer_state"),
}
"""Metric -> how its change is called, and the category of bytes by stage that it is the sum of."""


def overall(metrics: Sequence[Metric]) -> Verdict:
    """Worse where any metric is worse; else undecided where any may be worse by more than its threshold, or none was
    decided at all; else better where any is."""
    verdicts = [row.verdict for row in metrics]
    if "worse" in verdicts:
        return "worse"
    if any(map(may_be_worse, metrics)) or set(verdicts) == {"undecided"}:
        return "undecided"
    return "better" if "better" in verdicts else "same"


def may_be_worse(row: Metric) -> bool:
    """Undecided, and its interval reaches beyond the threshold for the worse."""
    if row.verdict != "undecided":
        return False
    if row.interval is None:
        return True
    return row.interval[1] > row.threshold if row.direction == "lower-better" else row.interval[0] < -row.threshold


def summarize(
    verdict: Verdict,
    metrics: Sequence[Metric],
    stages: Sequence[StageChange],
    memory: Sequence[MemoryChange],
    losses: Losses | None,
    labels: tuple[str, str],
) -> str:
    """One sentence."""
    head = {
        "worse": f"{labels[1]} is worse than {labels[0]}",
        "better": f"{labels[1]} is better than {labels[0]}",
        "same": f"{labels[1]} is no worse than {labels[0]}",
        "undecided": f"whether {labels[1]} is worse than {labels[0]} is undecided",
    }[verdict]
    told = [row for row in metrics if row.verdict == verdict and row.verdict != "same"]
    parts = [_metric(row) for row in told[:SHOWN]]
    if len(told) > SHOWN:
        parts.append(f"and {len(told) - SHOWN} more")
    if verdict != "undecided":
        places = [place_of(row.name, stages, memory) for row in told]
        parts += dict.fromkeys(place for place in places if place)
    if losses is not None and losses.reading == "diverged":
        parts.append(f"the losses part at step {losses.first_difference}")
    return f"{head}: {', '.join(parts)}" if parts else head


def _metric(row: Metric) -> str:
    change = f"{row.change:+.1%}" if row.change is not None else f"{row.a:g} to {row.b:g} {row.unit}"
    reach = f" (95 %: {row.interval[0]:+.1%} to {row.interval[1]:+.1%})" if row.interval and not row.exact else ""
    return f"{row.title} {change}{reach}"


def place_of(metric: str, stages: Sequence[StageChange], memory: Sequence[MemoryChange]) -> str:
    """The stage that explains most of a metric's change, if it explains a good part; else nothing."""
    if metric == "step_ms":
        what, rows = (
            "the step's change",
            [(f"{row.name} ({row.phase})", row.share_of_change) for row in stages if row.moved],
        )
    elif metric in PLACED:
        what, category = PLACED[metric]
        held = [row for row in memory if row.category == category and row.phase in ("", "forward")]
        rows = [(row.stage, row.share_of_change) for row in held]
    else:
        return ""
    name, share = max(((name, share or 0.0) for name, share in rows), key=lambda one: one[1], default=("", 0.0))
    return f"{share:.0%} of {what} in {name}" if share >= LEAST_SHARE else ""


def relation(step: float | None, observed: float | None, a: Sequence[Run], b: Sequence[Run]) -> str:
    """How the change of plain steps and that of observed steps, which the stages add up to, go together."""
    if observed is None:
        return ""
    ratios = [_overhead(side) for side in (a, b)]
    cost = ""
    if ratios[0] is not None and ratios[1] is not None:
        cost = f"; observing costs {ratios[0] - 1:+.1%} and {ratios[1] - 1:+.1%} of a plain step"
    plain = f", plain steps by {step:+,.2f} ms" if step is not None else ""
    return f"observed steps, which the stages add up to, moved by {observed:+,.2f} ms{plain}{cost}"


def _overhead(runs: Sequence[Run]) -> float | None:
    ratios = [
        row.ratio.value
        for run in runs
        for row in run.overhead
        if row.kind == "spanned" and isinstance(row.ratio, Figure)
    ]
    return sum(ratios) / len(ratios) if ratios else None
