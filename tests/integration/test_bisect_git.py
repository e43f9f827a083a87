"""The history and the worktree against real git repositories."""

import subprocess
from pathlib import Path

import pytest

from tests.repositories import Repo, snapshot
from vlmprof.bisect.git import Git
from vlmprof.bisect.history import Ends, open_repository
from vlmprof.bisect.search import Evaluate, Search
from vlmprof.bisect.weights import bisection_weights
from vlmprof.bisect.worktree import BlockedError, Worktree, parse_fixup
from vlmprof.errors import UserError


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


def criss_cross(repo: Repo) -> tuple[str, str]:
    first = repo.commit("first", a="0")
    repo.git("branch", "other")
    for i in range(3):
        repo.commit(f"left {i}", left=str(i))
        repo.git("checkout", "--quiet", "other")
        repo.commit(f"right {i}", right=str(i))
        before = repo.git("rev-parse", "main")
        repo.merge("main", subject=f"main into other {i}")
        repo.git("checkout", "--quiet", "main")
        assert repo.git("rev-parse", "HEAD") == before
        repo.merge("other~1", subject=f"other into main {i}")
    repo.merge("other")
    return first, repo.head


def test_ends_in_the_right_order(repo: Repo) -> None:
    first, second, third = repo.line(3)
    repo.git("tag", "v1", first)
    found = open_repository(repo.folder)
    assert found.ends("v1..main") == Ends(first, third)
    assert found.ends("v1..") == Ends(first, third)
    assert found.ends("main..v1", find_fix=True) == Ends(first, third)
    assert set(found.graph(Ends(first, third)).parents) == {second, third}


WRONG_RANGES = [
    ("main", "is not a range"),
    ("v1...main", "is not a range"),
    ("..", "is not a range"),
    ("v1..nothing", "'nothing' is no commit"),
    ("v1..--all", "is no commit"),
    ("v1..v1", "holds no commits"),
    ("main..v1", "did you mean v1..main, or --find-fix"),
    ("v1..stranger", "no commit in common"),
]


@pytest.mark.parametrize(("text", "expected"), WRONG_RANGES)
def test_wrong_ranges_are_told_in_one_sentence(repo: Repo, text: str, expected: str) -> None:
    first, *_ = repo.line(3)
    repo.git("tag", "v1", first)
    repo.git("checkout", "--quiet", "--orphan", "stranger")
    repo.commit("unrelated")
    with pytest.raises(UserError, match=expected):
        open_repository(repo.folder).ends(text)


def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not in a git repository"):
        open_repository(tmp_path)
    with pytest.raises(UserError, match="no folder"):
        open_repository(tmp_path / "gone")


def test_a_shallow_clone_is_refused_with_the_way_out(repo: Repo, tmp_path: Path) -> None:
    repo.line(4)
    subprocess.run(["git", "clone", "-q", "--depth", "2", f"file://{repo.folder}", tmp_path / "cut"], check=True)
    with pytest.raises(UserError, match="git fetch --unshallow"):
        open_repository(tmp_path / "cut").refuse_shallow()
    open_repository(repo.folder).refuse_shallow()


def test_ends_that_are_no_ancestors_have_a_merge_base(repo: Repo) -> None:
    base = repo.commit("base")
    repo.git("checkout", "--quiet", "-b", "release")
    release = repo.commit("release only", r="1")
    repo.git("checkout", "--quiet", "main")
    inside = repo.line(3)
    found = open_repository(repo.folder)
    ends = found.ends("release..main")
    assert ends == Ends(release, inside[-1], (base,))
    graph = found.graph(ends)
    assert set(graph.parents) == set(inside)
    assert graph.bases == (base,)


@pytest.mark.parametrize("shape", ["linear", "criss-cross"])
def test_our_weights_are_those_of_git(repo: Repo, shape: str) -> None:
    if shape == "linear":
        commits = repo.line(9)
        first, last = commits[0], commits[-1]
    else:
        first, last = criss_cross(repo)
    found = open_repository(repo.folder)
    graph = found.graph(found.ends(f"{first}..{last}"))
    suspects = Search(graph, first, last).suspects()
    weights = bisection_weights(suspects, Search(graph, first, last)._parents)
    listed = repo.git("rev-list", "--bisect-all", last, f"^{first}").splitlines()
    gits = {line.split()[0]: int(line.partition("dist=")[2].rstrip(")")) for line in listed}
    assert weights == gits


