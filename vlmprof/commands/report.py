"""`vlmprof report`: any document as a page, or as Markdown."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    document: Annotated[
        Path,
        typer.Argument(metavar="RUN|COMPARISON|BISECT|HISTORY|NIGHT", help="A document, or the folder that holds it."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Default: report.html, or stdout for Markdown."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown for a pull request instead of HTML.")] = False,
) -> None:
    """Write one HTML file that opens without a network, or Markdown."""
    from vlmprof.records.documents import read_any

    found = read_any(document)
    if markdown:
        from vlmprof.nightly.summary import summary
        from vlmprof.records.night import Night
        from vlmprof.records.store import write_output
        from vlmprof.report.markdown import markdown_of

        text = summary(found) if isinstance(found, Night) else markdown_of(found)
        if output is None:
            print(text, end="")
        else:
            write_output(output, text)
        return
    from vlmprof.report.html import write_report

    target = output or Path("report.html")
    write_report(found, target, document if document.is_dir() else document.parent)
    print(f"report: {target}")
