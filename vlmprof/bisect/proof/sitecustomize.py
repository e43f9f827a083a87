"""Put first on a probe's PYTHONPATH: writes down where $VLMPROF_PROVE is imported from, into the file $VLMPROF_PROOF.

Runs in whatever Python the probe uses, so it keeps to what old ones know. The user's own sitecustomize comes after it.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


class Witness:
    """Stands before all other finders, finds nothing itself, and notes what they find for one module."""

    def __init__(self, module, file):  # type: ignore[no-untyped-def]
        self.module = module
        self.file = file

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != self.module:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                origins = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
                line = json.dumps({"module": name, "origin": origins[0] if origins else ""}) + "\n"
                handle = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                try:
                    os.write(handle, line.encode())
                finally:
                    os.close(handle)
                return spec
        return None


if os.environ.get("VLMPROF_PROVE") and os.environ.get("VLMPROF_PROOF"):
    sys.meta_path.insert(0, Witness(os.environ["VLMPROF_PROVE"], os.environ["VLMPROF_PROOF"]))  # type: ignore

_others = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]  # noqa: PTH100
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _own = importlib.util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _own
    _spec.loader.exec_module(_own)
