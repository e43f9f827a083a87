"""The workflow's own steps, taken from the YAML and run in a scratch clone as a runner would."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.test_nightly_megatron import SMALL, planted
from tests.unit.test_nightly_issues import OPEN, night, part
from vlmprof.records.store import dump_json

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
GH = """
import json, pathlib, sys
calls = pathlib.Path({calls!r})
files = [pathlib.Path(word.partition("=")[2]) for word in sys.argv if word.startswith("--body-file")]
body = files[0].read_text() if files else ""
with calls.open("a") as file:
    file.write(json.dumps([sys.argv[1:], body]) + "\\n")
if sys.argv[1:3] == ["issue", "list"]:
    print(pathlib.Path({listed!r}).read_text())
"""


def workflow(name: str = "nightly") -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())
    return document


def run_steps(job: str) -> list[dict[str, Any]]:
    return [step for step in workflow()["jobs"][job]["steps"] if "run" in step]


def resolved(text: str, inputs: dict[str, str]) -> str:
    """`${{ inputs.NAME || 'default' }}`, which is all that the steps use besides `accept` and the token."""

    def value(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"] or ""
        return inputs.get(name, "") or default

    plain = re.sub(r"\$\{\{ inputs\.(?P<name>\w+)(?: \|\| '(?P<default>[^']*)')? \}\}", value, text)
    accept = "--accept" if inputs.get("accept") else ""
    return plain.replace("${{ inputs.accept && '--accept' || '' }}", accept).replace("${{ github.token }}", "a-token")


def perform(step: dict[str, Any], folder: Path, environment: dict[str, str], inputs: dict[str, str]) -> int:
    own = {**workflow()["env"], **step.get("env", {})}
    given = {name: resolved(str(value), inputs) for name, value in own.items()}
    assert "${{" not in step["run"]
    assert "${{" not in "".join(given.values())
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]  # as GitHub's runner
    return subprocess.run(shell, cwd=folder, env={**environment, **given}, check=False).returncode


@pytest.fixture
def scratch(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A clone of this repository, and an environment in which `vlmprof` is the clone's, as after its install step."""
    clone, bin_ = tmp_path / "scratch", tmp_path / "bin"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    bin_.mkdir()
    (bin_ / "vlmprof").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vlmprof "$@"\n')
    (bin_ / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for script in bin_.iterdir():
        script.chmod(0o755)
    paths = {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(clone)}
    return clone, {**os.environ, **paths, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_steps_of_a_night_name_the_planted_commit(tmp_path: Path, scratch: tuple[Path, dict[str, str]]) -> None:
    clone, environment = scratch
    (tmp_path / "small.toml").write_text(SMALL)
    repo, culprit = planted(tmp_path / "megatron-core", "raise RuntimeError('planted in the router')")
    inputs = {"target": str(repo.folder), "suite": str(tmp_path / "small.toml")}
    steps = {step["name"]: step for step in run_steps("cpu")}
    assert list(steps) == ["Install", "Night", "Summary"]
    assert perform(steps["Night"], clone, environment, {**inputs, "ref": "release"}) == 0
    (clone / "night").rename(clone / "last-night")
    assert perform(steps["Night"], clone, environment, {**inputs, "ref": "bad"}) == 1
    assert perform(steps["Summary"], clone, environment, inputs) == 0
    summary = (tmp_path / "summary.md").read_text()
    assert f"`{culprit[:12]}` cache what the router saw" in summary
    (clone / "nights").mkdir()
    (clone / "night").rename(clone / "nights" / "night-cpu")
    calls = fake_gh(tmp_path, [])
    (step,) = (step for step in run_steps("issues") if step["name"] != "Install")
    assert perform(step, clone, environment, {}) == 0
    told = asked(calls)
    assert [words[:2] for words, _ in told] == [["issue", "list"], ["label", "create"], ["issue", "create"]]
    assert culprit[:12] in told[-1][1]


def fake_gh(tmp_path: Path, listed: list[dict[str, Any]]) -> Path:
    """A gh on PATH that answers with `listed`; returns the file that it writes what it was asked to."""
    calls, answer, gh = tmp_path / "calls", tmp_path / "listed.json", tmp_path / "bin" / "gh"
    calls.unlink(missing_ok=True)
    gh.parent.mkdir(exist_ok=True)
    answer.write_text(json.dumps(listed))
    gh.write_text(f"#!{sys.executable}\n" + GH.format(calls=str(calls), listed=str(answer)))
    gh.chmod(0o755)
    return calls


def asked(calls: Path) -> list[Any]:
    return [json.loads(line) for line in calls.read_text().splitlines()]


def test_issues_are_opened_updated_and_closed_with_arguments_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = OPEN.model_copy(update={"title": "$(touch pwned) `touch pwned`; --repo=x\n@you"})
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    script = runpy.run_path(str(ROOT / "scripts" / "nightly_issues.py"))
    file = tmp_path / "result.json"

    def asks(matter: Any, listed: list[dict[str, Any]]) -> list[Any]:
        file.write_text(dump_json(night(part("x", matter))))
        calls = fake_gh(tmp_path, listed)
        monkeypatch.setattr(sys, "argv", ["nightly_issues.py", str(file)])
        assert script["main"]() == 0
        return asked(calls)

    opened = asks(evil, [])
    assert [words[:2] for words, _ in opened] == [["issue", "list"], ["label", "create"], ["issue", "create"]]
    create, body = opened[-1]
    assert [word.partition("=")[0] for word in create] == ["issue", "create", "--title", "--body-file", "--label"]
    assert "$(touch pwned)" in create[2]
    assert not list(tmp_path.rglob("pwned"))
    issue = {"number": 7, "body": body, "state": "OPEN"}
    assert len(asks(evil, [issue])) == 1  # nothing new
    edited = asks(evil, [{**issue, "body": body + "old"}])
    assert edited[-1][0][:3] == ["issue", "edit", "7"]
    closed = asks(evil.model_copy(update={"closed_by": OPEN.since}), [issue])
    assert [words[:3] for words, _ in closed[1:]] == [["issue", "comment", "7"], ["issue", "close", "7"]]


def test_only_the_issues_job_may_write_and_every_action_is_pinned() -> None:
    for name in ("ci", "nightly"):
        document = workflow(name)
        assert document["permissions"] == {}
        for job_name, job in document["jobs"].items():
            writes = [scope for scope, right in job["permissions"].items() if right != "read"]
            assert writes == (["issues"] if job_name == "issues" else [])
            uses = [step["uses"] for step in job["steps"] if "uses" in step]
            assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in uses)


def test_the_gpu_job_is_skipped_where_no_runner_is_named() -> None:
    job = workflow()["jobs"]["gpu"]
    assert job["runs-on"] == "${{ vars.VLMPROF_GPU_LABEL }}"
    assert job["if"] == "${{ vars.VLMPROF_GPU_LABEL != '' }}"
    assert [step["run"] for step in run_steps("gpu") if step["name"] == "Night"] == [
        step["run"].replace("--budget=240", "--budget=480") for step in run_steps("cpu") if step["name"] == "Night"
    ]
