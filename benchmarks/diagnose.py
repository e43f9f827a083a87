"""What `vlmprof diagnose` costs on a long log: seconds and peak resident memory for a log of SIZE (default 1GB).

The log is what a long run of eight ranks leaves: iteration, memory and timer lines, progress bars, warnings, handled
exceptions now and then, and a failure near the end. Goal for 1 GB: under 30 s and under 200 MB on one core.

    python benchmarks/diagnose.py [SIZE] [--gzip]
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from vlmprof.sizes import parse_size

PLACE = "{:<34}{:>12}"
FAILURE = """[rank5]: Traceback (most recent call last):
[rank5]:   File "/workspace/Megatron-LM/megatron/core/transformer/moe/experts.py", line 218, in forward
[rank5]:     output = self.linear_fc2(intermediate)
[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of \
79.11 GiB of which 1.02 GiB is free.
[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:328, remote process exited or there was a \
network error
"""


def ordinary(start: int, count: int) -> str:
    """Some iterations' worth of healthy lines."""
    lines = []
    for number in range(start, start + count):
        clock = f"{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}"
        stamp = f"2025-06-{1 + number // 86400 % 28:02d} {clock}"
        lines.append(
            f" [{stamp}] iteration {number:8d}/ 9000000 | consumed samples: {number * 256:12d} | elapsed time per "
            f"iteration (ms): 1012.{number % 10} | throughput per GPU (TFLOP/s/GPU): 388.4 | learning rate: 1.2E-04 | "
            f"global batch size:   256 | lm loss: 2.11{number % 997:03d}E+00 | loss scale: 1.0 | grad norm: 0.412 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        lines.append(
            f"[rank{number % 8}]: (min, max) time across ranks (ms): forward-backward: (901.2, 93{number % 10}.1)"
        )
        bars = (f"rank {number % 8}: 10%|█  | {number % 1000}/1000 [00:10<01:30, {tick}.0it/s]" for tick in range(3))
        lines.append("\r".join(bars))
        if number % 50 == 0:
            lines.append("[rank1]:[W612 10:00:00.1 socket.cpp:200] Warning: connection was refused, retrying")
        if number % 2000 == 0:
            lines += [
                "Traceback (most recent call last):",
                '  File "/data/read.py", line 3, in read',
                "    raise ValueError(name)",
            ]
            lines.append(f"ValueError: picture {number} is damaged")
            lines.append("skipping this sample")
    return "\n".join(lines) + "\n"


def pieces(size: int) -> Iterator[bytes]:
    """The log, of about `size` bytes."""
    done = number = 0
    while done < size:
        piece = ordinary(number, 5000).encode()
        number += 5000
        done += len(piece)
        yield piece
    yield FAILURE.encode()


def main(size: int, zipped: bool) -> None:
    """Write the log, diagnose it in a process of its own, print what that took, delete the log."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("train.log.gz" if zipped else "train.log")
        with gzip.open(path, "wb", 1) if zipped else path.open("wb") as file:
            written = sum(file.write(piece) for piece in pieces(size))
        command = [sys.executable, "-m", "vlmprof", "diagnose", "--json", str(path)]
        begun = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        found = json.loads(process.stdout.read())
        _, _, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
    assert (found["class"], found["rank"]) == ("oom", 5), found
    print(PLACE.format("log, MB", f"{written / 1e6:.0f}"))
    print(PLACE.format("seconds", f"{seconds:.1f}"))
    print(PLACE.format("CPU seconds", f"{usage.ru_utime + usage.ru_stime:.1f}"))
    print(PLACE.format("MB/s", f"{written / 1e6 / seconds:.0f}"))
    print(PLACE.format("peak resident memory, MB", f"{usage.ru_maxrss / 1024:.0f}"))


if __name__ == "__main__":
    sizes = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    main(parse_size(sizes[0] if sizes else "1GB"), "--gzip" in sys.argv)