def test_first_parent(repo: Repo) -> None:
    first = repo.commit("first")
    repo.git("checkout", "--quiet", "-b", "side")
    repo.line(3)
    repo.git("checkout", "--quiet", "main")
    middle = repo.commit("middle", m="1")
    merge = repo.merge("side")
    found = open_repository(repo.folder)
    assert set(found.graph(found.ends(f"{first}..main"), first_parent=True).parents) == {middle, merge}


def test_what_a_commit_is_and_changes(repo: Repo) -> None:
    repo.commit("first", code_py="x = 1")
    sha = repo.commit("docs: say «what»", docs__page="words", tests__test_a_py="pass")
    found = open_repository(repo.folder)
    commit = found.commit(sha)
    assert (commit.author, commit.subject) == ("A. Uthor", "docs: say «what»")
    assert commit.date.startswith("2023-11-14T")
    changes = found.changes(sha)
    assert [change.path for change in changes] == ["docs/page", "tests/test_a.py"]
    assert all(change.is_harmless for change in changes)
    assert not found.changes(repo.commit("code", code_py="x = 2"))[0].is_harmless
    assert found.changes(repo.git("rev-list", "--max-parents=0", "HEAD"))


def test_landed_reverted_landed_again(repo: Repo) -> None:
    repo.commit("first", code="a\nb\nc\n")
    landing = repo.commit("speed up", code="a\nB\nc\n")
    repo.line(2)
    revert = repo.commit("back out", code="a\nb\nc\n")
    again = repo.commit("speed up, again", code="a\nB\nc\n")
    repo.line(1)
    found = open_repository(repo.folder)
    assert found.earlier_landings(again) == (landing,)
    assert found.earlier_landings(landing) == ()
    assert found.reverts(landing, repo.head) == (revert,)
    assert found.reverts(again, repo.head) == ()


def test_the_worktree_leaves_the_repository_as_it_is(repo: Repo, tmp_path: Path) -> None:
    commits = repo.line(6)
    repo.git("bisect", "start", commits[4], commits[0])
    (repo.folder / "notes0").write_text("changed, not committed")
    (repo.folder / "untracked").write_text("new")
    before = snapshot(repo.folder)
    worktree = Worktree(tmp_path / "state" / "tree", open_repository(repo.folder))
    worktree.create(commits[5])
    worktree.start_books(find_fix=False, first_parent=False)
    trees = [worktree.checkout(commit) for commit in commits]
    worktree.enter(commits[5], "bad", find_fix=False)
    worktree.enter(commits[0], "good", find_fix=False)
    worktree.enter(commits[2], "skip", find_fix=False)
    assert trees == [repo.git("rev-parse", f"{commit}^{{tree}}") for commit in commits]
    assert all(f"git bisect {verdict}" in worktree.books() for verdict in ("bad", "good", "skip"))
    (worktree.folder / "notes1").write_text("scribbled over by a probe")
    (worktree.folder / "dropping").write_text("left by a probe")
    worktree.checkout(commits[1])
    assert not (worktree.folder / "dropping").exists()
    assert Git(worktree.folder).line("status", "--porcelain") == ""
    worktree.remove()
    assert snapshot(repo.folder) == before


