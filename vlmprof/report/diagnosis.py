"""A diagnosis on the terminal: what, where, the line itself, what it means, what to do."""

import io

from rich.console import Console, Group, RenderableType
from rich.text import Text

from vlmprof.records.diagnosis import Collective, Diagnosis

__all__ = ["print_diagnosis", "render_diagnosis", "render_diagnosis_text"]


def print_diagnosis(found: Diagnosis) -> None:
    """Print it on stdout: colours on a terminal, plain text with whole lines in a pipe."""
    console = Console()
    console.print(render_diagnosis(found), soft_wrap=not console.is_terminal)


def render_diagnosis_text(found: Diagnosis) -> str:
    """The same as plain text."""
    file = io.StringIO()
    Console(file=file, color_system=None, legacy_windows=False).print(render_diagnosis(found), soft_wrap=True)
    return file.getvalue()


def render_diagnosis(found: Diagnosis) -> RenderableType:
    """What a person wants to know first comes first."""
    parts: list[RenderableType] = [_heading(found)]
    if found.message:
        parts.append(Text(f"  {found.message.strip()}"))
    facts = [Text(f"{name:<12}", style="dim").append(text, style="not dim") for name, text in _facts(found)]
    parts += [Text(), *facts] if facts else []
    rest = found.evidence[1:] if found.message else found.evidence
    if rest:
        parts += [Text(), Text("also telling" if found.failure_class else "the most telling lines", style="dim")]
        parts += [Text(f"  {line}", style="dim" if found.failure_class else "") for line in rest]
    return Group(*parts)


def _heading(found: Diagnosis) -> Text:
    if found.failure_class is None:
        return Text("unknown", style="bold yellow").append(f": {found.reading}", style="not bold")
    text = Text(found.failure_class, style="bold red")
    if found.rank is not None:
        text.append(f" on rank {found.rank}", style="bold")
    if found.log is not None:
        text.append(f"  {found.log}:{found.line}", style="dim not bold")
    return text


def _facts(found: Diagnosis) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if found.failure_class is not None and found.reading:
        rows.append(("meaning", found.reading))
    if found.collective is not None:
        rows += _collective(found.collective)
    rows += [("advice" if index == 0 else "", sentence) for index, sentence in enumerate(found.advice)]
    if found.signature:
        rows.append(("signature", found.signature))
    if found.failure_class is None and found.rank is not None:
        rows.append(("rank", f"{found.rank}, as the launcher says"))
    if found.collateral:
        rows.append(("collateral", f"{found.collateral} lines are consequences"))
    return rows


def _collective(one: Collective) -> list[tuple[str, str]]:
    facts = {
        "number": one.sequence,
        "elements in": one.numel_in,
        "out": one.numel_out,
        "timeout ms": one.timeout_ms,
        "group": one.group,
        "ranks in it": one.group_size,
    }
    text = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    rows = [("collective", f"{one.op or 'unknown'}{': ' if text else ''}{text}")] if one.op or text else []
    if one.missing:
        rows.append(("missing", f"{_ranks(one.missing)} did not arrive ({one.told_by})"))
    if one.waiting:
        rows.append(("waiting", _ranks(one.waiting)))
    return rows


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:16]) + (", ..." if len(ranks) > 16 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"
