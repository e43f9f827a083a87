"""vlmprof: where a step's time and memory go in MoE VLM training on Megatron, is it worse, and which commit did it.

`vlmprof.attach(model, optimizer)` profiles a training loop of your own, `load_run` and `load_runs` give records as
pandas tables; the command line does the rest.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlmprof.interop.frames import Frames, load_run, load_runs
    from vlmprof.profile import Profile, attach

__all__ = ["Frames", "Profile", "attach", "load_run", "load_runs"]

HOMES = {
    "Frames": "vlmprof.interop.frames",
    "Profile": "vlmprof.profile",
    "attach": "vlmprof.profile",
    "load_run": "vlmprof.interop.frames",
    "load_runs": "vlmprof.interop.frames",
}


def __getattr__(name: str) -> Any:
    """`attach` needs torch and `load_run` pandas: each is imported only when it is asked for."""
    if name in HOMES:
        from importlib import import_module

        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module 'vlmprof' has no attribute '{name}'")