def test_git_replays_our_books_to_the_same_place(repo: Repo, tmp_path: Path) -> None:
    first, last = criss_cross(repo)
    found = open_repository(repo.folder)
    ends = found.ends(f"{first}..{last}")
    culprit = repo.git("rev-parse", "main^1~2")
    for find_fix in (False, True):
        worktree = Worktree(tmp_path / f"tree{find_fix}", found)
        worktree.create(last)
        worktree.start_books(find_fix, first_parent=False)
        search = Search(found.graph(ends), ends.old, ends.new, find_fix=find_fix)
        while isinstance(step := search.next_step(), Evaluate):
            verdict = "bad" if found.is_ancestor(culprit, step.commit) != find_fix else "good"
            search.mark(step.commit, verdict)
            worktree.enter(step.commit, verdict, find_fix)
        assert step.result.commit == culprit  # type: ignore[union-attr]
        log = tmp_path / "log"
        log.write_text(worktree.books())
        repo.git("bisect", "replay", str(log))
        listing = ("for-each-ref", "--format=%(refname) %(objectname)", "refs/bisect")
        assert repo.git(*listing) == Git(worktree.folder).line(*listing)
        assert f"{'fixed' if find_fix else 'bad'} {culprit}" in repo.git(*listing)
        repo.git("bisect", "reset")


def test_fixups_apply_where_they_are_wanted(repo: Repo, tmp_path: Path) -> None:
    commits = [repo.commit("first", a="0"), *repo.line(3)]
    repo.git("checkout", "--quiet", "-b", "fix", commits[0])
    fix = repo.commit("fix", fixed="1")
    clash = repo.commit("clash", notes0="other")
    repo.git("checkout", "--quiet", "main")
    found = open_repository(repo.folder)
    worktree = Worktree(tmp_path / "tree", found)
    worktree.create(commits[0])
    everywhere, ranged = parse_fixup(fix, found), parse_fixup(f"{fix}@{commits[1]}..{commits[3]}", found)
    plain = worktree.checkout(commits[1])
    assert worktree.checkout(commits[1], [everywhere]) != plain
    assert (worktree.folder / "fixed").read_text() == "1"
    assert worktree.checkout(commits[1], [ranged]) == plain
    assert worktree.checkout(commits[2], [ranged]) != repo.git("rev-parse", f"{commits[2]}^{{tree}}")
    with pytest.raises(BlockedError, match="does not apply"):
        worktree.checkout(commits[3], [parse_fixup(clash, found)])
    with pytest.raises(UserError, match="no range"):
        parse_fixup(f"{fix}@nothing..here", found)


def test_a_revert_on_top(repo: Repo, tmp_path: Path) -> None:
    repo.commit("first", a="0", b="0")
    culprit = repo.commit("culprit", a="1")
    tip = repo.commit("later", b="1")
    found = open_repository(repo.folder)
    worktree = Worktree(tmp_path / "tree", found)
    worktree.create(tip)
    worktree.checkout(tip, revert=culprit)
    assert ((worktree.folder / "a").read_text(), (worktree.folder / "b").read_text()) == ("0", "1")
    stuck = repo.commit("on top of it", a="2")
    with pytest.raises(BlockedError, match="revert of"):
        worktree.checkout(stuck, revert=culprit)
    assert worktree.checkout(tip) == repo.git("rev-parse", f"{tip}^{{tree}}")


def test_submodules_follow_and_come_from_the_users_disk(repo: Repo, tmp_path: Path) -> None:
    inner = Repo(tmp_path / "inner")
    pins = [inner.commit(f"inner {i}", value=str(i)) for i in range(3)]
    repo.commit("first")
    repo.git("submodule", "--quiet", "add", "--name", "deep/inner", str(inner.folder), "lib")
    commits = []
    for pin in pins:
        subprocess.run(["git", "checkout", "-q", pin], cwd=repo.folder / "lib", check=True)
        commits.append(repo.commit(f"pin {pin}"))
    lost = repo.folder / "lib"
    subprocess.run(["git", "-C", lost, "commit", "-q", "--allow-empty", "-m", "never published"], check=True)
    inner.folder.rename(tmp_path / "moved")  # the published address is dead
    found = open_repository(repo.folder)
    before = snapshot(repo.folder)
    worktree = Worktree(tmp_path / "tree", found)
    worktree.create(commits[-1])
    for number, commit in enumerate(commits):
        worktree.checkout(commit)
        assert (worktree.folder / "lib" / "value").read_text() == str(number)
    assert snapshot(repo.folder) == before
    bump = found.changes(commits[1])
    assert [(change.path, change.is_submodule_bump) for change in bump] == [("lib", True)]
    assert (bump[0].old, bump[0].new) == (pins[0], pins[1])
