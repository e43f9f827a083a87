"""WHAT is trained: the typed workload and its presets; for the worker, the model, the batches and the FLOPs.

Import the parts by module: `spec` and `settings` need pydantic, `samples` and `packing` numpy, `model` torch.
"""
