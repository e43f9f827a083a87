"""The comparison document, `vlmprof.comparison/1`: is side B worse than side A, by how much, where, and how sure."""

from typing import Annotated, Literal

from pydantic import Field

from vlmprof.records.figures import Record, Source

__all__ = [
    "COMPARISON_SCHEMA",
    "Comparison",
    "Difference",
    "Losses",
    "MemoryChange",
    "Metric",
    "Side",
    "StageChange",
    "Verdict",
]

COMPARISON_SCHEMA = "vlmprof.comparison/1"
Verdict = Literal["worse", "better", "same", "undecided"]
Reading = Literal["identical", "rounding", "diverged", "unknown"]


class Side(Record):
    """One of the two sides: one or more runs of the same thing."""

    label: str
    runs: int
    created: tuple[str, str]
    """Of the first and the last run, UTC, ISO 8601."""
    workload: str
    """Name and hash."""
    platform: str
    megatron: str = ""
    """Version of megatron-core, empty where it is not known."""
    commit: str = ""
    """Of the Megatron checkout; empty for a release."""
    torch: str = ""
    sources: tuple[str, ...] = ()
    """The record files, where they were read from files."""


class Difference(Record):
    """A rule of comparability that the two sides do not agree on."""

    name: str
    a: str
    b: str


class Metric(Record):
    """One figure on both sides, and what may be said of it."""

    name: str
    title: str
    unit: str
    source: Source
    direction: Literal["lower-better", "higher-better"]
    a: float
    b: float
    change: float | None = None
    """Relative, b / a - 1; absent where a is 0."""
    interval: tuple[float, float] | None = None
    """95 % confidence interval of `change`; absent for what is exact and where nothing is known of the spread."""
    spread: tuple[float | None, float | None] = (None, None)
    """Relative standard deviation from run to run on either side; absent for one run."""
    samples: tuple[int, int] = (1, 1)
    """Runs that told it, on either side."""
    p: dict[str, float] = {}
    """Test -> two-sided p-value."""
    decided_by: str = ""
    """The test whose p-value is judged."""
    p_adjusted: float | None = None
    """Of the test that is judged, one-sided in the direction of the change, corrected for the number of metrics."""
    threshold: float
    """Relative change that matters."""
    verdict: Verdict
    reason: str
    runs_missing: int | None = None
    """Of an undecided metric: how many runs more on each side would probably decide it; absent where unknown."""
    exact: bool = False
    """Deterministic: compared digit by digit, without statistics."""


class StageChange(Record):
    """How far the self time of one stage and phase moved, milliseconds a step of the kind that measured it."""

    name: str
    phase: str
    a_ms: float
    b_ms: float
    change_ms: float
    share_of_change: float | None = None
    """Of the step's change; the shares of all rows together are 1. Absent where the step did not move."""
    interval: tuple[float, float] | None = None
    """95 % confidence interval of `change_ms`, where there are runs enough."""
    moved: bool = False
    """Beyond what the runs' spread explains: the rows worth a reader's time."""
    busy_a_ms: float | None = None
    """Kernel time of the same self part, from traced steps on a GPU: whether kernels moved, or the host."""
    busy_b_ms: float | None = None
    rank_a: int | None = None
    """The slowest rank of this stage on side A, where there are several."""
    rank_b: int | None = None
    rank_change_ms: tuple[float, float] | None = None
    """Change of the fastest and of the slowest rank's total time."""


class MemoryChange(Record):
    """How far the bytes of one stage moved."""

    stage: str
    category: str
    """`held_at_peak` (these add up to the peak), or what of it: parameters, gradients, ..., saved_activations."""
    phase: str = ""
    a_bytes: float
    b_bytes: float
    change_bytes: float
    share_of_change: float | None = None
    """Of the change of the whole rank's figure of the same category; absent where that did not move."""


class Losses(Record):
    """The loss curves of the first run of each side, step by step over the batches that both trained on."""

    steps: int
    """How many were compared."""
    first_difference: int | None = None
    """Index of the first step whose losses differ at all."""
    largest: float = 0.0
    """Largest relative difference of two losses of a step."""
    reading: Reading
    """`rounding`: no larger than rounding errors make it in that many steps of that precision."""
    text: str


class Comparison(Record):
    schema_: Annotated[str, Field(alias="schema")] = COMPARISON_SCHEMA
    created: str
    """UTC, ISO 8601."""
    command: tuple[str, ...] = ()
    a: Side
    b: Side
    verdict: Verdict
    """Worse where any metric is worse; else undecided where any is, else better where any is."""
    summary: str
    """One sentence."""
    allowed: tuple[Difference, ...] = ()
    """What would have been refused, and was lifted by --allow or --normalize."""
    normalized: str = ""
    """`useful-tokens`: times and FLOPs are per thousand useful tokens."""
    caveats: tuple[str, ...] = ()
    method: str = ""
    """How the verdicts were reached: level, correction, tests."""
    metrics: tuple[Metric, ...] = ()
    stages: tuple[StageChange, ...] = ()
    """The largest changes first."""
    step_change_ms: float | None = None
    """Of plain steps: what the step time's metric says."""
    observed_change_ms: float | None = None
    """Of the steps that the stage times come from: what `stages` adds up to."""
    unexplained_ms: float | None = None
    """Of `observed_change_ms`, what lies in no named stage (`other`)."""
    attribution: str = ""
    """How the two step changes relate, in a sentence."""
    memory: tuple[MemoryChange, ...] = ()
    """The largest changes first."""
    memory_change_bytes: float | None = None
    """Of the peak."""
    memory_unexplained_bytes: float | None = None
    """Of `memory_change_bytes`, what no stage held."""
    losses: Losses | None = None
