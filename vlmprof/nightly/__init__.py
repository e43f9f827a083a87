"""A whole NIGHT: every workload of a suite trained on a repository's newest commit, held against the last good one, and
the culprit sought where it is worse. Writes one folder, remembers last good commits, goes on where it was interrupted.
"""

from vlmprof.nightly.night import Asked, spend_night
from vlmprof.nightly.state import State, default_state
from vlmprof.nightly.suite import load_suite

__all__ = ["Asked", "State", "default_state", "load_suite", "spend_night"]
