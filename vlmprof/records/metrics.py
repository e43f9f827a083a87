"""One value a run of every metric that runs are judged by: step time, rates, peak memory, each stage's self time."""

import math

from vlmprof.records.figures import Figure
from vlmprof.records.run import Run

__all__ = ["metrics_of"]

RATES = ("step_ms", "tokens_per_second", "useful_tokens_per_second")


def metrics_of(run: Run) -> dict[str, float]:
    """Metric -> value of one run; what was not measured, or is no number, is left out.

    `step_ms` (median over plain steps), `tokens_per_second`, `useful_tokens_per_second` (likewise), `peak_bytes`
    (median over counted steps), and `<stage>/<phase>` (self ms: mean over the middle half of the spanned steps).
    """
    measured = {name: run.throughput.get(name) for name in RATES}
    measured["peak_bytes"] = run.memory.peak if run.memory else None
    measured |= {f"{row.name}/{row.phase}": row.self_ms for row in run.stages if row.name != "step"}
    return {name: one.value for name, one in measured.items() if isinstance(one, Figure) and math.isfinite(one.value)}
