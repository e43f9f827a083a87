"""Foreign formats in and out: training logs of other people's runs become run records.

`import_megatron_log` reads a file and leaves a run folder, `read_megatron_log` only reads. Nothing here imports torch.
"""

from vlmprof.interop.megatron_log import import_megatron_log, read_megatron_log

__all__ = ["import_megatron_log", "read_megatron_log"]
