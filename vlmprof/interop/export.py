"""What others read of a run: a trace of its sampled steps, or its tables as CSV files."""

import os
import shutil
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Literal

from vlmprof.errors import MachineError, UserError
from vlmprof.interop.perfetto import read_ranks, trace_of, trace_text
from vlmprof.records.store import read_run, write_output

__all__ = ["Form", "export_csv", "export_perfetto"]

Form = Literal["perfetto", "csv"]


def export_perfetto(run: Path, out: Path) -> None:
    """Write the sampled steps of a run folder as a trace.

    Raises:
        UserError: there is no run, it holds no spans, or `out` cannot be a file.
        MachineError: the disk is full.
    """
    record = read_run(run)
    about = {"workload": f"{record.workload.name} {record.workload.hash}".strip(), "created": record.created}
    folder = run.parent if run.name == "run.json" else run
    write_output(out, trace_text(trace_of(read_ranks(folder), about)))


def export_csv(run: Path, out: Path) -> list[str]:
    """Write the tables of a run as one CSV file each into the new folder `out`, all of them or none; their names.

    Raises:
        UserError: there is no run, or `out` is there already or cannot be made.
        MachineError: the disk is full.
    """
    from vlmprof.interop.frames import load_run

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"'{out}' is there already: name a folder that is new or empty with -o")
    if not out.parent.is_dir():
        raise UserError(f"'{out}' cannot be made: there is no folder '{out.parent}'")
    frames = load_run(run)
    names = []
    try:
        made = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    except OSError as error:
        raise UserError(f"'{out}' cannot be made: {error.strerror}") from None
    try:
        for field in fields(frames):
            names.append(f"{field.name}.csv")
            with (made / names[-1]).open("w", encoding="utf-8", newline="") as file:
                getattr(frames, field.name).to_csv(file, index=False)
                file.flush()
                os.fsync(file.fileno())
        made.chmod(0o755)
        made.replace(out)
    except OSError as error:
        raise MachineError(f"'{out}' cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return names
