"""Any document as one HTML file that opens without a network: `html_of(document)`, `write_report(document, path)`.

Everything that comes from a document is untrusted: the template escapes it, figures travel as JSON in which no tag can
be closed, and a content security policy lets only the page's own scripts run.
"""

import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from vlmprof.errors import MachineError, UserError
from vlmprof.records.bisect import Bisect
from vlmprof.records.comparison import Comparison
from vlmprof.records.documents import read_any
from vlmprof.records.figures import Record
from vlmprof.records.history import History
from vlmprof.records.night import Night
from vlmprof.records.run import Run
from vlmprof.records.store import write_output
from vlmprof.report.bisect_page import bisect_page
from vlmprof.report.comparison_page import comparison_page
from vlmprof.report.history_page import history_page
from vlmprof.report.night_page import Attached, attachments, night_page
from vlmprof.report.page import Chart, Page
from vlmprof.report.run_page import run_page

__all__ = ["html_of", "page_of", "write_report"]

PAGES: dict[type[Record], Callable[[Any], Page]] = {
    Run: run_page,
    Bisect: bisect_page,
    Comparison: comparison_page,
    History: history_page,
}


def write_report(document: Record, path: Path, folder: Path | None = None) -> None:
    """Write the page of a document whole to `path`.

    Args:
        document: a run, comparison, bisect, history or night.
        path: of the HTML file.
        folder: where the documents of a night lie; default: beside `path`.

    Raises:
        UserError: there is no such folder, or `path` is one.
        MachineError: plotly is missing, or the disk is full.
    """
    attached = read_attached(document, folder or path.parent) if isinstance(document, Night) else {}
    write_output(path, html_of(document, attached))


def read_attached(night: Night, folder: Path) -> Attached:
    """The documents of a night by their paths; where one cannot be read, why."""
    root = folder.resolve()
    found: dict[str, Record | str] = {}
    for name in attachments(night):
        if not (root / name).resolve().is_relative_to(root):
            found[name] = "its path leads out of the night's folder"
            continue
        try:
            found[name] = read_any(root / name)
        except UserError as error:
            found[name] = str(error)
    return found


def page_of(document: Record, attached: Attached | None = None) -> Page:
    """What the report of a document says; `attached` are the documents of a night."""
    if isinstance(document, Night):
        return night_page(document, attached or {})
    return PAGES[type(document)](document)


def html_of(document: Record, attached: Attached | None = None) -> str:
    """The page of a document: HTML with styles, scripts and figures inside. `attached`: the documents of a night.

    Raises:
        MachineError: plotly is missing.
    """
    return render(page_of(document, attached))


def render(page: Page) -> str:
    """A page as HTML."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MachineError("a report needs plotly, which is missing: pip install 'vlmprof[report]'") from None
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("vlmprof.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["kind"] = lambda block, name: type(block).__name__ == name
    page = _with_anchors(page)
    scripts = [_line_ends(get_plotlyjs()), _line_ends(_resource("page.js"))]
    return environment.get_template("page.html.j2").render(
        page=page,
        plots={chart.key: chart.plot for chart in charts_of(page) if chart.plot is not None},
        style=Markup(_resource("page.css")),  # noqa: S704  # ours
        scripts=[Markup(script) for script in scripts],  # noqa: S704  # plotly's and ours
        hashes=[_hash(script) for script in scripts],
        version=metadata.version("vlmprof"),
    )


def charts_of(page: Page) -> Iterator[Chart]:
    """All charts of a page and its parts."""
    sections = [block for section in page.sections for block in section.blocks]
    yield from (block for block in (*page.summary, *sections) if isinstance(block, Chart))
    for part in page.parts:
        yield from charts_of(part)


def _with_anchors(page: Page, prefix: str = "") -> Page:
    """Sections and charts of parts named apart: an anchor stands once in a page."""

    def own(block: Any) -> Any:
        return replace(block, key=prefix + block.key) if isinstance(block, Chart) else block

    sections = tuple(
        replace(one, anchor=prefix + one.anchor, blocks=tuple(map(own, one.blocks))) for one in page.sections
    )
    parts = tuple(_with_anchors(part, f"{prefix}{part.anchor}-") for part in page.parts)
    return replace(
        page, anchor=prefix.rstrip("-"), summary=tuple(map(own, page.summary)), sections=sections, parts=parts
    )


def _resource(name: str) -> str:
    return resources.files("vlmprof.report").joinpath("templates", name).read_text(encoding="utf-8")


def _line_ends(script: str) -> str:
    """As the browser will hash it: HTML knows one line end."""
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
