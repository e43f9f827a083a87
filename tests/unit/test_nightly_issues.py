import re

import pytest

from tests.unit.test_nightly_verdict import commit, matter
from vlmprof.nightly.issues import Issue, marker, plan_issues
from vlmprof.records.night import Matter, Night, NightTarget, WorkloadNight
from vlmprof.report.escape import code, escaped


def night(*parts: WorkloadNight, **facts: str) -> Night:
    target = NightTarget(repository="https://example.com/m.git", ref="main", commit=commit("c"))
    common = {"created": "2026-01-02T01:00:00+00:00", "finished": "2026-01-02T02:00:00+00:00", **facts}
    return Night(suite="cpu", suite_digest="0", target=target, workloads=parts, **common)


def part(name: str, of: Matter, **facts: str) -> WorkloadNight:
    status = "fixed" if of.closed_by else "failed"
    return WorkloadNight.model_validate(
        {"name": name, "platform": "cpu-x1", "status": status, "reason": "crash: boom", "matter": of, **facts}
    )


OPEN = matter("abc", "b")
CLOSED = OPEN.model_copy(update={"closed_by": commit("d")})


def test_one_issue_for_one_regression_seen_by_two_workloads_on_two_machines() -> None:
    actions = plan_issues([night(part("x", OPEN), part("y", OPEN)), night(part("z", OPEN))], [])
    assert [action.kind for action in actions] == ["open"]
    assert actions[0].title == "abc (bbbbbbbbbbbb)"
    assert marker("abc") in actions[0].body
    assert all(f"### {name} on cpu-x1" in actions[0].body for name in "xyz")


def test_an_issue_is_updated_only_when_there_is_something_new() -> None:
    body = plan_issues([night(part("x", OPEN))], [])[0].body
    assert plan_issues([night(part("x", OPEN))], [Issue(7, body.replace("\n", "\n"), True)]) == []
    assert plan_issues([night(part("x", OPEN))], [Issue(7, body.strip(), True)]) == []
    later = plan_issues([night(part("x", OPEN), created="2026-01-03T01:00:00+00:00")], [Issue(7, body, True)])
    assert [(action.kind, action.number) for action in later] == [("update", 7)]


def test_it_is_closed_when_it_is_gone_everywhere() -> None:
    there = [Issue(7, marker("abc"), True), Issue(8, "another", True)]
    half = plan_issues([night(part("x", CLOSED)), night(part("z", OPEN))], there)
    assert [action.kind for action in half] == ["update"]
    done = plan_issues([night(part("x", CLOSED)), night(part("z", CLOSED))], there)
    assert [(action.kind, action.number) for action in done] == [("close", 7)]
    assert "dddddddddddd" in done[0].body
    assert plan_issues([night(part("x", CLOSED))], []) == []
    assert plan_issues([night(part("x", CLOSED))], [Issue(7, marker("abc"), False)]) == []


def test_one_that_somebody_closed_stays_closed() -> None:
    assert plan_issues([night(part("x", OPEN))], [Issue(7, marker("abc"), False)]) == []


def test_nothing_is_said_of_good_unfinished_or_asked_for_nights() -> None:
    good = WorkloadNight(name="x", status="good")
    assert plan_issues([night(good)], [Issue(7, marker("abc"), True)]) == []
    assert plan_issues([night(part("x", OPEN), finished="")], []) == []
    assert plan_issues([night(part("x", OPEN), bisect_range="a..b")], []) == []


def test_a_matter_that_another_hides_keeps_its_issue() -> None:
    hidden = part("x", OPEN).model_copy(update={"other_matters": (matter("old", "a", "metric"),)})
    kinds = {action.number: action.kind for action in plan_issues([night(hidden)], [Issue(3, marker("old"), True)])}
    assert kinds[None] == "open"
    assert kinds.get(3) != "close"


@pytest.mark.parametrize(
    "evil",
    [
        "see @octocat and #12, GH-3",
        "[click](javascript:alert(1))",
        "<img src=x onerror=alert(1)>",
        "`code` **bold** | cell | ~~gone~~",
        "![x](https://evil.example/x.png) https://evil.example www.evil.example",
        "line\none\r\n# heading",
        f"{marker('xyz')}",
        "a\\`b\\",
    ],
)
def test_foreign_text_does_nothing(evil: str) -> None:
    written = escaped(evil)
    assert not re.search(r"@\w|#\d|GH-\d|https?:|www\.", written)
    assert not re.search(r"(?<!\\)(\\\\)*[`*<>|\[\]~]", written)
    assert "\n" not in written
    evil_matter = OPEN.model_copy(update={"title": evil, "culprit": commit("b").model_copy(update={"subject": evil})})
    action = plan_issues([night(part("x", evil_matter, reason=evil))], [])[0]
    assert not re.search(r"@\w", action.title)
    assert action.body.count("<!--") == 1 + action.body.count("\\<!--")
    assert [found.id for found in _matters_of(action.body)] == ["abc"]


def _matters_of(body: str) -> list[Matter]:
    """Those that the body is found again by."""
    return [one for one in (OPEN, matter("xyz", "a")) if marker(one.id) in body]


@pytest.mark.parametrize("text", ["plain", "`", "a``b", "`x`", "two\nlines"])
def test_a_code_span_holds_what_it_is_given(text: str) -> None:
    written = code(text)
    fence = re.match("`+", written)
    assert fence
    inner = written[len(fence[0]) : -len(fence[0])]
    assert fence[0] not in re.sub(f"^`{{{len(fence[0]) + 1},}}", "", inner)
    assert inner.strip() == " ".join(text.split())
