"""What a person reads in the morning."""

import pytest

from tests.unit.test_nightly_issues import CLOSED, OPEN, night, part
from tests.unit.test_nightly_verdict import commit, matter
from vlmprof.nightly.summary import headline, summary
from vlmprof.records.bisect import Answer, Confirmation
from vlmprof.records.night import WorkloadNight

FOUND = Answer(
    kind="found",
    text="bbbbbbbbbbbb 'commit b' is the first bad commit: code 1: peak memory +9 %",
    commits=(commit("b"),),
    files=tuple(f"file{number}.py" for number in range(7)),
    confirmation=Confirmation(
        parent=commit("a"), culprit_verdicts=("bad",), parent_verdicts=("good",), revert="confirmed"
    ),
)


def test_the_culprit_stands_in_the_table_and_the_proof_below() -> None:
    text = summary(night(part("x", OPEN).model_copy(update={"answer": FOUND}), WorkloadNight(name="y", status="good")))
    assert "| x | **failed** | crash: boom | `bbbbbbbbbbbb` commit b (A. Uthor, 2026-01-01) |" in text
    assert "| y | good |" in text
    assert "## y" not in text
    assert "is the first bad commit: peak memory +9 %" in text
    assert "its parent again good; tonight's commit without it: confirmed" in text
    assert "`file4.py` ..." in text
    assert "file5.py" not in text


def test_a_fixed_one_blames_nobody() -> None:
    text = summary(night(part("x", CLOSED)))
    assert "| x | fixed | crash: boom |  |" in text
    assert "1 fixed of 1" in text


def test_what_was_not_done_is_said() -> None:
    late = WorkloadNight(name="x", status="regressed", not_done=("bisect",))
    never = WorkloadNight(name="y", status="not-done", not_done=("run",))
    assert "Not done: x: bisect; y: run." in summary(night(late, never))


def test_other_matters_are_told_apart() -> None:
    gone = matter("old", "a").model_copy(update={"closed_by": commit("d")})
    text = summary(night(part("x", OPEN).model_copy(update={"other_matters": (gone, matter("hid", "a", "metric"))})))
    assert "- gone, too: old" in text
    assert "- open, and hidden or not looked at tonight: hid" in text


def code_of(*parts: WorkloadNight) -> int:
    return night(*parts).exit_code


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (("good", "first", "fixed"), 0),
        (("good", "undecided"), 4),
        (("not-done",), 4),
        (("failed", "undecided"), 3),
        (("failed", "regressed", "undecided"), 1),
    ],
)
def test_exit_codes_by_precedence(statuses: tuple[str, ...], code: int) -> None:
    parts = [WorkloadNight.model_validate({"name": status, "status": status}) for status in statuses]
    assert code_of(*parts) == code
    assert headline(night(*parts)).endswith(f"of {len(parts)}")


def test_a_failure_with_a_culprit_is_found_and_a_good_one_without_times_left_open() -> None:
    assert code_of(part("x", OPEN)) == 1
    assert code_of(part("x", OPEN.model_copy(update={"culprit": None}))) == 3
    assert code_of(WorkloadNight(name="x", status="good", not_done=("times",))) == 4
