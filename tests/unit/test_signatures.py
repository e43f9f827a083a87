"""Signatures: the same for the same failure on any run and machine, another for another; and the table of signs."""

import random
import re
from pathlib import Path

import pytest

from vlmprof.failures import SIGNS, diagnose
from vlmprof.failures.labels import Label
from vlmprof.failures.prefilter import WINDOW, Prefilter, choose_windows
from vlmprof.failures.signature import normalise
from vlmprof.failures.signs import EXITS, PREFILTER, signs_of
from vlmprof.failures.tracebacks import Traceback, user_frame

CORPUS = Path(__file__).parent.parent / "corpus"


def signature(tmp_path: Path, text: str) -> str:
    path = tmp_path / "train.log"
    path.write_text(text)
    found = diagnose([path]).signature
    assert found is not None
    return found


def crash(root: str, line: int, message: str, function: str = "collate", file: str = "data/collate.py") -> str:
    return f"""[rank{line % 8}]: Traceback (most recent call last):
[rank{line % 8}]:   File "{root}/train.py", line {line}, in <module>
[rank{line % 8}]:     main()
[rank{line % 8}]:   File "{root}/{file}", line {line * 2}, in {function}
[rank{line % 8}]:     raise error
[rank{line % 8}]:   File "/v/lib/python3.{line % 4 + 10}/site-packages/torch/nn/module.py", line {line}, in _call
[rank{line % 8}]:     return forward(*args)
[rank{line % 8}]: ValueError: {message}
"""


def test_the_same_failure_elsewhere_has_the_same_signature(tmp_path: Path) -> None:
    one = crash("/home/mira/vlm", 12, "3 of 128 tokens (pid 4411, 0x7f00aa) at /data/a/x.idx, 1.5 GiB, on node gpu-a17")
    other = crash("/root/w/vlm-2", 977, "9 of 64 tokens (pid 81, 0x7fbeef12) at /mnt/b/c/y.idx, 80.25 MiB, on node n4")
    assert signature(tmp_path, one) == signature(tmp_path, other)
    assert signature(tmp_path, one).endswith(" @ data/collate.py:collate")


def test_another_exception_message_or_frame_is_another_signature(tmp_path: Path) -> None:
    base = crash("/w", 12, "no tokens")
    others = [
        crash("/w", 12, "no pictures"),
        crash("/w", 12, "no tokens", function="pack"),
        crash("/w", 12, "no tokens", file="data/pack.py"),
        base.replace("ValueError", "KeyError"),
    ]
    found = {signature(tmp_path, text) for text in (base, *others)}
    assert len(found) == 5


