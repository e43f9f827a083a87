"""The search alone: random histories, git's own choice beside it, skips, ends, merge bases, size."""

import math
import random
import time
from collections.abc import Callable

import pytest

from vlmprof.bisect.search import (
    Done,
    EndsNotConfirmed,
    Evaluate,
    Found,
    FoundSet,
    Graph,
    Inconclusive,
    Result,
    Search,
    Verdict,
)
from vlmprof.bisect.weights import bisection_weights

Parents = dict[str, tuple[str, ...]]
Judge = Callable[[str], Verdict]


def linear(count: int) -> Parents:
    return {f"c{i}": (f"c{i - 1}",) for i in range(count)}


def merges(count: int, rng: random.Random, width: int = 4, octopus: bool = True) -> Parents:
    """Branches that part and are merged again at random, with more than two parents now and then."""
    parents: Parents = {"c0": ("c-1",)}
    heads = ["c0"]
    for i in range(1, count - 1):
        name = f"c{i}"
        roll = rng.random()
        if roll < 0.2 and len(heads) < width:
            parents[name] = (rng.choice(list(parents)),)
            heads.append(name)
        elif roll < 0.4 and len(heads) > 1:
            taken = rng.sample(heads, rng.randint(2, len(heads)) if octopus else 2)
            parents[name] = tuple(taken)
            heads = [head for head in heads if head not in taken] + [name]
        else:
            index = rng.randrange(len(heads))
            parents[name] = (heads[index],)
            heads[index] = name
    parents[f"c{count - 1}"] = tuple(heads)
    return parents


def criss_cross(count: int, rng: random.Random) -> Parents:
    """Two lines that merge each other's heads over and over."""
    parents: Parents = {"c0": ("c-1",)}
    left = right = "c0"
    for i in range(1, count - 2, 2):
        a, b = f"c{i}", f"c{i + 1}"
        cross = rng.random() < 0.5 and left != right
        parents[a] = (left, right) if cross else (left,)
        parents[b] = (right, left) if cross else (right,)
        left, right = a, b
    parents[f"c{count - 1}"] = (left, right)
    return parents


def ancestors(commit: str, parents: Parents) -> set[str]:
    seen: set[str] = set()
    waiting = [commit]
    while waiting:
        commit = waiting.pop()
        if commit in parents and commit not in seen:
            seen.add(commit)
            waiting += parents[commit]
    return seen


def solve(search: Search, judge: Judge) -> tuple[Result, list[str]]:
    tried = []
    while isinstance(step := search.next_step(), Evaluate):
        assert step.commit not in search.marks
        if step.role == "search":
            tried.append(step.commit)
        search.mark(step.commit, judge(step.commit))
        assert len(tried) < 2000
    return step.result, tried


