"""Reports in a real browser: figures drawn, nothing on the console, nothing asked for, nothing cut off on a phone."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.chromium import Browser
from tests.unit.documents import a_bisect, a_comparison, a_failed_run, a_history, a_night, a_run, with_device
from vlmprof.commands.main import main
from vlmprof.records.figures import Record
from vlmprof.records.store import dump_json, read_run
from vlmprof.report.html import charts_of, page_of, render

PROGRAM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
HOSTILE = "</script><img src=x onerror=alert(1)><b>bold</b>"

pytestmark = pytest.mark.skipif(not PROGRAM, reason="no Chromium on this machine: apt-get install chromium")

DRAWN = "[...document.querySelectorAll('[data-plot]')].filter(one => one.querySelector('.main-svg')).length"
UNFOLD = """
document.querySelectorAll('.part').forEach(one => one.open = true);
new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))
"""
TOO_WIDE = (
    "[...document.querySelectorAll('body *')]"
    ".filter(one => !one.closest('.scroll, details:not(.part)') && !one.ownerSVGElement && "
    "one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)"
    ".map(one => one.outerHTML.slice(0, 80))"
)
CUT_OFF = """
[...document.querySelectorAll('[data-plot]')].flatMap(plot => {
  const frame = plot.getBoundingClientRect();
  return [...plot.querySelectorAll('svg text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < frame.left - 2 || box.right > frame.right + 2 ||
      box.top < frame.top - 2 || box.bottom > frame.bottom + 2);
  }).map(text => plot.dataset.plot + ': ' + text.textContent);
})
"""
"""Texts of figures that reach out of their figure."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(PROGRAM, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def check(browser: Browser, document: Record, folder: Path, widths: tuple[int, ...], dark: bool = False) -> None:
    attached = {"one/run": a_run(ranks=2), "one/comparison.json": a_comparison(), "one/bisect": a_bisect()}
    page = page_of(document, attached)
    (folder / "page.html").write_text(render(page), encoding="utf-8")
    wanted = sum(chart.plot is not None for chart in charts_of(page))
    for width in widths:
        browser.open(folder / "page.html", width, dark)
        browser.ask(UNFOLD)
        assert browser.complaints() == []
        assert browser.ask(DRAWN) == wanted
        assert browser.ask(TOO_WIDE) == []
        assert browser.ask(CUT_OFF) == []


def test_a_run_opens_offline_with_its_figures(browser: Browser, tmp_path: Path) -> None:
    run = with_device(a_run(ranks=2))
    check(browser, run, tmp_path, (360, 1280))
    numbers = browser.ask("[...document.querySelectorAll('#figure-stages td')].map(one => one.textContent.trim())")
    assert "├─ data" not in numbers
    assert any(text.endswith("experts") for text in numbers)
    light = browser.ask("getComputedStyle(document.body).backgroundColor")
    browser.open(tmp_path / "page.html", 1280, dark=True)
    assert browser.ask("getComputedStyle(document.body).backgroundColor") != light
    ink = browser.ask("getComputedStyle(document.body).color")
    assert browser.ask("getComputedStyle(document.querySelector('.xtick text')).fill") == ink


def test_no_script_but_the_pages_own_runs(browser: Browser, tmp_path: Path) -> None:
    check(browser, a_run(HOSTILE, ranks=2), tmp_path, (390,))
    assert browser.ask("document.querySelectorAll('img, b').length") == 0
    browser.ask(
        "(() => { const one = document.createElement('script'); one.textContent = 'window.planted = 1';"
        "document.body.append(one); })()"
    )
    assert browser.ask("window.planted") is None  # the policy of the page


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("text", ["told", HOSTILE])
def test_every_kind_of_document_opens(browser: Browser, tmp_path: Path, text: str, dark: bool) -> None:
    for document in (a_failed_run(text), a_bisect(text), a_comparison(text), a_night(text), a_history()):
        check(browser, document, tmp_path, (360, 768, 1280), dark)


@pytest.mark.slow
def test_a_real_run_and_its_trace(browser: Browser, tmp_path: Path) -> None:
    assert main(["run", "--stage-breakdown", "--steps", "2", "--nproc", "2", "--out", "run"]) == 0
    check(browser, read_run(Path("run")), tmp_path, (360, 1280))
    assert main(["report", "run", "-o", "command.html"]) == 0
    browser.open(Path("command.html"))
    assert browser.complaints() == []
    assert main(["report", "run", "--markdown", "-o", "report.md"]) == 0
    assert "decoder" in Path("report.md").read_text()
    real_trace_adds_up(Path("run"))


def real_trace_adds_up(folder: Path) -> None:
    """What a viewer sums up of a real trace are the stage times of the step's event."""
    import json
    from collections import defaultdict

    from tests.unit.test_export import check_trace_format, selves
    from vlmprof.interop.perfetto import read_ranks
    from vlmprof.records.stage_times import self_times

    assert main(["export", str(folder), "--format", "perfetto", "-o", "trace.json"]) == 0
    trace = json.loads(Path("trace.json").read_text())
    check_trace_format(trace)
    ranks = read_ranks(folder)
    assert sorted({event["pid"] for event in trace["traceEvents"]}) == [0, 1]
    for rank, told in ranks.items():
        for step in (event for event in told if event.get("spans") and not event["warmup"]):
            own = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == rank]
            own = [e for e in own if e["args"]["step"] == step["index"]]
            times: dict[tuple[str, str], float] = defaultdict(float)
            for name, ms in selves([(json.dumps(e["args"]), e["ts"], e["ts"] + e["dur"]) for e in own]).items():
                place = json.loads(name)
                times["other" if place["stage"] == "step" else place["stage"], place["phase"]] += ms / 1e3
            expected = {key: ms for key, (ms, _) in self_times(step).items()}
            assert set(times) == set(expected)
            assert times == pytest.approx(expected, abs=0.05)
    assert dump_json(read_run(folder)).find("spans") == -1