@pytest.mark.parametrize("error", ["torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "RuntimeError"])
def test_an_oom_is_the_same_in_every_version_of_torch(tmp_path: Path, error: str) -> None:
    size = f"{len(error)}.50 GiB"
    text = crash("/w", 12, "x").replace(
        "ValueError: x", f"{error}: CUDA out of memory. Tried to allocate {size}. GPU 3"
    )
    assert signature(tmp_path, text) == "OutOfMemoryError: CUDA out of memory @ data/collate.py:collate"


def test_a_hang_is_the_same_at_every_step_and_another_one_in_another_collective(tmp_path: Path) -> None:
    line = (
        "[rank{0}]:[E612 10:32:44.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={1}, NumelOut={1}, Timeout(ms)=600000) ran for 600{0}11 milliseconds"
    )
    found = [signature(tmp_path, line.format(*parts)) for parts in ((0, 5, "ALLREDUCE"), (3, 900, "ALLREDUCE"))]
    assert found == ["CollectiveTimeout: ALLREDUCE"] * 2
    assert signature(tmp_path, line.format(0, 5, "BROADCAST")) == "CollectiveTimeout: BROADCAST"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "index 32001 is out of bounds for dimension 0 with size 32000",
            "index <n> is out of bounds for dimension <n>",
        ),
        ("shape '[2, 3, 4]' is invalid", "shape '[<n>]' is invalid"),
        ("object at 0x7f1c2d7fe740", "object at <address>"),
        ("cannot open '/data/x/shard_0012.tar'", "cannot open '<path>'"),
        ("connect to 10.1.2.3:29500 failed", "connect to <host> failed"),
        ("connect to [gpu-a17.cluster.local]:29500 failed", "connect to <host> failed"),
        ("at 2025-06-12 10:22:03,123 rank3 of cuda:1", "at <time> rank<n> of cuda:<n>"),
        ("asked for 1.50 GiB or 512 bytes", "asked for <size> or <size>"),
        ("expected bf16, conv2d and fp8 keep their names", "expected bf16, conv2d and fp8 keep their names"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id <id>"),
        ("KeyError: 'pixel_values'", "KeyError: 'pixel_values'"),
        ("assert failed at layers.cpp:311", "assert failed at layers.cpp"),
    ],
)
def test_what_differs_from_run_to_run_is_normalised(message: str, expected: str) -> None:
    assert normalise(message).startswith(expected)
    assert normalise(normalise(message)) == normalise(message)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["/a/train.py", "/v/lib/python3.12/site-packages/megatron/core/x.py"], "megatron/core/x.py:f"),
        (["/a/train.py", "/w/Megatron-LM/megatron/core/x.py"], "megatron/core/x.py:f"),
        (["/a/train.py", "/w/3rdparty/megatron/3rdparty/Megatron-LM/megatron/core/x.py"], "megatron/core/x.py:f"),
        (["/a/train.py", "/w/Megatron-Bridge/src/megatron/bridge/x.py"], "megatron/bridge/x.py:f"),
        (["/a/train.py", "/a/models/vit.py", "/v/site-packages/torch/nn/x.py"], "models/vit.py:f"),
        (["/a/train.py", "/v/site-packages/vlmprof/stages/hooks.py"], "train.py:f"),
        (["/a/train.py", "/home/me/vlmprof/vlmprof/stages/hooks.py"], "train.py:f"),
        (["/a/train.py", "/usr/lib/python3.11/json/decoder.py", "<frozen importlib._bootstrap>"], "train.py:f"),
        (["/v/site-packages/torch/nn/x.py"], "torch/nn/x.py:f"),
        (["train.py"], "train.py:f"),
    ],
)
def test_the_frame_is_the_innermost_of_the_training_code_without_its_root(files: list[str], expected: str) -> None:
    traceback = Traceback(Label("Traceback (most recent call last):", None, None, ""), 1)
    for file in files:
        assert traceback.belongs(f'  File "{file}", line 7, in f')
    assert user_frame(traceback) == expected


def test_every_sign_is_whole() -> None:
    assert len({sign.name for sign in SIGNS}) == len(SIGNS)
    for sign in SIGNS:
        assert sign.fragments or sign.scan, sign.name
        assert all(len(fragment) >= WINDOW for fragment in sign.fragments), sign.name
        assert (sign.kind == "root") == (sign.failure_class is not None), sign.name
        if sign.kind == "root":
            assert sign.reading, sign.name
            assert sign.precedence < 90, sign.name
        names = set(sign.pattern.groupindex) if sign.pattern is not None else set()
        for template in (sign.exception, sign.says, sign.reading):
            assert set(re.findall(r"\{(\w+)\}", template)) <= names, sign.name
    assert all(exit_code.reading for exit_code in EXITS.values())


def test_the_prefilter_finds_every_fragment_wherever_it_stands() -> None:
    for sign in SIGNS:
        for fragment in sign.fragments:
            for shift in range(4):
                data = ("." * shift + fragment + "\n").encode()
                assert PREFILTER.places(data), (sign.name, fragment)


def test_the_prefilter_finds_what_a_plain_search_finds() -> None:
    rng = random.Random(3)
    windows = ["abca", "bcab", "aaaa", "cccc"]
    prefilter = Prefilter(windows)
    for length in (0, 1, 3, 4, 5, 64, 1001):
        data = bytes(rng.choice(b"abc") for _ in range(length))
        expected = [at for at in range(length) if any(data.startswith(window.encode(), at) for window in windows)]
        assert prefilter.places(data) == expected


def test_windows_avoid_what_ordinary_lines_hold() -> None:
    ordinary = "lm loss: 2.1 number of nan iterations"
    assert choose_windows(["lm loss: nan"], ordinary)["lm loss: nan"] not in ordinary
    with pytest.raises(ValueError, match="too short"):
        choose_windows(["abc"], "")


def test_ordinary_lines_of_the_healthy_corpus_are_passed_over() -> None:
    data = (CORPUS / "healthy-megatron.log").read_bytes() + (CORPUS / "healthy-bridge.log").read_bytes()
    assert len(PREFILTER.places(data)) <= 2
    assert not [held for line in data.decode().splitlines() for held in signs_of(line)]
