"""vlmprof: where a step's time and memory go in MoE VLM training on Megatron, is it worse, and which commit did it.

`vlmprof.attach(model, optimizer)` profiles a training loop of your own; the command line does the rest.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlmprof.profile import Profile, attach

__all__ = ["Profile", "attach"]


def __getattr__(name: str) -> Any:
    """`attach` needs torch, which is imported only when it is asked for."""
    if name in __all__:
        from vlmprof import profile

        return getattr(profile, name)
    raise AttributeError(f"module 'vlmprof' has no attribute '{name}'")
