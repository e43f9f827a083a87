"""`vlmprof compare` as a person meets it: what it takes, prints and answers, and what it says of bad input."""

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.compared import a_run
from vlmprof.commands.main import main
from vlmprof.records.comparison import Comparison
from vlmprof.records.run import Run
from vlmprof.records.store import dump_json, write_whole


def keep(folder: str, *runs: Run) -> Path:
    """Run folders below `folder`."""
    for number, run in enumerate(runs):
        path = Path(folder) / f"run-{number}"
        path.mkdir(parents=True)
        write_whole(path / "run.json", dump_json(run))
    return Path(folder)


@pytest.fixture
def sides() -> None:
    """Five runs of either side, B 10 % slower in its router."""
    keep("a", *(a_run(1 + number / 1000) for number in range(5)))
    keep("b", *(a_run(1.1 + number / 1000, router_ms=20.0) for number in range(5)))


@pytest.mark.usefixtures("sides")
def test_worse_is_one_and_better_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("b is worse than a: step time +10.0%")
    assert "decoder.router (forward)" in told
    assert max(map(len, told.splitlines())) <= 80
    assert main(["compare", "b", "a"]) == 0


@pytest.mark.usefixtures("sides")
def test_folders_records_and_patterns_name_the_same_runs(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for names in (("a", "b"), ("a/run-*", "b/run-*"), ("a/*/run.json", "b/*/run.json")):
        assert main(["compare", *names, "--json"]) == 1
        found.append(Comparison.model_validate_json(capsys.readouterr().out))
    assert [row.a.runs for row in found] == [5, 5, 5]
    assert found[0].metrics == found[1].metrics == found[2].metrics
    assert found[1].a.sources == tuple(f"a/run-{number}" for number in range(5))


@pytest.mark.usefixtures("sides")
def test_the_document_is_kept_beside_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", "--markdown", "-o", "found.json"]) == 1
    assert json.loads(Path("found.json").read_text())["schema"] == "vlmprof.comparison/1"
    assert capsys.readouterr().out.startswith("### 🔴 b is worse than a")


def test_markdown_fits_a_comment_and_shows_untrusted_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    name = "x](http:evil) @team <b> | `#1`"
    keep(name, *(a_run() for _ in range(3)))
    keep("b", *(a_run(router_ms=20.0) for _ in range(3)))
    main(["compare", name, "b", "--markdown"])
    told = capsys.readouterr().out
    assert len(told) < 65_536
    shown = told[: told.index("Again:")]
    own = shown.replace("<details><summary>", "").replace("</summary>", "").replace("</details>", "")
    assert not set("<>") & set(own)
    assert not re.search(r"(?<!\\)[`@\]]", own)
    assert r"x\](http\u200b:evil) \@\u200bteam &lt;b&gt; \| \`\#\u200b1\`".replace(r"\u200b", "\u200b") in shown
    rows = [line for line in shown.splitlines() if line.startswith("| ") and "step time" in line]
    assert rows[0].count("|") == 7


@pytest.mark.usefixtures("sides")
def test_thresholds_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text("[thresholds]\nstep_ms = 0.2\n")
    assert main(["compare", "a", "b", "--thresholds", "mine.toml"]) == 0
    for text, expected in (
        ("[thresholds]\nstep = 0.2\n", "there is no 'step'; there are step_ms"),
        ("[limits]\n", "there is no table 'limits'"),
        ("[thresholds]\nstep_ms = 2\n", "step_ms is 2, but a share between 0 and 1 is needed"),
        ("[thresholds", "is not valid TOML"),
    ):
        Path("mine.toml").write_text(text)
        assert main(["compare", "a", "b", "--thresholds", "mine.toml"]) == 2
        assert expected in capsys.readouterr().err


def damaged(**change: Any) -> str:
    return json.dumps({**json.loads(dump_json(a_run())), **change})


BAD: dict[str, tuple[str | None, int, str]] = {
    "missing": (None, 2, "there is no run record"),
    "truncated": (damaged()[:500], 2, "is damaged or cut off"),
    "edited": (damaged(steps=[{"index": 0}]), 2, "is not a whole run record: steps.0.batch"),
    "newer": (damaged(schema="vlmprof.run/2"), 2, "newer than the vlmprof.run/1 that this vlmprof reads"),
    "other": (damaged(schema="vlmprof.bisect/1"), 2, "but a vlmprof.run is needed"),
    "nan": (damaged(steps=[{"index": 7, "batch": 0, "kind": "plain", "ms": float("nan")}]), 2, "the time of step 7"),
    "failed": (dump_json(a_run(failed={"class": "nan", "message": "loss is nan"})), 4, "failed (nan): loss is nan"),
    "mock": (dump_json(a_run(realism="mock")), 4, "data: real against mock; lift what you know"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_nothing_is_written(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, code, expected = BAD[case]
    keep("good", a_run(), a_run())
    if text is not None:
        Path("bad.json").write_text(text)
    before = sorted(Path.cwd().rglob("*"))
    assert main(["compare", "good", "bad.json", "-o", "found.json", "--json"]) == code
    told = capsys.readouterr()
    assert expected in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["baseline", "baseline"], "both sides are 'baseline'"),
        (["nothing-*", "a"], "the pattern 'nothing-*' matches no run record"),
        (["empty", "a"], "'empty' holds no run record"),
        (["a", "a", "--markdown", "--json"], "two forms of one output"),
        (["a", "a", "--allow", "everything"], "--allow 'everything' is no rule"),
        (["--ab", "gone", "gone"], "--ab 'gone' is no checkout, no release"),
        (["--ab", "megatron-core==1; rm", "a"], "is no checkout, no release"),
        (["--ab", "empty", "empty"], "holds no megatron/core"),
        (["--ab", "a", "a", "--normalize", "useful-tokens"], "do not go with it"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    keep("a", a_run(), a_run())
    Path("empty").mkdir()
    before = sorted(Path.cwd().rglob("*"))
    assert main(["compare", *arguments]) == 2
    told = capsys.readouterr()
    assert expected in told.err
    assert told.err.count("\n") == 1
    assert sorted(Path.cwd().rglob("*")) == before


def test_against_the_baseline_and_by_its_band(capsys: pytest.CaptureFixture[str]) -> None:
    baseline = pytest.importorskip("vlmprof.records.baseline")
    accepted = [a_run(1 + number / 1000, created=f"2026-01-0{number + 1}T00:00:00+00:00") for number in range(6)]
    baseline.add(Path("store"), accepted, "me", "good", datetime.now(UTC))
    keep("new", a_run(1.1))
    keep("old", a_run(1.0025))
    assert main(["compare", "baseline", "new", "--store", "store"]) == 1
    assert "baseline: 6 runs" in capsys.readouterr().out
    assert main(["compare", "old", "new", "--store", "store", "--json"]) == 1
    found = Comparison.model_validate_json(capsys.readouterr().out)
    assert found.metrics[0].decided_by == "band"
    Path("nothing").mkdir()
    assert main(["compare", "baseline", "new", "--store", "nothing"]) == 4
    assert "there is no baseline" in capsys.readouterr().err
    assert main(["compare", "old", "new", "--store", "nothing"]) == 4
    assert "4 more runs on each side, or a baseline" in " ".join(capsys.readouterr().out.split())


def test_no_torch_is_imported() -> None:
    """Of this process: none of these tests may have needed it."""
    import subprocess

    keep("a", a_run(), a_run())
    program = (
        "import sys; from vlmprof.commands.main import main; main(['compare', 'a', 'a']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
