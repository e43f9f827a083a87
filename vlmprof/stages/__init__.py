"""WHERE the time goes, in the training process: hook points, ranges, clocks and the attribution of every moment.

`vlmprof.attach` is the door; `tree` and `attribution` are pure, the rest needs torch.
"""
