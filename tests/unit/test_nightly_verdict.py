"""What nights make of what they measure, over several nights of one workload: pure."""

from typing import Any, Literal

from vlmprof.nightly.state import Remembered
from vlmprof.nightly.verdict import Problem, after, matter_of, of_failure, settle, share_matters
from vlmprof.records.bisect import CommitRecord
from vlmprof.records.night import Good, Matter, WorkloadNight
from vlmprof.records.run import Outcome

OK = Outcome(status="ok")
CRASH = Outcome(status="failed", failure_class="crash", signature="RuntimeError @ router", message="RuntimeError: no")


def commit(name: str) -> CommitRecord:
    return CommitRecord(sha=name * 40, author="A. Uthor", date="2026-01-01", subject=f"commit {name}")


def spend(before: Remembered, name: str, outcome: Outcome | None, problem: Problem | None = None, **facts: Any) -> Any:
    """One night at commit `name`: (how it is settled, what is remembered)."""
    tonight = commit(name)
    part = WorkloadNight(name="small", platform="cpu-x1", good=before.good, outcome=outcome, **facts)
    problem = problem or of_failure(outcome)
    if problem is not None and problem.searchable:
        part = part.model_copy(update={"matter": matter_of(problem, "small", before, tonight, f"night {name}")})
    part = settle(part, problem, before, tonight)
    return part, after(part, before, tonight, f"night {name}", moves=True)


def metric(*names: str) -> Problem:
    return Problem("metric", ", ".join(names), "more memory")


def good_at(name: str) -> Good:
    return Good(commit=commit(name), date=f"night {name}")


def test_first_then_good_nights_move_the_last_good_commit() -> None:
    part, known = spend(Remembered(), "a", OK)
    assert part.status == "first"
    part, known = spend(known, "b", OK, comparison="c")
    assert (part.status, known.good) == ("good", good_at("b"))
    part, known = spend(known, "b", OK, comparison="c")
    assert "the commit that was good before" in part.reason


def test_a_failure_is_one_matter_until_it_is_gone() -> None:
    _, known = spend(Remembered(), "a", OK)
    first, known = spend(known, "b", CRASH)
    assert (first.status, first.reason) == ("failed", "crash: RuntimeError: no")
    assert known.good == good_at("a")
    again, known = spend(known, "c", CRASH)
    assert again.matter == first.matter
    assert (again.matter.since.sha, again.matter.good) == (commit("b").sha, good_at("a"))
    part, known = spend(known, "d", OK, comparison="c")
    assert (part.status, part.matter.id, part.matter.closed_by) == ("fixed", first.matter.id, commit("d"))
    assert known == Remembered(good=good_at("d"), platform="cpu-x1")
    part, known = spend(known, "e", CRASH)
    assert part.matter.id != first.matter.id


def test_another_failure_hides_a_metric_and_does_not_close_it() -> None:
    before = Remembered(good=good_at("a"))
    worse, known = spend(before, "b", OK, metric("memory_peak"), comparison="c")
    hidden, known = spend(known, "c", CRASH)
    assert {matter.kind for matter in known.matters} == {"failure", "metric"}
    assert hidden.matter.kind == "failure"
    back, known = spend(known, "d", OK, metric("memory_peak", "flops"), comparison="c")
    assert back.matter.id == worse.matter.id  # one metric in common
    assert [matter.closed_by for matter in back.other_matters] == [commit("d")]
    assert known.matters == (back.matter,)


def test_a_metric_that_is_better_while_another_is_worse() -> None:
    worse, known = spend(Remembered(good=good_at("a")), "b", OK, metric("memory_peak"), comparison="c")
    other, known = spend(known, "c", OK, metric("flops"), comparison="c")
    assert other.matter.id != worse.matter.id
    assert other.other_matters[0].closed_by == commit("c")
    assert known.good == good_at("a")


