"""The pages name every command and flag, and their links lead somewhere."""

import re
from pathlib import Path

import pytest
import typer

from vlmprof.commands.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def flags() -> list[tuple[str, str]]:
    """(command, spellings) of every option that a person can type."""
    found: list[tuple[str, str]] = []

    def walk(command: object, name: str) -> None:
        for inner, below in getattr(command, "commands", {}).items():
            walk(below, f"{name} {inner}".strip())
        for option in getattr(command, "params", []):
            spellings = [text for text in option.opts if text.startswith("-")]
            if spellings and not {"--help", "--version"} & set(spellings):
                found.append((name, " ".join(spellings)))

    walk(typer.main.get_command(app), "")
    return found


@pytest.mark.parametrize(("command", "flag"), flags())
def test_every_flag_stands_on_a_page_that_names_its_command(command: str, flag: str) -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    naming = [text for text in texts if f"vlmprof {command}" in text and any(one in text for one in flag.split())]
    assert naming, f"no page says what {command} {flag} does"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
