"""What went wrong: from logs of any size to a failure's class, root line, rank, signature, reading and advice.

`signs.toml` is the table of what lines tell; `scan` reads a log by it, `diagnosis` finds the root among all sightings.
"""

from vlmprof.failures.diagnosis import diagnose
from vlmprof.failures.signs import SIGNS

__all__ = ["SIGNS", "diagnose"]