def history(seed: int) -> tuple[Parents, str, str, Judge, random.Random]:
    """A random history, its tip, its culprit, and a judge that skips untestable stretches and lone other failures."""
    rng = random.Random(seed)
    count = rng.choice([rng.randint(2, 12), rng.randint(12, 80), rng.randint(80, 400)])
    parents = [lambda: linear(count), lambda: merges(count, rng), lambda: criss_cross(count, rng)][seed % 3]()
    tip = f"c{count - 1}"
    inside = sorted(ancestors(tip, parents))
    culprit = rng.choice(inside)
    bad = {commit for commit in inside if culprit in ancestors(commit, parents)}
    broken: set[str] = set()
    if seed % 2:
        names = sorted(inside, key=lambda name: int(name[1:]))
        for _ in range(rng.randint(0, 3)):
            start = rng.randrange(len(names))
            broken |= set(names[start : start + rng.randint(1, max(1, len(names) // 3))])
        broken |= {commit for commit in inside if rng.random() < 0.05}
    broken.discard(tip)

    def judge(commit: str) -> Verdict:
        return "skip" if commit in broken else "bad" if commit in bad else "good"

    return parents, tip, culprit, judge, rng


@pytest.mark.parametrize("block", range(8))
def test_the_answer_holds_the_culprit_within_the_promised_tries(block: int) -> None:
    for seed in range(block * 120, block * 120 + 120):
        parents, tip, culprit, judge, _ = history(seed)
        search = Search(Graph(parents), "c-1", tip)
        result, tried = solve(search, judge)
        skips = sum(judge(commit) == "skip" for commit in tried)
        assert len(tried) <= math.ceil(math.log2(len(ancestors(tip, parents)))) + 2 + skips, seed
        if isinstance(result, FoundSet):
            assert culprit in result.commits, seed
            assert skips > 0
            assert result.untested == () or skips >= search.patience
        else:
            assert result == Found(culprit), seed


@pytest.mark.parametrize("seed", range(30))
def test_finding_a_fix_is_the_same_search_with_the_terms_inverted(seed: int) -> None:
    parents, tip, culprit, judge, _ = history(seed * 2)
    swapped: dict[Verdict, Verdict] = {"good": "bad", "bad": "good", "skip": "skip"}
    search = Search(Graph(parents), "c-1", tip, find_fix=True)
    first = search.next_step()
    assert isinstance(first, Evaluate)
    assert first.commit == "c-1"  # the end with the symptom
    result, _ = solve(search, lambda commit: swapped[judge(commit)])
    assert result == Found(culprit)


def git_solve(parents: Parents, tip: str, judge: Judge) -> int:
    """How many tries git takes: its weights, and on skips its way of moving off at random (bisect.c, skip_away)."""
    order = [*Search(Graph(parents), "c-1", tip).suspects()]
    suspects, skipped, count = order, set(), 0
    while True:
        weights = bisection_weights(suspects, parents)
        ranked = sorted(suspects[:-1], key=weights.__getitem__, reverse=True)
        left = [commit for commit in ranked if commit not in skipped]
        if not left:
            return count
        if ranked[0] in skipped:
            number = pseudo_random(len(left))
            chosen = left[int(len(left) * (number / 32768) ** 1.5)]
        else:
            chosen = ranked[0]
        count += 1
        verdict = judge(chosen)
        if verdict == "skip":
            skipped.add(chosen)
            continue
        below = ancestors(chosen, parents)
        suspects = [commit for commit in suspects if (commit in below) == (verdict == "bad")]


def pseudo_random(count: int) -> int:
    return (count * 1103515245 + 12345) // 65536 % 32768


@pytest.mark.parametrize("parity", [0, 1], ids=["all testable", "with skips"])
def test_git_is_no_better_by_more_than_one_on_average(parity: int) -> None:
    differences = []
    for seed in range(parity, 500, 2):
        parents, tip, _, judge, _ = history(seed)
        _, tried = solve(Search(Graph(parents), "c-1", tip), judge)
        differences.append(len(tried) - git_solve(parents, tip, judge))
    mean = sum(differences) / len(differences)
    print(f"ours minus git's: mean {mean:.2f}, worst {max(differences)}, best {min(differences)}")
    assert mean <= 1


def test_weights_are_ancestors_against_the_rest() -> None:
    rng = random.Random(7)
    for _ in range(20):
        parents = merges(60, rng)
        tip = "c59"
        order = Search(Graph(parents), "c-1", tip).suspects()
        weights = bisection_weights(order, parents)
        for commit in order:
            count = len(ancestors(commit, parents))
            assert weights[commit] == min(count, len(order) - count)


@pytest.mark.parametrize("length", [10, 100, 600])
def test_a_stretch_that_cannot_be_tested_is_crossed_in_few_tries(length: int) -> None:
    broken = {f"c{i}" for i in range(500 - length // 2, 500 + length // 2)}
    for culprit in (100, 950):

        def judge(commit: str, culprit: int = culprit) -> Verdict:
            return "skip" if commit in broken else "bad" if int(commit[1:]) >= culprit else "good"

        result, tried = solve(Search(Graph(linear(1000)), "c-1", "c999"), judge)
        assert result == Found(f"c{culprit}")
        assert sum(commit in broken for commit in tried) <= 2 * math.log2(length) + 1


def test_a_culprit_inside_a_long_stretch_ends_in_a_set_without_trying_it_all() -> None:
    def judge(commit: str) -> Verdict:
        number = int(commit[1:])
        return "skip" if 300 <= number < 700 else "bad" if number >= 500 else "good"

    result, tried = solve(Search(Graph(linear(1000)), "c-1", "c999"), judge)
    assert isinstance(result, FoundSet)
    assert {f"c{i}" for i in range(300, 701)} <= set(result.commits)
    assert len(result.commits) < 450
    assert len(tried) < 60
    assert result.untested


def test_a_short_stretch_around_the_culprit_is_the_exact_set() -> None:
    def judge(commit: str) -> Verdict:
        return "skip" if commit in ("c40", "c41", "c42") else "bad" if int(commit[1:]) >= 41 else "good"

    result, _ = solve(Search(Graph(linear(100)), "c-1", "c99"), judge)
    assert result == FoundSet(("c40", "c41", "c42", "c43"))


@pytest.mark.parametrize("verdict", ["good", "skip"])
def test_a_bad_end_that_is_not_bad(verdict: Verdict) -> None:
    search = Search(Graph(linear(5)), "c-1", "c4")
    step = search.next_step()
    assert isinstance(step, Evaluate)
    assert (step.commit, step.role) == ("c4", "bad end")
    search.mark("c4", verdict, "why")
    done = search.next_step()
    assert isinstance(done, Done)
    assert isinstance(done.result, EndsNotConfirmed)
    assert (done.result.end, done.result.mark.reason) == ("bad end", "why")


def test_a_good_end_that_is_bad() -> None:
    search = Search(Graph(linear(5)), "c-1", "c4")
    search.mark("c4", "bad")
    search.mark("c-1", "bad", "fails here too")
    done = search.next_step()
    assert isinstance(done, Done)
    assert isinstance(done.result, EndsNotConfirmed)
    assert done.result.end == "good end"


def test_merge_bases_come_before_the_search() -> None:
    search = Search(Graph(linear(8), bases=("base",)), "release", "c7")
    search.mark("c7", "bad")
    search.mark("release", "good")
    step = search.next_step()
    assert isinstance(step, Evaluate)
    assert (step.commit, step.role) == ("base", "merge base")
    search.mark("base", "bad")
    done = search.next_step()
    assert isinstance(done, Done)
    assert isinstance(done.result, Inconclusive)
    assert "merge base" in done.result.reason
    search.mark("base", "skip")  # as git: it must be skipped, so go on without it
    step = search.next_step()
    assert isinstance(step, Evaluate)
    assert step.role == "search"


def test_first_parent_stays_on_the_main_line() -> None:
    parents: Parents = {"c0": ("c-1",), "side1": ("c0",), "side2": ("side1",), "c1": ("c0",), "c2": ("c1", "side2")}
    result, tried = solve(
        Search(Graph(parents), "c-1", "c2", first_parent=True),
        lambda commit: "bad" if commit == "c2" else "good",
    )
    assert result == Found("c2")
    assert not {"side1", "side2"} & set(tried)


def test_a_search_is_its_marks_in_their_order() -> None:
    parents, tip, _, judge, _ = history(11)
    search = Search(Graph(parents), "c-1", tip)
    while isinstance(step := search.next_step(), Evaluate):
        again = Search(Graph(parents), "c-1", tip)
        for commit, mark in search.marks.items():
            again.mark(commit, mark.verdict, mark.reason)
        assert again.next_step() == step
        search.mark(step.commit, judge(step.commit))


def test_strangers_are_refused() -> None:
    with pytest.raises(ValueError, match="not part of this search"):
        Search(Graph(linear(3)), "c-1", "c2").mark("elsewhere", "good")
    with pytest.raises(ValueError, match="not in the graph"):
        Search(Graph(linear(3)), "c-1", "elsewhere")


@pytest.mark.parametrize("shape", ["linear", "merges", "criss-cross"])
def test_ten_thousand_commits_take_less_than_a_second_a_choice(shape: str) -> None:
    rng = random.Random(1)
    shapes = {
        "linear": lambda: linear(10_000),
        "merges": lambda: merges(10_000, rng, width=40),
        "criss-cross": lambda: criss_cross(10_000, rng),
    }
    search = Search(Graph(shapes[shape]()), "c-1", "c9999")
    search.mark("c9999", "bad")
    search.mark("c-1", "good")
    began = time.perf_counter()
    step = search.next_step()
    assert isinstance(step, Evaluate)
    search.mark(step.commit, "skip")
    search.next_step()
    assert (time.perf_counter() - began) / 2 < 1
