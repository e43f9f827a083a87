"""`vlmprof bisect` as a person runs it, on real repositories with real commands."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.repositories import Repo, snapshot
from vlmprof.commands.main import main

TRAIN = [sys.executable, "{worktree}/train.py"]
FINE = "print('step 1 loss 2.5')\n"
PLANTED = "raise RuntimeError('planted')\n"
BROKEN = "import nothing_of_the_kind\n"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "vlmprof"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    repo.commit("first", train_py=FINE)
    repo.git("tag", "v1")
    return repo


def bisect(
    capsys: pytest.CaptureFixture[str], repo: Repo, *arguments: str, command: list[str] | None = None
) -> tuple[int, dict[str, Any]]:
    """The exit code and the document."""
    before = snapshot(repo.folder)
    code = main(["bisect", "--repo", str(repo.folder), "--json", *arguments, "--", *(command or TRAIN)])
    assert snapshot(repo.folder) == before
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else {"error": printed.err}


def tries(document: dict[str, Any], role: str = "search") -> list[str]:
    return [probe["commit"]["sha"] for probe in document["probes"] if probe["role"] == role]


def test_a_line_with_broken_commits_around_the_culprit(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.line(6)
    repo.commit("broken", train_py=BROKEN)
    repo.commit("mended", train_py=FINE)
    repo.line(3)
    culprit = repo.commit("plant it", train_py=PLANTED, other_py="x = 1")
    repo.line(2)
    repo.commit("fails otherwise", train_py="raise KeyError('other')\n")
    repo.commit("fails as before", train_py=PLANTED)
    repo.line(6)
    code, document = bisect(capsys, repo, "v1..main")
    answer = document["answer"]
    assert code == 1
    assert (answer["kind"], answer["commits"][0]["sha"]) == ("found", culprit)
    assert answer["commits"][0]["author"] == "A. Uthor"
    assert answer["files"] == ["other.py", "train.py"]
    assert answer["evidence"] == {"bad": ["RuntimeError: planted"], "good": ["step 1 loss 2.5"]}
    assert answer["confirmation"]["culprit_verdicts"] == ["bad", "bad"]
    assert answer["confirmation"]["parent_verdicts"] == ["good", "good"]
    assert answer["confirmation"]["revert"] == "confirmed"
    assert [probe["role"] for probe in document["probes"]][-5:-1] == ["culprit again", "parent again"] * 2
    assert len(tries(document)) <= 7
    assert any("not imported" in note for note in answer["notes"])


def test_a_culprit_on_a_merged_branch(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.git("checkout", "--quiet", "-b", "side")
    repo.line(2)
    culprit = repo.commit("plant it", train_py=PLANTED)
    repo.line(2)
    repo.git("checkout", "--quiet", "main")
    repo.commit("elsewhere", elsewhere="1")
    merge = repo.merge("side")
    repo.commit("later", later="1")
    code, document = bisect(capsys, repo, "v1..main")
    assert (code, document["answer"]["commits"][0]["sha"]) == (1, culprit)
    assert document["answer"]["merge"]["sha"] == merge
    code, document = bisect(capsys, repo, "--first-parent", "v1..main")
    assert "merge" not in document["answer"]
    assert (code, document["answer"]["commits"][0]["sha"]) == (1, merge)
    assert document["answer"]["confirmation"]["revert"] == "confirmed"


def test_a_criss_cross_history(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.git("branch", "other")
    culprit = ""
    for i in range(4):
        repo.commit(f"left {i}", left=str(i))
        repo.git("checkout", "--quiet", "other")
        sha = repo.commit(f"right {i}", right=str(i), **({"train_py": PLANTED} if i == 2 else {}))
        culprit = sha if i == 2 else culprit
        repo.merge("main", subject=f"main into other {i}")
        repo.git("checkout", "--quiet", "main")
        repo.merge("other~1", subject=f"other into main {i}")
    repo.merge("other")
    code, document = bisect(capsys, repo, "v1..main")
    assert (code, document["answer"]["commits"][0]["sha"]) == (1, culprit)


def test_a_release_that_is_no_ancestor(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.git("checkout", "--quiet", "-b", "release")
    repo.commit("release only", version="1")
    repo.git("checkout", "--quiet", "main")
    repo.line(3)
    culprit = repo.commit("plant it", train_py=PLANTED)
    repo.line(3)
    code, document = bisect(capsys, repo, "release..main")
    assert (code, document["answer"]["commits"][0]["sha"]) == (1, culprit)
    assert tries(document, "merge base") == [repo.git("rev-parse", "v1")]


def test_a_fault_mended_on_the_release_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repo = Repo(tmp_path / "other")
    repo.commit("always bad", train_py=PLANTED)
    repo.git("checkout", "--quiet", "-b", "release")
    repo.commit("mended here", train_py=FINE)
    repo.git("checkout", "--quiet", "main")
    repo.line(3)
    code, document = bisect(capsys, repo, "release..main")
    assert (code, document["answer"]["kind"]) == (4, "inconclusive")
    assert "merge base" in document["answer"]["text"]


def test_ends_that_are_not_what_they_are_said_to_be(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.line(3)
    code, document = bisect(capsys, repo, "v1..main")
    assert (code, document["answer"]["kind"]) == (4, "ends-not-confirmed")
    assert "the bad end" in document["answer"]["text"]
    assert "does not fail" in document["answer"]["text"]
    assert Path(document["answer"]["logs"]["seen"]).read_text() == "step 1 loss 2.5\n"
    repo.commit("bad already", train_py=PLANTED)
    repo.line(2)
    code, document = bisect(capsys, repo, "main~2..main")
    assert code == 4
    assert "the good end" in document["answer"]["text"]
    assert "planted" in document["answer"]["text"]


def test_a_fix_is_found_and_the_ends_may_stand_either_way(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.commit("plant it", train_py=PLANTED)
    repo.git("tag", "v2")
    repo.line(4)
    fix = repo.commit("mend it", train_py=FINE)
    repo.line(4)
    for text in ("v2..main", "main..v2"):
        code, document = bisect(capsys, repo, "--find-fix", text)
        assert (code, document["answer"]["commits"][0]["sha"]) == (1, fix)
        assert document["answer"]["confirmation"]["revert"] == "confirmed"
    code, document = bisect(capsys, repo, "main..v2")
    assert code == 2
    assert "did you mean v2..main, or --find-fix?" in document["error"]


def test_skips_around_the_culprit_leave_a_set(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.line(4)
    commits = [repo.commit("no build", train_py=BROKEN), *repo.line(2), repo.commit("bad at last", train_py=PLANTED)]
    repo.line(4)
    code, document = bisect(capsys, repo, "v1..main")
    assert (code, document["answer"]["kind"]) == (1, "found-set")
    assert [commit["sha"] for commit in document["answer"]["commits"]] == commits
    code, document = bisect(
        capsys, repo, "v1..main", command=["sh", "-c", "grep -q nothing train.py && exit 125; true"]
    )
    assert document["answer"]["kind"] == "ends-not-confirmed"


def test_landed_reverted_and_landed_again(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    landing = repo.commit("speed up", train_py=PLANTED)
    repo.line(8)
    repo.commit("back out", train_py=FINE)
    repo.line(1)
    again = repo.commit("speed up, again", train_py=PLANTED)
    repo.line(1)
    code, document = bisect(capsys, repo, "v1..main")
    answer = document["answer"]
    assert (code, answer["commits"][0]["sha"]) == (1, again)
    assert [commit["sha"] for commit in answer["landed_before"]] == [landing]


def test_landed_again_somewhere_that_cannot_be_tested(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.commit("speed up", train_py=PLANTED)
    repo.line(8)
    repo.commit("back out", train_py=FINE)
    last = [repo.commit("no build", train_py=BROKEN), repo.commit("again", train_py=PLANTED)]
    code, document = bisect(capsys, repo, "v1..main")
    assert (code, document["answer"]["kind"]) == (1, "found-set")
    assert [commit["sha"] for commit in document["answer"]["commits"]] == last
    assert "had the symptom before" in document["answer"]["notes"][0]


def test_repeats_that_disagree_are_intermittent(repo: Repo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = tmp_path / "count"
    flaky = (
        f"import pathlib; f = pathlib.Path({str(count)!r}); n = len(f.read_text()) if f.exists() else 0\n"
        "f.write_text('x' * (n + 1))\nassert n > 2\n"
    )
    repo.line(2)
    culprit = repo.commit("flaky", train_py=flaky)
    code, document = bisect(capsys, repo, "v1..main", "--confirm", "3")
    assert (code, document["answer"]["kind"]) == (4, "intermittent")
    assert document["answer"]["commits"][0]["sha"] == culprit
    assert "3 times bad and 1 times good" in document["answer"]["text"]


def test_a_culprit_of_documentation_is_suspicious(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.line(2)
    repo.commit("say more", docs__page="planted")
    repo.line(2)
    code, document = bisect(capsys, repo, "v1..main", command=["sh", "-c", "test ! -e docs/page"])
    assert code == 1
    assert any("suspicious" in note for note in document["answer"]["notes"])


def test_a_submodule_is_entered(repo: Repo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = Repo(tmp_path / "inner")
    good = inner.commit("inner first", value="0")
    inner.line(3)
    inner_culprit = inner.commit("inner plant", value="1")
    bad = inner.line(3)[-1]
    repo.git("submodule", "--quiet", "add", str(inner.folder), "lib")
    bumps = []
    for pin in (good, bad):
        subprocess.run(["git", "checkout", "-q", pin], cwd=repo.folder / "lib", check=True)
        bumps.append(repo.commit(f"pin {pin[:4]}"))
        repo.line(2)
    code, document = bisect(capsys, repo, f"{bumps[0]}..main", command=["sh", "-c", "test $(cat lib/value) = 0"])
    answer = document["answer"]
    assert (code, answer["commits"][0]["sha"]) == (1, bumps[1])
    assert answer["inside"]["commits"][0]["sha"] == inner_culprit
    assert answer["inside"]["text"].startswith("in lib: ")


def test_a_fixup_makes_a_stretch_testable(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.commit("needs lib", train_py="import lib\n" + FINE)
    repo.line(2)
    culprit = repo.commit("plant it", train_py="import lib\n" + PLANTED)
    repo.line(2)
    fix = repo.commit("bring lib", lib_py="")
    assert bisect(capsys, repo, "v1..main")[1]["answer"]["kind"] == "found-set"
    code, document = bisect(capsys, repo, "--fixup", fix, "v1..main")
    assert (code, document["answer"]["commits"][0]["sha"]) == (1, culprit)


def test_measurements_are_reused_with_other_ends(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.line(5)
    culprit = repo.commit("plant it", train_py=PLANTED)
    repo.line(5)
    _, first = bisect(capsys, repo, "v1..main", "--confirm", "0")
    _, again = bisect(capsys, repo, "v1..main", "--confirm", "0")
    assert all(probe.get("cached") for probe in again["probes"])
    _, other = bisect(capsys, repo, "v1~0..main~1", "--confirm", "0", "--symptom", "crash")
    assert other["answer"]["commits"][0]["sha"] == culprit
    assert any(probe.get("cached") for probe in other["probes"])
    _, changed = bisect(capsys, repo, "v1..main", "--confirm", "0", "--timeout", "60")
    assert not any(probe.get("cached") for probe in changed["probes"])
    assert not any(probe.get("cached") for probe in first["probes"])


def test_a_bisect_of_the_users_own_goes_on_undisturbed(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    commits = [*repo.line(3), repo.commit("plant it", train_py=PLANTED), *repo.line(3)]
    repo.git("bisect", "start", commits[-1], commits[0])
    (repo.folder / "train.py").write_text("in the middle of something\n")
    code, document = bisect(capsys, repo, "v1..main")  # compares every file, .git included
    assert (code, document["answer"]["commits"][0]["sha"]) == (1, commits[3])


def test_a_program_too_long_for_a_file_name(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    culprit = repo.commit("plant it", train_py=PLANTED)
    command = [sys.executable, "-c", "x = 1\n" * 2000 + "import train"]
    code, document = bisect(capsys, repo, "v1..main", "--confirm", "0", command=command)
    assert (code, document["answer"]["commits"][0]["sha"]) == (1, culprit)


def test_a_script_that_no_commit_holds(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    repo.line(2)
    culprit = repo.commit("plant it", train_py=PLANTED)
    Path("my_test.sh").write_text("python train.py\n")
    code, document = bisect(capsys, repo, "v1..main", command=["sh", "my_test.sh"])
    assert (code, document["answer"]["commits"][0]["sha"]) == (1, culprit)


def test_a_partial_clone_fetches_into_the_worktree_only(
    repo: Repo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repo.line(3)
    culprit = repo.commit("plant it", train_py=PLANTED)
    repo.line(2, train_py=PLANTED + "# moved\n")
    repo.git("config", "uploadpack.allowFilter", "true")
    repo.git("config", "uploadpack.allowAnySHA1InWant", "true")
    cut = tmp_path / "cut"
    subprocess.run(["git", "clone", "-q", "--filter=blob:none", f"file://{repo.folder}", cut], check=True)
    before = snapshot(cut)
    assert main(["bisect", "v1..main", "--repo", str(cut), "--json", "--", *TRAIN]) == 1
    assert json.loads(capsys.readouterr().out)["answer"]["commits"][0]["sha"] == culprit
    assert snapshot(cut) == before


def test_status_log_and_abort(repo: Repo, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["bisect", "--repo", str(repo.folder)]
    assert main([*where, "--status"]) == 2
    repo.line(3)
    culprit = repo.commit("plant it", train_py=PLANTED)
    bisect(capsys, repo, "v1..main")
    assert main([*where, "--status"]) == 0
    shown = capsys.readouterr().out
    assert culprit in shown
    assert "Traceback" not in shown
    assert main([*where, "--log"]) == 0
    log = capsys.readouterr().out
    assert f"git bisect bad {culprit}" in log
    Path("journal").write_text(log)
    repo.git("bisect", "replay", str(Path("journal").resolve()))
    assert repo.git("rev-parse", "refs/bisect/bad") == culprit
    repo.git("bisect", "reset")
    assert main([*where, "--resume"]) == 1
    assert main([*where, "--abort"]) == 0
    assert main([*where, "--abort"]) == 2
    assert main([*where, "--resume"]) == 2
    assert not list(state.glob("*/tree"))


def test_the_answer_on_a_screen_and_as_markdown(repo: Repo, capsys: pytest.CaptureFixture[str]) -> None:
    culprit = repo.commit("plant | it", train_py=PLANTED)
    repo.line(1)
    arguments = ["bisect", "--repo", str(repo.folder), "v1..main"]
    assert main([*arguments, "--", *TRAIN]) == 1
    printed = capsys.readouterr()
    assert f"found: {culprit[:12]} 'plant | it' is the first bad commit: crash: RuntimeError: planted" in printed.out
    assert "revert  on the bad end: confirmed" in printed.out
    assert "\x1b" not in printed.out
    assert printed.err.count("\n") >= 7
    assert main([*arguments, "--markdown", "--", *TRAIN]) == 1
    text = capsys.readouterr().out
    assert text.startswith("# Bisect of v1..main")
    assert "plant \\| it" in text


WRONG = [
    (["main"], 2, "is not a range"),
    (["v1..gone"], 2, "'gone' is no commit"),
    (["main..v1"], 2, "did you mean v1..main"),
    (["v1..v1"], 2, "holds no commits"),
    (["v1..main", "--symptom", "slow"], 2, "there is no symptom 'slow'"),
    (["v1..main", "--recipe", "gone"], 2, "there is no recipe 'gone'"),
    (["v1..main", "--recipe", "bad.toml"], 2, "there is no key 'timeuot'"),
    (["v1..main", "--fixup", "gone"], 2, "'gone' is no commit"),
    (["v1..main", "--confirm", "-1"], 2, "--confirm takes"),
    (["v1..main", "--workload", "tinny"], 2, "did you mean 'tiny'"),
    (["v1..main", "--set", "seq_lenght=1"], 2, "did you mean"),
    (["v1..main", "--memory-limit", "lots"], 2, "'lots' is not a size"),
    (["v1..main", "--", "no-such-program"], 2, "'no-such-program' does not exist"),
    ([], 2, "name the range"),
    (["--resume", "v1..main"], 2, "leave the range out"),
    (["--resume"], 2, "no bisect of this repository"),
]


@pytest.mark.parametrize(("arguments", "code", "expected"), WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_wrong_input_is_one_sentence(
    repo: Repo, state: Path, arguments: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repo.line(2)
    Path("bad.toml").write_text("timeuot = 3\n")
    assert main(["bisect", "--repo", str(repo.folder), *arguments]) == code
    printed = capsys.readouterr()
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not list(state.glob("*/bisect.json"))


def test_no_repository_and_no_git(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", "v1..main", "--repo", str(tmp_path)]) == 2
    assert "not in a git repository" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["bisect", "v1..main", "--repo", str(repo.folder)]) == 5
    assert "no git on PATH" in capsys.readouterr().err


def test_a_state_folder_that_cannot_be_written(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repo.line(2)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert main(["bisect", "v1..main", "--repo", str(repo.folder), "--", *TRAIN]) == 5
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(shutil.which("mount") is None or os.getuid() != 0, reason="needs a small disk, so root and mount")
def test_a_full_disk(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=False).returncode:
        pytest.skip("mount is not allowed here")
    try:
        repo.commit("large", large="".join(str(i) for i in range(300_000)), train_py=PLANTED)
        monkeypatch.setenv("XDG_STATE_HOME", str(small))
        command = [sys.executable, "-m", "vlmprof", "bisect", "v1..main", "--repo", str(repo.folder), "--", *TRAIN]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 5
        assert "Traceback" not in done.stderr
    finally:
        subprocess.run(["umount", small], check=True)
