"""Is B worse than A: the same effective work?, statistics over runs, which stage moved, and whether losses part.

`compare` is pure, from the run records of two sides to a `Comparison`.
"""

from vlmprof.compare.comparable import NotComparable
from vlmprof.compare.comparison import compare
from vlmprof.compare.samples import band_of
from vlmprof.compare.statistics import Band
from vlmprof.compare.summary import may_be_worse, place_of
from vlmprof.compare.thresholds import Thresholds, load_thresholds

__all__ = ["Band", "NotComparable", "Thresholds", "band_of", "compare", "load_thresholds", "may_be_worse", "place_of"]
