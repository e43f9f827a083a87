"""Nights with real git and real processes, but without a launch of Megatron: what is refused before one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.repositories import Repo, snapshot
from vlmprof.bisect.recipes import Recipe
from vlmprof.commands.main import main
from vlmprof.errors import MachineError, UserError
from vlmprof.nightly.budget import Budget, BudgetError
from vlmprof.nightly.search import Search, keep
from vlmprof.nightly.target import export, open_target, resolve, without_credentials
from vlmprof.records.bisect import CommitRecord, Probe

SUITE = '[workloads.one]\nworkload = "tiny"\n\n[workloads.two]\nworkload = "tiny"\nset = ["data.seq_length=128"]\n'


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    (tmp_path / "suite.toml").write_text(SUITE)
    repo = Repo(tmp_path / "target")
    repo.line(2)
    repo.git("tag", "start")
    repo.line(2)
    repo.git("branch", "other")
    (repo.folder / "notes0").write_text("not committed")
    return repo


def nightly(repo: Repo, *arguments: str) -> int:
    common = ["--suite", "suite.toml", "--target", str(repo.folder), "--state", "state"]
    return main(["nightly", *common, *arguments])


def result(folder: str = "out") -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(folder, "result.json").read_text())
    return document


def test_a_target_that_cannot_be_trained_fails_every_workload_and_touches_nothing(
    repo: Repo, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(repo.folder)
    assert nightly(repo, "--out", "out") == 3
    assert snapshot(repo.folder) == before
    document = result()
    assert [part["status"] for part in document["workloads"]] == ["failed", "failed"]
    assert {part["outcome"]["class"] for part in document["workloads"]} == {"setup"}
    assert all("no good commit is known" in part["notes"][0] for part in document["workloads"])
    assert document["target"]["commit"]["sha"] == repo.head
    assert {path.name for path in Path("out").iterdir()} >= {"result.json", "summary.md", "report.html"}
    assert not Path("state/trees").exists()
    out = capsys.readouterr().out
    assert out == Path("out/summary.md").read_text()
    assert "2 failed of 2" in out
    assert nightly(repo, "--out", "out") == 2
    assert "holds a finished night" in capsys.readouterr().err


def test_a_matter_keeps_its_id_from_night_to_night(repo: Repo) -> None:
    for night in ("first", "second"):
        assert nightly(repo, "--out", night) == 3
        repo.line(1)
    ids = [[part["matter"]["id"] for part in result(night)["workloads"]] for night in ("first", "second")]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2


def test_an_interrupted_night_goes_on_and_another_one_may_not_take_its_folder(
    repo: Repo, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nightly(repo, "--out", "out") == 3
    begun = result()
    del begun["finished"]
    del begun["workloads"][1]["outcome"]
    Path("out/result.json").write_text(json.dumps(begun))
    repo.line(1)  # main moves on meanwhile: the night stays on its commit
    assert nightly(repo, "--out", "out", "--ref", "start") == 2
    assert "unfinished night of another" in capsys.readouterr().err
    assert nightly(repo, "--out", "out", "--json") == 3
    told = capsys.readouterr()
    assert json.loads(told.out)["target"] == begun["target"]
    assert "one: training" not in told.err
    assert "two: training" in told.err
    assert result()["created"] == begun["created"]


def test_a_night_that_was_killed_as_it_began_does_not_bar_its_folder(repo: Repo) -> None:
    Path("out").mkdir()
    for name in ("before.json", ".before.json.x1y2", ".result.json.x1y2"):
        Path("out", name).write_text("{")
    assert nightly(repo, "--out", "out") == 3
    assert not list(Path("out").glob(".*"))
    assert result()["finished"]


def test_what_other_suites_remember_stays(repo: Repo) -> None:
    Path("other.toml").write_text(SUITE.replace("one", "another"))
    assert nightly(repo, "--out", "a") == 3
    assert nightly(repo, "--out", "b", "--suite", "other.toml") == 3
    known = json.loads(Path("state/state.json").read_text())["workloads"]
    assert sorted(name.split("-")[0] for name in known) == ["another", "one", "two"]


def test_folders_of_nights_are_made_in_the_state(repo: Repo) -> None:
    assert nightly(repo) == 3
    (folder,) = Path("state/nights").iterdir()
    assert folder.name.endswith(repo.head[:12])
    assert nightly(repo, "--ref", "start") == 3
    assert len(list(Path("state/nights").iterdir())) == 2


def test_a_budget_that_is_used_up_says_what_was_not_done(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    assert nightly(repo, "--out", "out", "--budget", "0.0000001") == 4
    assert [part["status"] for part in result()["workloads"]] == ["not-done", "not-done"]
    assert [part["not_done"] for part in result()["workloads"]] == [["run"], ["run"]]
    assert "Not done: one: run; two: run." in capsys.readouterr().out
    assert result()["finished"]


def test_one_night_at_a_time(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    Path("state").mkdir()
    hold = "import fcntl; f = open('state/lock', 'a'); fcntl.flock(f, 2); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        assert nightly(repo) == 2
        holder.kill()
    assert "is running: wait for it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--suite", "nosuch"), 2, "no suite 'nosuch'"),
        (("--target", "nowhere"), 2, "no folder 'nowhere'"),
        (("--target", "file:///nowhere/at/all.git"), 5, "cannot be cloned"),
        (("--ref", "nosuch"), 2, "'nosuch' is no commit"),
        (("--ref", "--upload-pack=x"), 2, "is no commit"),
        (("--bisect", "main"), 2, "is not a range"),
        (("--bisect", "main..start"), 2, "holds no commits"),
        (("--budget", "0"), 2, "above 0"),
        (("--budget", "nan"), 2, "above 0"),
        (("--out", "suite.toml"), 2, "is not empty"),
        (("--out", "target"), 2, "is not empty"),
        (("--state", "suite.toml"), 5, "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(
    repo: Repo, arguments: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(repo.folder)
    assert nightly(repo, *arguments) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert words in told.err
    assert told.err.count("\n") == 1
    assert not Path("state/nights").exists()
    assert snapshot(repo.folder) == before


def test_damaged_and_newer_state(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    Path("state").mkdir()
    for text, words in (
        ("{", "is damaged"),
        ('{"schema": "vlmprof.nightly-state/9"}', "newer than the vlmprof.nightly-state/1"),
        ('{"schema": "vlmprof.run/1"}', "vlmprof.run/1"),
    ):
        Path("state/state.json").write_text(text)
        assert nightly(repo) == 2
        assert words in capsys.readouterr().err
        assert Path("state/state.json").read_text() == text


def test_a_target_by_address_is_cloned_once_brought_up_to_date_and_exported(repo: Repo, tmp_path: Path) -> None:
    address = f"file://{repo.folder}"
    clone = open_target(address, tmp_path / "targets")
    assert resolve(clone, "main", address) == repo.head
    repo.git("commit", "--quiet", "--amend", "--allow-empty", "-m", "rewritten")
    repo.git("update-ref", "refs/pull/7/head", repo.git("commit-tree", "-m", "from a fork", "HEAD^{tree}"))
    repo.git("branch", "-D", "other")
    clone = open_target(address, tmp_path / "targets")
    assert resolve(clone, "main", address) == repo.head
    with pytest.raises(UserError):
        resolve(clone, "other", address)
    forked = resolve(clone, "refs/pull/7/head", address)
    assert forked == repo.git("rev-parse", "refs/pull/7/head")
    tree = export(clone, repo.head, tmp_path / "trees")
    assert (tree / "notes0").read_text() != "not committed"
    shutil.rmtree(repo.folder)
    with pytest.raises(MachineError, match="cannot be fetched"):
        open_target(address, tmp_path / "targets")


def test_credentials_are_not_shown(tmp_path: Path) -> None:
    address = "https://user:hunter2@127.0.0.1:1/nowhere.git"
    assert without_credentials(address) == "https://127.0.0.1:1/nowhere.git"
    with pytest.raises(MachineError) as told:
        open_target(address, tmp_path)
    assert "hunter2" not in str(told.value)


# The bisect of a night, with a probe that takes no time.


class Watcher:
    def __init__(self) -> None:
        self.tried_commits: list[str] = []

    def trying(self, commit: CommitRecord, role: str, steps_left: int) -> None:
        pass

    def tried(self, probe: Probe, steps_left: int) -> None:
        if not probe.cached:
            self.tried_commits.append(probe.commit.sha)


class Short(Budget):
    """For so many attempts."""

    def __init__(self, attempts: int) -> None:
        super().__init__(None)
        self.left = attempts

    @property
    def used_up(self) -> bool:
        self.left -= 1
        return self.left < 0


def recipe(name: str = "tiny") -> Recipe:
    return Recipe(command=("sh", "-c", f"echo {name}; test ! -f bad"), confirm=1)


def history(folder: Path) -> tuple[Repo, str]:
    repo = Repo(folder)
    repo.line(7)
    culprit = repo.commit("plant it", bad="1")
    repo.line(8)
    return repo, culprit


def search(repo: Repo, folder: Path, budget: Budget | None = None) -> tuple[Search, Watcher]:
    watch = Watcher()
    return Search(open_target(str(repo.folder), folder), folder / "bisect", budget or Budget(None), watch), watch


def test_a_bisect_without_time_goes_on_in_the_next_night_to_a_newer_commit(tmp_path: Path) -> None:
    repo, culprit = history(tmp_path / "target")
    first = repo.git("rev-list", "--max-parents=0", "main")
    short, watch = search(repo, tmp_path, Short(3))
    with pytest.raises(BudgetError):
        short.between(first, repo.head, recipe(), "", ())
    tried = watch.tried_commits
    assert len(tried) == 3
    repo.line(3)
    again, watch = search(repo, tmp_path)
    done = again.between(first, repo.head, recipe(), "", ())
    assert done.answer
    assert done.answer.commits[0].sha == culprit
    assert not set(tried) & {probe.commit.sha for probe in done.probes[3:] if probe.role in ("bad end", "good end")}
    assert [probe.commit.sha for probe in done.probes[:3]] == tried


def test_another_question_drops_an_unfinished_bisect(tmp_path: Path) -> None:
    repo, culprit = history(tmp_path / "target")
    first = repo.git("rev-list", "--max-parents=0", "main")
    short, _ = search(repo, tmp_path, Short(2))
    with pytest.raises(BudgetError):
        short.between(first, repo.head, recipe("other"), "", ())
    again, _ = search(repo, tmp_path)
    done = again.between(first, repo.head, recipe(), "", ())
    assert "echo tiny" in " ".join(done.plan.command)
    assert done.answer
    assert done.answer.commits[0].sha == culprit


def test_a_culprit_of_another_workload_is_tried_first(tmp_path: Path) -> None:
    repo, culprit = history(tmp_path / "target")
    first = repo.git("rev-list", "--max-parents=0", "main")
    hinted, watch = search(repo, tmp_path)
    done = hinted.between(first, repo.head, recipe(), "", [repo.git("rev-parse", f"{culprit}~2"), culprit])
    assert done.answer
    assert (done.answer.kind, done.answer.commits[0].sha) == ("found", culprit)
    assert len(watch.tried_commits) <= 2 + 4  # the wrong hint's ends, then the right one's, twice each
    outside, watch = search(repo, tmp_path / "b")
    done = outside.between(repo.git("rev-parse", f"{culprit}~1"), repo.head, recipe(), "", [first])
    assert done.answer
    assert done.answer.commits[0].sha == culprit


def test_an_answer_of_tonight_is_taken_and_an_older_one_is_not(tmp_path: Path) -> None:
    repo, _ = history(tmp_path / "target")
    ends = repo.git("rev-list", "--max-parents=0", "main"), repo.head
    quick, watch = search(repo, tmp_path)
    done = quick.between(*ends, recipe(), "", ())
    count = len(watch.tried_commits)
    assert quick.between(*ends, recipe(), done.created, ()) == done
    assert len(watch.tried_commits) == count
    quick.between(*ends, recipe(), "9999-12-31", ())
    assert len(watch.tried_commits) > count  # the confirmation, anew


def test_what_is_kept_of_a_bisect_needs_nothing_but_its_folder(tmp_path: Path) -> None:
    repo, culprit = history(tmp_path / "target")
    quick, _ = search(repo, tmp_path)
    done = quick.between(repo.git("rev-list", "--max-parents=0", "main"), repo.head, recipe(), "", ())
    kept = keep(done, quick.state, tmp_path / "night" / "bisect")
    logs = {probe.observation.log for probe in kept.probes}
    assert "" not in logs
    assert all((tmp_path / "night" / "bisect" / log).read_text() == "tiny\n" for log in logs)
    assert culprit in (tmp_path / "night" / "bisect" / "git-bisect.log").read_text()
    assert str(tmp_path) not in kept.model_dump_json(exclude={"plan"})
