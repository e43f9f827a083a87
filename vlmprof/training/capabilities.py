"""What torch, Megatron and the device can do here, as JSON: `python -m vlmprof.training.capabilities`, for doctor."""

import contextlib
import json
import sys
import warnings
from typing import Any

__all__ = ["capabilities"]


def capabilities() -> list[dict[str, Any]]:
    """Fields of `vlmprof.launch.doctor.Check`, one dict a check."""
    try:
        import torch
    except Exception as error:
        return [_check("torch", False, f"{type(error).__name__}: {error}; pip install -c constraints.txt torch")]
    cuda = torch.cuda.is_available()
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if cuda else []
    return [
        _check("torch", True, torch.__version__),
        _megatron(cuda),
        _check("CUDA devices", cuda, ", ".join(devices) or "none: vlmprof trains on the CPU", optional=True),
        _transformer_engine(),
        _nvtx(),
        _backend("gloo", torch.distributed.is_gloo_available(), "this torch was built without gloo", optional=cuda),
        _backend("NCCL", torch.distributed.is_nccl_available(), "only in CUDA builds of torch", optional=True),
    ]


def _check(name: str, ok: bool, found: str, optional: bool = False) -> dict[str, Any]:
    return {"name": name, "ok": ok, "found": found, "optional": optional}


def _backend(name: str, ok: bool, why: str, optional: bool) -> dict[str, Any]:
    return _check(name, ok, "available" if ok else why, optional)


def _megatron(cuda: bool) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        if not cuda:
            from vlmprof.training.bridge import cpu_bridge

            stack.enter_context(cpu_bridge())
        try:
            import megatron.core
        except Exception as error:
            return _check("megatron-core", False, f"{type(error).__name__}: {error}; pip install megatron-core")
        return _check("megatron-core", True, f"{megatron.core.__version__} ({megatron.core.__path__[0]})")


def _transformer_engine() -> dict[str, Any]:
    name = "transformer-engine"
    try:
        import transformer_engine.pytorch as te
    except Exception:
        return _check(name, False, "pip install 'vlmprof[gpu]' on a machine with CUDA", optional=True)
    return _check(name, True, str(getattr(te, "__version__", "installed")), optional=True)


def _nvtx() -> dict[str, Any]:
    try:
        import nvtx

        domain = type(nvtx.get_domain("vlmprof")).__name__
    except Exception as error:
        return _check("NVTX", False, f"{type(error).__name__}: {error}; pip install nvtx")
    listening = "a tool is listening" if domain == "Domain" else "no tool is listening"
    return _check("NVTX", True, listening)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        answer = capabilities()
    print(json.dumps(answer))
