"""How long `vlmprof compare` takes over many records: seconds of the whole program, and whether torch was imported.

    python benchmarks/compare.py RECORD [RECORDS]

Copies of a real run record, each with times of its own (2 % from run to run), half of them on either side.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import sys
from vlmprof.commands.main import main
code = main(sys.argv[1:])
print("torch imported:", "torch" in sys.modules, file=sys.stderr)
sys.exit(code)
"""


def copies(record: Path, folder: Path, count: int) -> None:
    """`count` records: the first half in a/, the rest in b/."""
    content = json.loads(record.read_text(encoding="utf-8"))
    source = random.Random(1)  # noqa: S311 - nothing secret
    for number in range(count):
        slow = source.lognormvariate(0, 0.02)
        own = {**content, "steps": [{**step, "ms": step["ms"] * slow} for step in content["steps"]]}
        run = folder / ("a" if number < count / 2 else "b") / f"{number:05}"
        run.mkdir(parents=True)
        (run / "run.json").write_text(json.dumps(own), encoding="utf-8")


def main(record: Path, count: int) -> None:
    """Make the copies, compare the halves, print the time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copies(record, folder, count)
        command = [sys.executable, "-c", PROGRAM, "compare", str(folder / "a"), str(folder / "b")]
        for _ in range(3):
            begun = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            seconds = time.monotonic() - begun
            summary = done.stdout.partition("\n")[0].replace(name, "")
            print(
                f"{count} records of {record.stat().st_size} bytes: {seconds:.2f} s; {done.stderr.strip()}; {summary}"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
