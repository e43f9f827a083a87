"""From nights' documents to issues of a tracker: one per regression, opened, kept up to date, closed when it is gone.

Pure: `scripts/nightly_issues.py` asks GitHub what there is, and does what `plan_issues` says.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vlmprof.nightly.summary import commit_words, facts
from vlmprof.records.night import Matter, Night, WorkloadNight
from vlmprof.report.escape import code, escaped

__all__ = ["LABEL", "Action", "Issue", "marker", "plan_issues"]

LABEL = "vlmprof-nightly"
TITLE_LENGTH = 200


@dataclass(frozen=True)
class Issue:
    """One that is there."""

    number: int
    body: str
    is_open: bool


@dataclass(frozen=True)
class Action:
    kind: Literal["open", "update", "close"]
    number: int | None = None
    title: str = ""
    body: str = ""
    """Of the issue; of a comment when it is closed."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def marker(matter_id: str) -> str:
    """Invisible, and how the issue of a matter is found again."""
    return f"<!-- vlmprof-nightly: {matter_id} -->"


def plan_issues(nights: Sequence[Night], issues: Iterable[Issue]) -> list[Action]:
    """What is to be done. `nights` are those of one date (a machine each), `issues` all that carry `LABEL`.

    An issue that somebody closed while its matter is open stays closed: they have said that they know. Of a matter that
    no night speaks of nothing is said.
    """
    known = {matter_id: issue for issue in issues for matter_id in _ids(issue.body)}
    actions = []
    for matter_id, sightings in _by_matter(nights).items():
        issue = known.get(matter_id)
        still = [sighting for sighting in sightings if sighting.matter.closed_by is None]
        if not still:
            if issue is not None and issue.is_open:
                actions.append(Action("close", issue.number, body=_farewell(sightings[0].matter)))
            continue
        title, body = _title(still[0].matter), _body(matter_id, still)
        if issue is None:
            actions.append(Action("open", title=title, body=body))
        elif issue.is_open and issue.body.strip() != body.strip():
            actions.append(Action("update", issue.number, title, body))
    return actions


@dataclass(frozen=True)
class _Sighting:
    matter: Matter
    part: WorkloadNight
    night: Night


def _by_matter(nights: Sequence[Night]) -> dict[str, list[_Sighting]]:
    found: dict[str, list[_Sighting]] = {}
    for night in nights:
        if night.bisect_range or not night.finished:
            continue  # by hand, or half a night
        for part in night.workloads:
            for matter in (*([part.matter] if part.matter is not None else []), *part.other_matters):
                found.setdefault(matter.id, []).append(_Sighting(matter, part, night))
    return found


def _ids(body: str) -> list[str]:
    head, tail = marker("\0").split("\0")
    return [rest.partition(tail)[0] for rest in body.split(head)[1:]]


def _title(matter: Matter) -> str:
    """GitHub renders no Markdown in titles, but it does call people."""
    text = matter.title.replace("@", "@\u200b")
    if matter.culprit is not None:
        text += f" ({matter.culprit.sha[:12]})"
    return text[:TITLE_LENGTH]


def _body(matter_id: str, sightings: Sequence[_Sighting]) -> str:
    matter, night = sightings[0].matter, sightings[0].night
    lines = [marker(matter_id), ""]
    if matter.culprit is not None:
        lines += [f"**Culprit:** {commit_words(matter.culprit)}", ""]
    lines += [
        f"- repository: {code(night.target.repository)}, {code(night.target.ref)}",
        f"- first seen: {matter.since_date[:10]} at {commit_words(matter.since)}",
        f"- last seen: {night.created[:10]} at {commit_words(night.target.commit)}",
    ]
    if matter.good is not None:
        lines.append(f"- last good: {commit_words(matter.good.commit)}")
    for sighting in sightings:
        part = sighting.part
        lines += ["", f"### {part.name} on {escaped(part.platform or 'this machine')}", "", escaped(part.reason), ""]
        lines += facts(part) if part.matter is not None and part.matter.id == matter_id else ()
    lines += ["", "Kept up to date by `vlmprof nightly`, which closes this issue when it is gone. Closed by hand, it"]
    lines += ["stays closed, and the matter is not reported again."]
    return "\n".join(lines) + "\n"


def _farewell(matter: Matter) -> str:
    if matter.closed_by is None:
        return ""
    return f"Gone at {commit_words(matter.closed_by)}.\n"
