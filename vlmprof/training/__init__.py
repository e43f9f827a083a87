"""HOW it is trained, in worker processes only: Megatron's parallel state, DDP, optimizer and schedules, and the loop.

`worker` is the process, `loop` the training, `bridge` what Megatron needs on a machine without a GPU.
"""
