"""Is B worse than A: the same effective work?, statistics over runs, which stage moved, and whether losses part.

`compare(a, b, *, thresholds, allow=(), normalize="", band=None, labels=("A", "B")) -> Comparison` is pure, over
sequences of run records; `run_ab` makes the runs of both sides, interleaved.
"""
