"""The CPU bridge: what Megatron-Core needs of `torch.cuda` to train on a machine without a GPU.

The one place that touches `torch.cuda` there. Each row of `PATCHES` is (where, attribute, replacement, reason);
`cpu_bridge()` applies the rows that exist in this version of Megatron and undoes every one on exit.
"""

import contextlib
import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.utils._triton

__all__ = ["PATCHES", "cpu_bridge"]

CPU = torch.device("cpu")


class Patch(NamedTuple):
    where: str
    """Module, or module:class."""
    attribute: str
    make: Callable[[Any], Any]
    """From the original (None where absent) to what stands in for it."""
    reason: str
    only_if_absent: bool = False


def _is_cuda(device: Any) -> bool:
    return isinstance(device, int) or str(device).startswith("cuda")


def _factory(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and _is_cuda(device):
            kwargs["device"] = CPU
        return original(*args, **kwargs)

    return on_cpu


class _Event:
    """A CUDA event on a machine where work is done when the call returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    record = wait = lambda self, *args: None
    query = lambda self: True  # noqa: E731


class _Stream:
    """A stream on such a machine."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record_event(self, *args: Any) -> _Event:
        return _Event()

    wait_stream = wait_event = lambda self, *args: None


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **kwargs: value


def _tensor_type(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        if args or kwargs or not isinstance(answer, str) or answer.startswith("torch.cuda."):
            return answer
        return answer.replace("torch.", "torch.cuda.", 1)

    return type_


def _as_list(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def to_host(tensor: Any, as_numpy: bool = False, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, torch.Tensor):
            return tensor.detach().numpy() if as_numpy else tensor
        return original(tensor, as_numpy, *args, **kwargs)

    return to_host


class _NoFp8:
    """Transformer Engine's fp8 state where there is no Transformer Engine: never on."""

    is_fp8_enabled = staticmethod(lambda: False)


def _no_fp8(*args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


class _KernelLanguage(types.ModuleType):
    """`triton` where it is not installed: modules that define GPU kernels import; none of their kernels runs here."""

    __path__: list[str] = []
    __version__ = "0.0.0"  # Megatron asks, and leaves kernels alone that need a newer one

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or _decorator


def _decorator(*args: Any, **kwargs: Any) -> Any:
    """Stands for triton.jit, triton.autotune(...), torch.compile(...): gives back what it decorates."""
    return args[0] if len(args) == 1 and callable(args[0]) else _decorator


STAND_IN_MODULES = ("triton", "triton.language")
"""megatron-core 0.18 and newer import them at top level; no CPU build of torch brings them."""

_RNG = "megatron.core.tensor_parallel.random"
_CUDA = "torch.cuda"

PATCHES: tuple[Patch, ...] = (
    Patch(_CUDA, "current_device", _constant(CPU), "device= of every buffer and factory"),
    Patch(_CUDA, "set_device", _constant(None), "initialisation selects a device"),
    Patch(_CUDA, "synchronize", _constant(None), "timers and schedules wait for the device"),
    Patch(_CUDA, "current_stream", _constant(_Stream()), "dispatchers and DDP order work on streams"),
    Patch(_CUDA, "stream", lambda _: lambda *args: contextlib.nullcontext(), "side streams of dispatchers"),
    Patch(_CUDA, "Stream", lambda _: _Stream, "side streams of dispatchers"),
    Patch(_CUDA, "Event", lambda _: _Event, "dispatchers wait for copies to the host"),
    Patch(_CUDA, "manual_seed", lambda _: torch.manual_seed, "one generator on the CPU"),
    Patch(_CUDA, "get_rng_state", lambda _: lambda *args: torch.get_rng_state(), "one generator on the CPU"),
    Patch(_CUDA, "set_rng_state", lambda _: lambda state, *args: torch.set_rng_state(state), "the same"),
    Patch("torch:Tensor", "cuda", lambda _: lambda self, *args, **kwargs: self, "tensors stay where they are"),
    Patch("torch:Tensor", "type", _tensor_type, "optimizers compare with 'torch.cuda.FloatTensor'"),
    *(
        Patch("torch", name, _factory, "masks, clip_grads, optimizer and schedules allocate on 'cuda' or an index")
        for name in ("zeros", "ones", "empty", "tensor", "full", "arange")
    ),
    Patch("torch", "compile", lambda _: _decorator, "fusers would need a C++ compiler, and compile inside timed steps"),
    Patch(_RNG, "_get_cuda_rng_state", lambda _: lambda *args, **kwargs: torch.get_rng_state(), "RNG tracker"),
    Patch(_RNG, "_set_cuda_rng_state", lambda _: lambda state, *args, **kwargs: torch.set_rng_state(state), "the same"),
    Patch(_RNG, "FP8GlobalStateManager", lambda _: _NoFp8, "output-discarding recompute asks for fp8", True),
    Patch(_RNG, "activation_recompute_forward", lambda _: _no_fp8, "the same, around the re-run", True),
    Patch(_RNG, "fp8_autocast", lambda _: _no_fp8, "the same, inside the re-run", True),
    Patch(
        "megatron.core.transformer.moe.moe_utils",
        "te_general_gemm",
        lambda _: None,
        "the router names it also where TE is absent (upstream bug in some versions)",
        True,
    ),
    Patch(
        "megatron.core.transformer.moe.token_dispatcher",
        "maybe_move_tensor_to_cpu",
        _as_list,
        "all-to-all split sizes stay tensors, since only CUDA tensors are moved",
    ),
)


@contextlib.contextmanager
def cpu_bridge() -> Iterator[list[str]]:
    """Apply `PATCHES` while the block runs; yields the names of those that apply to this Megatron version."""
    undo: list[tuple[Any, str, Any, bool]] = []
    applied = []
    stand_ins = STAND_IN_MODULES if importlib.util.find_spec(STAND_IN_MODULES[0]) is None else ()
    try:
        torch.utils._triton.has_triton_package()  # torch asks once and keeps the answer: it must hear the true one
        for name in stand_ins:
            sys.modules[name] = _KernelLanguage(name)
            applied.append(name)
        for patch in PATCHES:
            owner = _resolve(patch.where)
            if owner is None:
                continue
            present = hasattr(owner, patch.attribute)
            if present if patch.only_if_absent else not present:
                continue
            original = getattr(owner, patch.attribute, None)
            undo.append((owner, patch.attribute, original, present))
            setattr(owner, patch.attribute, patch.make(original))
            applied.append(f"{patch.where}.{patch.attribute}")
        yield applied
    finally:
        for owner, attribute, original, present in reversed(undo):
            if present:
                setattr(owner, attribute, original)
            else:
                delattr(owner, attribute)
        for name in stand_ins:
            sys.modules.pop(name, None)


def _resolve(where: str) -> Any:
    module_name, _, class_name = where.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return None
    return getattr(module, class_name, None) if class_name else module
