"""WHICH commit did it: a pure search over the history, probes in a worktree of our own, a state that can be resumed.

Nothing of the user's is touched: not their HEAD, index, files, refs, nor a bisect of theirs.
"""