def test_a_slow_down_is_not_gone_while_nobody_looks() -> None:
    slow, known = spend(Remembered(good=good_at("a")), "b", OK, Problem("time", "step_ms", "slower"), ab="x")
    for facts in ({}, {"ab": "x", "untold": "undecided"}, {"not_done": ("times",)}):
        part, kept = spend(known, "c", OK, comparison="c", **facts)
        assert part.status == "undecided"
        assert kept == known
    part, known = spend(known, "c", OK, comparison="c", ab="x")
    assert (part.status, part.matter.id) == ("fixed", slow.matter.id)


def test_what_is_untold_or_not_done_moves_nothing() -> None:
    before = Remembered(good=good_at("a"))
    part, known = spend(before, "b", OK, untold="not compared: another platform")
    assert (part.status, known) == ("undecided", before)
    part, known = spend(before, "b", None, not_done=("run",))
    assert (part.status, part.reason, known) == ("not-done", "the budget was used up before it began", before)
    part, known = spend(before, "b", None, not_done=("run",), reason="there is no GPU")
    assert part.reason == "there is no GPU"
    part, known = spend(before, "b", OK, not_done=("comparison",))
    assert (part.status, known) == ("undecided", before)
    part, known = spend(before, "b", OK, comparison="c", not_done=("times",))
    assert (part.status, known) == ("good", before)


def test_what_is_accepted_is_good_from_then_on_and_closes_what_was_open() -> None:
    worse = metric("memory_peak")
    _, known = spend(Remembered(good=good_at("a")), "b", OK, worse, comparison="c")
    part = WorkloadNight(name="small", platform="cpu-x1", good=known.good, outcome=OK, comparison="c")
    part = settle(part, None, known, commit("c"), accepted=worse)
    assert (part.status, part.reason) == ("good", "accepted: more memory")
    assert [matter.closed_by for matter in part.other_matters] == [commit("c")]
    assert after(part, known, commit("c"), "night c", moves=True) == Remembered(good=good_at("c"), platform="cpu-x1")


def test_the_machines_own_failures_are_no_matter() -> None:
    killed = Outcome(status="failed", failure_class="killed", message="ended by SIGKILL")
    before = Remembered(good=good_at("a"))
    part, known = spend(before, "b", killed)
    assert (part.status, part.matter, known) == ("failed", None, before)


def test_a_commit_behind_the_last_good_one_does_not_move_it() -> None:
    before = Remembered(good=good_at("b"))
    part = settle(WorkloadNight(name="small", outcome=OK, comparison="c"), None, before, commit("a"))
    assert after(part, before, commit("a"), "night", moves=False).good == good_at("b")


def matter(id_: str, culprit: str, kind: Literal["failure", "metric", "time"] = "failure") -> Matter:
    return Matter(
        id=id_, title=id_, kind=kind, symptom=id_, since=commit("b"), since_date="night b", culprit=commit(culprit)
    )


def test_one_culprit_is_one_regression() -> None:
    parts = [
        WorkloadNight(name=name, matter=matter(name, culprit)) for name, culprit in (("x", "1"), ("y", "1"), ("z", "2"))
    ]
    ids = [part.matter.id for part in share_matters(parts, []) if part.matter]
    assert ids == ["x", "x", "z"]
    ids = [part.matter.id for part in share_matters(parts, [matter("older", "2")]) if part.matter]
    assert ids == ["x", "x", "older"]


def test_a_culprit_of_one_metric_is_not_that_of_another() -> None:
    _, known = spend(Remembered(), "a", OK)
    part, _ = spend(known, "b", OK, metric("memory_peak", "losses"), comparison="c")
    found = part.matter.model_copy(update={"culprit": commit("b"), "hunted": "memory_peak"})
    known = known.model_copy(update={"matters": (found,)})
    again, _ = spend(known, "c", OK, metric("memory_peak", "losses"), comparison="c")
    assert again.matter == found
    other, _ = spend(known, "d", OK, metric("losses"), comparison="c")
    assert (other.matter.id, other.matter.culprit, other.matter.hunted) == (found.id, None, "")
