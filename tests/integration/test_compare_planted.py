"""`vlmprof compare --ab` on two real Megatron checkouts, one of which somebody made slower and hungrier."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from vlmprof.compare import compare, load_thresholds
from vlmprof.records.comparison import Comparison
from vlmprof.records.memory import Router
from vlmprof.records.store import read_comparison, read_run
from vlmprof.workload.settings import load_workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SLEEP_MS = 100.0
SLEEP = """
import time as _time
_dispatch = MoEAlltoAllTokenDispatcher.token_dispatch
def _slower(self, *args, **kwargs):
    _time.sleep(0.1)
    return _dispatch(self, *args, **kwargs)
MoEAlltoAllTokenDispatcher.token_dispatch = _slower
"""
KEEP = """
class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output, extra):
        ctx.save_for_backward(extra)
        return output.view_as(output)

    @staticmethod
    def backward(ctx, gradient):
        ctx.saved_tensors
        return gradient, None

_experts = SequentialMLP.forward
def _hungrier(self, *args, **kwargs):
    output, bias = _experts(self, *args, **kwargs)
    return _Keep.apply(output, torch.ones(70_500)), bias
SequentialMLP.forward = _hungrier
"""


def checkout(folder: Path, **appended: str) -> Path:
    """A copy of the installed Megatron-Core, with text at the end of modules of its `transformer.moe`."""
    spec = find_spec("megatron.core")
    assert spec is not None
    assert spec.origin is not None
    core = Path(spec.origin).parent
    shutil.copytree(core, folder / "megatron" / "core", ignore=shutil.ignore_patterns("__pycache__"))
    for module, text in appended.items():
        with (folder / "megatron" / "core" / "transformer" / "moe" / f"{module}.py").open("a") as file:
            file.write(text)
    return folder


def ab(a: Path, b: Path, out: Path, rounds: int = 5) -> tuple[int, Comparison]:
    command = [sys.executable, "-m", "vlmprof", "compare", "--ab", str(a), str(b), "--rounds", str(rounds)]
    done = subprocess.run(
        [*command, "--steps", "6", "--out", str(out), "-o", "found.json"], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1, 4), done.stderr
    return done.returncode, read_comparison(Path("found.json"))


def test_a_sleep_in_the_dispatcher_is_found_where_it_is(tmp_path: Path) -> None:
    plain, planted = checkout(tmp_path / "plain"), checkout(tmp_path / "planted", token_dispatcher=SLEEP)
    code, found = ab(plain, planted, tmp_path / "ab")
    assert code == 1
    assert next(row for row in found.metrics if row.name == "step_ms").verdict == "worse"
    first, *others = found.stages
    assert (first.name, first.phase, first.moved) == ("decoder.dispatcher.dispatch", "forward", True)
    run, tiny = read_run(tmp_path / "ab" / "a-01"), load_workload("tiny").knobs
    assert isinstance(run.router, Router)
    calls = len(run.router.layers) * tiny.global_batch_size // tiny.micro_batch_size
    assert first.change_ms == pytest.approx(calls * SLEEP_MS, rel=0.05)
    # what runs after a sleep finds cold caches and, on some machines, a slower clock: a real change, elsewhere
    assert all(abs(row.share_of_change or 0.0) < 0.1 for row in others)
    assert sum(row.share_of_change or 0.0 for row in found.stages) == pytest.approx(1)
    assert found.losses is not None
    assert found.losses.reading == "identical"


def test_a_tenth_more_saved_in_the_experts_is_found_by_one_run_a_side(tmp_path: Path) -> None:
    planted = checkout(tmp_path / "planted", experts=KEEP)
    for name, more in (("a", []), ("b", ["--megatron", str(planted)])):
        command = [sys.executable, "-m", "vlmprof", "run", "--stage-breakdown", "--steps", "2", "--out", name, *more]
        subprocess.run(command, check=True, capture_output=True)
    found = compare([read_run(Path("a"))], [read_run(Path("b"))], thresholds=load_thresholds())
    saved = next(row for row in found.metrics if row.name == "saved_activations")
    assert (saved.verdict, saved.exact) == ("worse", True)
    rows = {row.stage: row for row in found.memory if row.category == "saved_activations" and row.phase == "forward"}
    assert rows["decoder.experts"].change_bytes / rows["decoder.experts"].a_bytes == pytest.approx(0.1, abs=0.01)
    assert (rows["decoder.experts"].share_of_change or 0.0) >= 0.9
    assert found.memory_unexplained_bytes == pytest.approx(0, abs=1024)


def test_an_interrupted_comparison_goes_on_with_the_runs_it_has(tmp_path: Path) -> None:
    plain, out = checkout(tmp_path / "plain"), tmp_path / "ab"
    command = [sys.executable, "-m", "vlmprof", "compare", "--ab", str(plain), str(plain), "--rounds", "3", "--json"]
    command += ["--steps", "2", "--out", str(out), "--set", "model.decoder.num_layers=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (out / "b-01" / "rank0.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    before = (out / "a-01" / "run.json").stat().st_mtime_ns
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 4), done.stderr
    found = Comparison.model_validate(json.loads(done.stdout))
    assert (found.a.runs, found.b.runs) == (3, 3)
    assert not any(row.verdict == "worse" for row in found.metrics)
    assert (out / "a-01" / "run.json").stat().st_mtime_ns == before
    assert (out / "b-01.unfinished-1").is_dir()
    other = subprocess.run([*command, "--steps", "3"], capture_output=True, text=True, check=False)
    assert other.returncode == 2
    assert "another comparison (steps differ)" in other.stderr


def test_another_environment_runs_the_workers_with_this_vlmprof(tmp_path: Path) -> None:
    """A virtual environment that has the packages, but no vlmprof."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    library = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    (library / "ours.pth").write_text(f"{Path(torch.origin).parent.parent}\n")
    command = [sys.executable, "-m", "vlmprof", "compare", "--ab", sys.executable, str(tmp_path / "env")]
    command += ["--rounds", "3", "--steps", "2", "--json", "--set", "model.decoder.num_layers=2"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "ab")], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode in (0, 4), done.stderr
    found = Comparison.model_validate(json.loads(done.stdout))
    assert found.losses is not None
    assert found.losses.reading == "identical"
    job = (tmp_path / "ab" / "yardstick" / "vlmprof").resolve()
    assert (job / "training" / "worker.py").exists()
