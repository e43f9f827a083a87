"""Every command has its page, which says what each of its flags and exit codes means; links lead somewhere."""

import re
from pathlib import Path

import pytest
import typer

from vlmprof.commands.main import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "bisect" / "README.md", *sorted(DOCS.glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)")
PAGE_NAMES = {"baseline": "baselines"}  # the others have the command's name


def commands() -> dict[str, list[list[str]]]:
    """Command -> the spellings of each option that a person can type."""
    found: dict[str, list[list[str]]] = {}

    def walk(command: object, name: str) -> None:
        inner = getattr(command, "commands", {})
        for part, below in inner.items():
            walk(below, f"{name} {part}".strip())
        if not inner:
            options = [[one for one in option.opts if one.startswith("-")] for option in getattr(command, "params", [])]
            found[name] = [spellings for spellings in options if spellings and "--help" not in spellings]

    walk(typer.main.get_command(app), "")
    return found


def page_of(command: str) -> str:
    first = command.split()[0]
    return (DOCS / f"{PAGE_NAMES.get(first, first)}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", commands())
def test_a_command_has_a_page_with_every_flag_and_its_exit_codes(command: str) -> None:
    page = page_of(command)
    missing = [
        spellings
        for spellings in commands()[command]
        if not any(re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", page) for one in spellings)
    ]
    assert not missing
    assert f"vlmprof {command}" in page
    assert re.search("exit code", page, re.IGNORECASE)


def test_the_readme_links_every_page_of_a_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    firsts = {command.split()[0] for command in commands()}
    assert not {one for one in firsts if f"(docs/{PAGE_NAMES.get(one, one)}.md)" not in readme}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (page.parent / target).exists()]
