"""Is B worse than A: the same effective work?, statistics, attribution, change points over a history.

`vlmprof.compare.history` finds change points over many records in time. Nothing here imports torch.
"""
