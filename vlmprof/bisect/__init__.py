"""WHICH commit did it: a pure search over the history, probes in a worktree of our own, a state that can be resumed.

Nothing of the user's is touched: not their HEAD, index, files, refs, nor a bisect of theirs.
"""

from vlmprof.bisect.driver import begin, resume
from vlmprof.bisect.history import open_repository
from vlmprof.bisect.plans import make_plan
from vlmprof.bisect.recipes import load_recipe
from vlmprof.bisect.state import State, state_folder

__all__ = ["State", "begin", "load_recipe", "make_plan", "open_repository", "resume", "state_folder"]
