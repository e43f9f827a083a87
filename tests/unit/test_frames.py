import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import vlmprof
from tests.runs import a_run, write_run
from vlmprof.errors import UserError
from vlmprof.interop.frames import COLUMNS
from vlmprof.records.ranks import RankFacts


def test_every_figure_of_a_record_is_in_a_table(tmp_path: Path) -> None:
    run = a_run(0)
    frames = vlmprof.load_run(write_run(tmp_path / "one", run))
    row = frames.runs.iloc[0]
    assert row["run"] == str(tmp_path / "one")
    assert (row["workload"], row["platform"], row["status"], row["megatron_commit"]) == (
        "tiny",
        "cpu-x1",
        "ok",
        "a" * 40,
    )
    assert row["created"] == pd.Timestamp("2026-01-01", tz="UTC")
    assert row["step_ms"] == run.throughput["step_ms"].value  # type: ignore[union-attr]
    assert row["memory_peak_bytes"] == 1000
    assert list(frames.steps["ms"]) == [step.ms for step in run.steps]
    router = frames.stages.set_index(["stage", "phase"]).loc[("decoder.router", "forward")]
    stage = run.stage("decoder.router", "forward")
    assert stage is not None
    assert router["self_ms"] == stage.self_ms.value  # type: ignore[union-attr]
    own = frames.stage_steps.query("stage == 'decoder.router' and phase == 'forward'")
    assert list(own["self_ms"]) == list(stage.self_ms.samples)  # type: ignore[union-attr]
    assert list(own["index"]) == [step.index for step in run.steps if step.kind == "spanned"]
    layer = frames.layers.set_index(["stage", "layer", "phase"]).loc[("decoder.router", 0, "forward")]
    assert layer["self_ms"] == run.layers[0].self_ms
    peak = frames.memory.query("stage == 'head' and kind == 'held_at_peak'")
    assert list(peak["bytes"]) == [1000]
    assert frames.ranks.empty


def test_selves_of_a_step_add_up_to_it(tmp_path: Path) -> None:
    frames = vlmprof.load_run(write_run(tmp_path / "one", a_run(0)))
    selves = frames.stage_steps.groupby("index")["self_ms"].sum()
    steps = frames.steps.query("kind == 'spanned'").set_index("index")["ms"]
    pd.testing.assert_series_equal(selves, steps, check_names=False)


def test_runs_lie_below_one_another(tmp_path: Path) -> None:
    for number in range(3):
        write_run(tmp_path / "runs" / str(number), a_run(number, outcome="failed" if number == 1 else "done"))
    (tmp_path / "runs" / "0" / "trace.json").write_text("{}")
    for pattern in (str(tmp_path / "runs" / "*"), tmp_path / "runs", str(tmp_path / "**" / "run.json")):
        frames = vlmprof.load_runs(pattern)
        assert list(frames.runs["run"]) == [str(tmp_path / "runs" / str(number)) for number in range(3)]
        assert list(frames.runs["status"]) == ["ok", "failed", "ok"]
        assert frames.steps.groupby("run").size().tolist() == [18, 18, 18]
    some = vlmprof.load_runs([tmp_path / "runs" / "2", tmp_path / "runs" / "0" / "run.json"])
    assert list(some.runs["run"]) == [str(tmp_path / "runs" / "2"), str(tmp_path / "runs" / "0")]


def test_columns_and_their_kinds_are_the_same_whatever_was_measured(tmp_path: Path) -> None:
    whole = a_run(0).model_copy(update={"ranks": (RankFacts(rank=0, host="a", step_ms=1.0), RankFacts(rank=1))})
    bare = a_run(1, steps=0).model_copy(update={"environment": None, "effective_work": None, "throughput": {}})
    one, other = (vlmprof.load_run(write_run(tmp_path / str(n), run)) for n, run in enumerate((whole, bare)))
    for table, columns in COLUMNS.items():
        assert list(getattr(one, table).columns) == list(getattr(other, table).columns) == ["run", *columns]
    assert len(one.ranks) == 2
    numbers = other.runs.select_dtypes("number").columns
    assert {"step_ms", "tokens", "world_size", "memory_peak_bytes"} <= set(numbers)
    assert other.runs["step_ms"].isna().all()


def test_what_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run record"):
        vlmprof.load_run(tmp_path / "gone")
    with pytest.raises(UserError, match="no run record matches"):
        vlmprof.load_runs(str(tmp_path / "*"))
    write_run(tmp_path / "new", a_run(0), schema="vlmprof.run/2")
    with pytest.raises(UserError, match="upgrade vlmprof"):
        vlmprof.load_runs(str(tmp_path / "*"))


def test_tables_need_no_torch_and_vlmprof_no_pandas() -> None:
    program = (
        "import sys, vlmprof; assert 'pandas' not in sys.modules; vlmprof.load_run; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
