"""The page and the Markdown of every document: whole, escaped, of bearable size, and absent with a reason."""

import builtins
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.documents import (
    a_bisect,
    a_comparison,
    a_failed_run,
    a_history,
    a_night,
    a_run,
    unmeasured,
    with_device,
)
from vlmprof.commands.main import main
from vlmprof.errors import MachineError, UserError
from vlmprof.records.bisect import Bisect
from vlmprof.records.figures import Absent, Record
from vlmprof.records.run import Run
from vlmprof.records.store import dump_json
from vlmprof.report.html import charts_of, html_of, page_of, read_attached, write_report
from vlmprof.report.markdown import markdown_of
from vlmprof.report.terminal import render_text

HOSTILE = "</script><img src=x onerror=alert(1)><!-- `|@nobody https://evil.example \u2028 {{ 7*7 }}"
MEGABYTES = 6e6
DOCUMENTS = (a_run, a_failed_run, a_bisect, a_comparison)


class Tags(html.parser.HTMLParser):
    """What a browser would make of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text += data


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def plots_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="plots">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


@pytest.mark.parametrize("document", [*(make(HOSTILE) for make in DOCUMENTS), a_night(HOSTILE)])
def test_no_text_of_a_document_becomes_a_tag(document: Record) -> None:
    attached = {"one/run": a_run(HOSTILE), "one/comparison.json": a_comparison(HOSTILE), "one/bisect": HOSTILE}
    page = html_of(document, attached)
    tags = parsed(page)
    assert "img" not in tags.tags
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert tags.tags.count("script") == 3
    assert "<img src=x onerror=alert(1)>" in tags.text
    assert "{{ 7*7 }}" in tags.text
    assert not [value for name, value in tags.attributes if name in ("src", "href") and not str(value).startswith("#")]
    for texts in _strings(plots_of(page)):
        assert "<img" not in texts  # plotly reads tags in labels


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _strings(one)]
    if isinstance(value, list):
        return [text for one in value for text in _strings(one)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("document", [*(make(HOSTILE) for make in (a_run, a_failed_run, a_bisect))])
def test_markdown_of_a_hostile_document_is_inert(document: Record) -> None:
    text = markdown_of(document)
    outside = re.sub(r"^(`{3,})\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "<img" not in outside
    assert "<!--" not in outside
    assert "@nobody" not in outside
    assert "https://evil" not in outside
    for line in outside.splitlines():
        if line.startswith("|"):
            assert not re.search(r"(?<!\\)\|@|`\|", line)


@pytest.mark.parametrize("document", [make() for make in DOCUMENTS] + [a_night()])
def test_a_page_is_of_bearable_size_and_its_anchors_stand_once(document: Record) -> None:
    page = html_of(
        document, {"one/run": a_run(ranks=2), "one/comparison.json": a_comparison(), "one/bisect": a_bisect()}
    )
    assert len(page.encode()) < MEGABYTES
    assert "<script src" not in page
    ids = [value for name, value in parsed(page).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = [str(value)[1:] for name, value in parsed(page).attributes if name == "href"]
    assert links
    assert set(links) <= set(ids)


def test_every_figure_of_a_whole_run_is_there_with_its_numbers() -> None:
    charts = {chart.key: chart for chart in charts_of(page_of(a_run(ranks=2)))}
    assert set(charts) == {"stages", "memory-stages", "spread", "experts-map", "steps", "losses"}
    for chart in charts.values():
        assert not chart.absent
        assert chart.plot is not None
        assert chart.numbers is not None
        assert chart.numbers.rows
        for name in ("xaxis", "yaxis"):
            assert chart.plot["layout"][name].get("title") or chart.plot["layout"][name].get("showticklabels") is False
    experts = charts["experts-map"]
    assert experts.plot is not None
    assert experts.plot["data"][0]["z"] == [[20, 60], [40, 40]]  # both ranks' tokens


def test_the_bars_of_phases_are_the_stages_totals() -> None:
    run = a_run()
    chart = next(chart for chart in charts_of(page_of(run)) if chart.key == "stages")
    assert chart.plot is not None
    assert chart.numbers is not None
    names = [row[0] for row in chart.numbers.rows][1:]
    place = next(index for index, name in enumerate(names) if str(name).endswith("experts"))
    for bars in chart.plot["data"]:
        row = run.stage("decoder.experts", bars["name"])
        assert bars["x"][place] == (0 if row is None or isinstance(row.total_ms, Absent) else row.total_ms.value)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (unmeasured(), {"stages", "memory-stages", "spread", "experts-map", "steps", "losses"}),
        (a_run(), {"spread"}),
        (a_comparison().model_copy(update={"stages": (), "memory": ()}), {"waterfall", "memory-waterfall"}),
        (a_bisect().model_copy(update={"probes": (), "answer": None}), {"path-chart"}),
    ],
)
def test_a_figure_that_cannot_be_had_says_why(document: Record, expected: set[str]) -> None:
    absent = {chart.key: chart.absent for chart in charts_of(page_of(document)) if chart.absent}
    assert set(absent) == expected
    assert all(len(reason) > 10 for reason in absent.values())
    text = parsed(html_of(document)).text
    assert all(f"absent: {reason}" in text for reason in absent.values())


def test_what_was_not_measured_is_never_nought() -> None:
    text = parsed(html_of(unmeasured())).text
    assert "0 B" not in text
    assert "0 ms" not in text
    assert "no step was completed" in text


def test_busy_stands_beside_span_where_a_device_told_it() -> None:
    run = with_device(a_run())
    chart = next(chart for chart in charts_of(page_of(run)) if chart.key == "stages")
    assert chart.plot is not None
    assert [trace["name"] for trace in chart.plot["data"]][-1] == "busy"
    text = parsed(html_of(run)).text
    for told in ("in a CUDA graph", "one rank exposes nothing", "3 calls", "kernels a step"):
        assert told in text


def test_the_waterfall_leads_from_one_side_to_the_other() -> None:
    chart = next(chart for chart in charts_of(page_of(a_comparison())) if chart.key == "waterfall")
    assert chart.plot is not None
    falls = chart.plot["data"][0]
    assert falls["x"] == [100.0, 30.0, -2.0, 0.0, 0]
    assert falls["measure"] == ["absolute", "relative", "relative", "relative", "total"]
    low, high = chart.plot["layout"]["xaxis"]["range"]
    assert low <= 98
    assert high >= 130


def test_a_night_holds_its_documents_or_says_why_not(tmp_path: Path) -> None:
    folder = tmp_path / "night"
    (folder / "one" / "run").mkdir(parents=True)
    (folder / "one" / "run" / "run.json").write_text(dump_json(a_run("the run of one")))
    (folder / "one" / "comparison.json").write_text("{")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "run.json").write_text(dump_json(a_run("a secret")))
    night = a_night()
    night = night.model_copy(
        update={"workloads": (night.workloads[0], night.workloads[1].model_copy(update={"run": "../outside"}))}
    )
    write_report(night, folder / "report.html")
    text = parsed((folder / "report.html").read_text()).text
    assert "the run of one" in text
    assert "is not valid JSON" in text
    assert "leads out of the night's folder" in text
    assert "a secret" not in text
    assert set(read_attached(night, folder)) == {"one/run", "one/comparison.json", "one/bisect", "../outside"}


def test_without_plotly_one_sentence_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MachineError, match=r"pip install 'vlmprof\[report\]'"):
        write_report(a_run(), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_the_command_writes_a_page_or_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(dump_json(a_failed_run()))
    assert main(["report", str(tmp_path), "-o", "page.html"]) == 0
    assert capsys.readouterr().out == "report: page.html\n"
    assert "failed: oom" in parsed(Path("page.html").read_text()).text
    assert main(["report", str(tmp_path / "run.json"), "--markdown"]) == 0
    assert "failed: oom" in capsys.readouterr().out
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "no" / "page.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"schema": "vlmprof.bisect/9"}', "newer than the vlmprof.bisect/1"),
        ('{"schema": "vlmprof.diagnosis/1"}', "name a run record, comparison, night, history, bisect document"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_document_is_refused(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text(content)
    assert main(["report", str(tmp_path / "x.json"), "-o", "page.html"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not Path("page.html").exists()


def test_a_folder_as_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name a file"):
        write_report(a_run(), tmp_path)


def test_an_unfinished_bisect_has_a_page() -> None:
    document: Bisect = a_bisect().model_copy(update={"answer": None})
    assert "unfinished" in parsed(html_of(document)).text


def test_a_history_marks_where_the_level_changed() -> None:
    charts = {chart.title: chart for chart in charts_of(page_of(a_history()))}
    assert list(charts) == ["step_ms, ms", "memory_peak, MiB"]  # what is worse comes first
    steps = charts["step_ms, ms"]
    assert steps.plot is not None
    assert [line["x0"] for line in steps.plot["layout"]["shapes"]] == [5.5]
    assert len(steps.plot["data"][0]["x"]) == 11  # the failed run has no time, and is no nought
    text = parsed(html_of(a_history())).text
    assert "+20.0%" in text
    assert "2026-01-03 run2: failed" in text
    with pytest.raises(UserError, match="no Markdown"):
        markdown_of(a_history())


@pytest.mark.parametrize("width", [60, 72, 80, 100, 120])
@pytest.mark.parametrize("run", [a_run(ranks=2), a_failed_run(), with_device(a_run())])
def test_a_narrow_terminal_leaves_columns_out_rather_than_cut_numbers(run: Run, width: int) -> None:
    text = render_text(run, breakdown=True, width=width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    if run.outcome.held:
        assert re.search(r"decoder\.experts +.*12 B", text)
