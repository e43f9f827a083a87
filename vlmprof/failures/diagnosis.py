"""From what the logs hold to one diagnosis: the root among all sightings, its signature, reading and evidence."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vlmprof.failures.hang import collective_of
from vlmprof.failures.labels import time_span
from vlmprof.failures.logs import check_readable
from vlmprof.failures.oom import figures_of, read_oom
from vlmprof.failures.scan import Scan, scan
from vlmprof.failures.sighting import Sighting
from vlmprof.failures.signature import normalise, signature_of
from vlmprof.failures.signs import EXITS, SIGNS, Exit, Sign
from vlmprof.records.diagnosis import Diagnosis
from vlmprof.records.run import FailureClass

__all__ = ["diagnose"]

_TEN = 10
"""Precedences of one ten are ordered by time."""
_SHOWN = 400
"""Characters of a line that is shown as evidence."""
_TAIL = 3
"""Last lines of a log that are shown where nothing else tells."""
_EVIDENCE = 8
_KINDS = {sign.name: sign.kind for sign in SIGNS}
_NOT_FIGURES = ("rank", "task", "exit", "signal_name")


class Cause(NamedTuple):
    """A sighting that can be the root, with what its sign or its exit code means."""

    scan: Scan
    order: int
    """Of its log among the logs."""
    sighting: Sighting
    failure_class: FailureClass
    precedence: int
    meaning: Sign | Exit


def diagnose(logs: Sequence[Path], exit_code: int | None = None) -> Diagnosis:
    """What went wrong, where and why, from a run's logs: one file, or one a rank, plain or gzip, of any size.

    Args:
        logs: read one after the other as streams; memory does not grow with their size.
        exit_code: how the run ended, where known: a shell's (137) or Python's (-9). It decides only where no line does.

    Raises:
        UserError: a log is missing, is a folder, or cannot be read.
    """
    for log in logs:
        check_readable(log)
    scans = [scan(log) for log in logs]
    collateral = sum(count for each in scans for name, count in each.counts.items() if _KINDS.get(name) == "collateral")
    root = _root(_causes(scans))
    if root is not None:
        return _known(root, scans, collateral)
    ended = None if exit_code is None else EXITS.get(exit_code)
    if ended is not None:
        fields = {"exit": str(exit_code)}
        return Diagnosis(
            failure_class=ended.failure_class,
            signature=signature_of(ended.exception, _filled(ended.says, fields), None),
            rank=_launchers_rank(scans),
            reading=_filled(ended.reading, fields),
            advice=ended.advice,
            figures={"exit_code": float(exit_code or 0)},
            collateral=collateral,
            evidence=_most_telling(scans),
        )
    return Diagnosis(
        rank=_launchers_rank(scans),
        reading=_why_unknown(scans, collateral),
        collateral=collateral,
        evidence=_most_telling(scans),
    )


def _causes(scans: Sequence[Scan]) -> list[Cause]:
    found = []
    for order, each in enumerate(scans):
        for sighting in each.sightings:
            sign = sighting.sign
            if sign.kind == "root" and sign.failure_class is not None:
                found.append(Cause(each, order, sighting, sign.failure_class, sighting.precedence, sign))
            elif sign.kind == "exit" and (ended := EXITS.get(_whole(sighting.fields["exit"]))) and not ended.of_run:
                found.append(Cause(each, order, sighting, ended.failure_class, ended.precedence, ended))
    return found


def _root(causes: Sequence[Cause]) -> Cause | None:
    """The one where it began: of the lowest ten, the earliest; see the head of signs.toml."""
    if not causes:
        return None
    ten = min(cause.precedence for cause in causes) // _TEN
    first = [cause for cause in causes if cause.precedence // _TEN == ten]
    times = [cause.sighting.time for cause in first]
    known = [time for time in times if time is not None]
    one_log = len({cause.order for cause in first}) == 1
    if len(known) == len(first):
        keys = [(0, time, 0) for time in time_span(known)]
    elif one_log:
        keys = [(0, 0.0, 0)] * len(first)
    else:
        keys = [(cause.precedence, float(cause.order), 0) for cause in first]
    ranked = sorted(zip(keys, first, strict=True), key=lambda pair: (pair[0], pair[1].order, pair[1].sighting.line))
    return ranked[0][1]


def _known(root: Cause, scans: Sequence[Scan], collateral: int) -> Diagnosis:
    sighting, meaning = root.sighting, root.meaning
    fields = sighting.fields
    figures = _figures(sighting)
    reading, advice = _filled(meaning.reading, fields), meaning.advice
    if root.failure_class == "oom":
        numbers = figures_of(sighting.text)
        figures |= numbers
        reading, advice = read_oom(numbers) or (reading, advice)
    rank = root.scan.rank_of(sighting)
    return Diagnosis(
        failure_class=root.failure_class,
        signature=signature_of(_exception(root), _message(root), sighting.frame),
        message=sighting.text,
        rank=_launchers_rank(scans) if rank is None else rank,
        log=str(root.scan.path),
        line=sighting.line,
        reading=reading,
        advice=advice,
        figures=figures,
        collective=collective_of(sighting, scans) if root.failure_class == "hang" else None,
        collateral=collateral,
        evidence=_beside(root, scans),
    )


def _exception(root: Cause) -> str:
    raised = root.sighting.raised
    if root.meaning.exception:
        return _filled(root.meaning.exception, root.sighting.fields)
    if raised is not None:
        return raised.type
    return "Traceback" if root.sighting.frame else root.sighting.sign.name


def _message(root: Cause) -> str:
    sighting = root.sighting
    if root.meaning.says:
        return _filled(root.meaning.says, _stable(sighting.fields))
    if sighting.raised is not None:
        return normalise(sighting.raised.message)
    return "cut off" if sighting.frame else normalise(sighting.label.text)


def _stable(fields: Mapping[str, str]) -> dict[str, str]:
    """Parts of a signature: numbers among them are names (of a signal, of an Xid)."""
    return {name: text if text.isdecimal() else normalise(text) for name, text in fields.items()}


class _Unknown(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "unknown"


def _filled(text: str, fields: Mapping[str, str]) -> str:
    return text.format_map(_Unknown(fields))


def _figures(sighting: Sighting) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, text in sighting.fields.items():
        if name not in _NOT_FIGURES and len(text) < 20 and text.replace(".", "", 1).isdecimal():
            figures[name] = float(text)
    if "exit" in sighting.fields:
        figures["exit_code"] = float(_whole(sighting.fields["exit"]))
    if sighting.iteration is not None:
        figures.setdefault("iteration", float(sighting.iteration))
    return figures


def _launchers_rank(scans: Sequence[Scan]) -> int | None:
    """The rank that the launcher saw fail first, or the only one whose end it tells of."""
    first = [each.first_failed for each in scans if each.first_failed is not None]
    if first:
        return first[0]
    ended = [
        each.rank_of(one)
        for each in scans
        for one in each.sightings
        if one.sign.kind == "exit" and one.fields["exit"] not in ("0", "-15")
    ]
    return ended[0] if ended else None


def _beside(root: Cause, scans: Sequence[Scan]) -> tuple[str, ...]:
    """The root line, and the first line of every kind that says more about it."""
    lines = [_shown(root.sighting.text)]
    for kind, most in (("context", 2), ("exit", 1), ("collateral", 1)):
        found = (
            one for each in scans for one in each.sightings if one.sign.kind == kind and one.sign.name != "world-size"
        )
        lines += [_shown(one.text) for one, _ in zip(found, range(most), strict=False)]
    return tuple(dict.fromkeys(lines))


def _most_telling(scans: Sequence[Scan]) -> tuple[str, ...]:
    """Where nothing is known: what sounds like a failure, and how the logs end."""
    lines: list[str] = []
    for each in scans:
        first = [one for one in each.sightings if one.sign.kind in ("exit", "collateral", "wrapper")][:2]
        lines += [_shown(text) for _, text in sorted([(one.line, one.text) for one in first] + list(each.telling)[-4:])]
    for each in scans:
        last = each.tail.decode("utf-8", "replace").replace("\r", "\n").split("\n")
        lines += [_shown(line) for line in [line for line in last if line.strip()][-_TAIL:]]
    return _first(filter(None, lines), _EVIDENCE)


def _first(lines: Iterable[str], most: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))[:most]


def _why_unknown(scans: Sequence[Scan], collateral: int) -> str:
    if collateral:
        return (
            "these lines are what a failure elsewhere did to these ranks: the log of the rank where it began is missing"
        )
    if not any(each.tail.strip() for each in scans):
        return "there is nothing in the log"
    return "no line is a failure that this version of vlmprof knows"


def _shown(line: str) -> str:
    text = "".join(character if character.isprintable() else " " for character in line[: _SHOWN * 2]).strip()
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _whole(text: str) -> int:
    return int(text) if len(text) < 7 and text.lstrip("-").isdecimal() else 0
