"""Plants a failure in one rank of a real run: PLANT names it, PLANT_RANK the rank, PLANT_CALL the router call.

Put first on PYTHONPATH by the tests; nothing of vlmprof knows of it.
"""

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time

TARGET = "megatron.core.transformer.moe.router"


def fail(name: str, output: object) -> object:
    import torch

    if name == "nan":
        probs, routing_map = output
        return probs * float("nan"), routing_map
    if name == "raise":
        raise ValueError("planted in the router")
    if name == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "sigstop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if name == "sleep":
        time.sleep(1000)
    if name == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "host-memory":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
        torch.empty(2**40, dtype=torch.uint8)
    if name == "memory":
        torch.zeros(2**28, dtype=torch.uint8)
    if name == "disk":
        raise OSError(28, "No space left on device")
    return output


class Plant(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        self.real = importlib.machinery.PathFinder.find_spec(name, path)
        return importlib.machinery.ModuleSpec(name, self, origin=self.real.origin)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__file__ = self.real.origin
        self.real.loader.exec_module(module)
        plain, calls = module.TopKRouter.forward, iter(range(10**9))

        def forward(router, *args, **kwargs):
            output = plain(router, *args, **kwargs)
            call, planted = next(calls), int(os.environ.get("PLANT_CALL", "10"))
            if call == planted or (call > planted and os.environ["PLANT"] == "nan"):  # a NaN comes again when asked
                output = fail(os.environ["PLANT"], output)
            return output

        module.TopKRouter.forward = forward


if os.environ.get("PLANT") and os.environ.get("RANK", "0") == os.environ.get("PLANT_RANK", "1"):
    sys.meta_path.insert(0, Plant())
