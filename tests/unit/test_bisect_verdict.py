"""Verdicts, last words and recipes: pure tables."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vlmprof.bisect.recipes import load_recipe, recipes
from vlmprof.bisect.symptoms import Sighting, last_words, sight
from vlmprof.bisect.verdict import judge, judge_metric
from vlmprof.errors import UserError
from vlmprof.records.bisect import FailureSymptom, Held, Observation


def seen(failure_class: str = "", signature: str = "", code: int | None = 1, blocked: str = "") -> Observation:
    return Observation(exit_code=code, failure_class=failure_class, signature=signature, blocked=blocked)


FINE = seen(code=0)
OOM = seen("oom", "OutOfMemoryError: Tried to allocate N GiB @ router.py:forward")
OOM_ELSEWHERE = seen("oom", "OutOfMemoryError: Tried to allocate N GiB @ loss.py:forward")
CRASH = seen("crash", "RuntimeError: shapes differ @ router.py:forward")
REWORDED = seen("crash", "RuntimeError: the shapes do not match @ router.py:forward")
OTHER = seen("crash", "KeyError: 'x' @ data.py:load")
SETUP = seen("setup", "ModuleNotFoundError: No module named 'x' @ a.py:<module>")
HANG = seen("hang", "time limit", code=None)
PLAIN, PLAIN_7, KILLED = seen(), seen(code=7), seen("killed", "killed SIGKILL", 137)

VERDICTS: list[tuple[FailureSymptom, Observation | None, Observation, str]] = [
    ("same", None, CRASH, "bad"),
    ("same", None, SETUP, "bad"),
    ("same", None, FINE, "good"),
    ("same", CRASH, CRASH, "bad"),
    ("same", CRASH, FINE, "good"),
    ("same", CRASH, OTHER, "skip"),
    ("same", CRASH, OOM, "skip"),
    ("same", CRASH, REWORDED, "bad"),
    ("same", CRASH, SETUP, "skip"),
    ("same", SETUP, SETUP, "bad"),
    ("same", OOM, OOM_ELSEWHERE, "bad"),
    ("same", PLAIN, PLAIN_7, "bad"),
    ("same", PLAIN, KILLED, "skip"),
    ("same", PLAIN, SETUP, "skip"),
    ("same", KILLED, KILLED, "bad"),
    ("same", KILLED, PLAIN, "skip"),
    ("oom", None, OOM, "bad"),
    ("oom", OOM, CRASH, "skip"),
    ("oom", OOM, PLAIN, "skip"),
    ("nan", None, seen("nan", "loss", code=0), "bad"),
    ("oom", None, seen("oom", "caught and gone on", code=0), "good"),
    ("hang", HANG, HANG, "bad"),
    ("hang", HANG, KILLED, "skip"),
    ("crash", None, seen("cuda-fault", "illegal access"), "bad"),
    ("any", None, PLAIN, "bad"),
    ("any", None, SETUP, "skip"),
    ("any", None, seen("hardware", "ECC"), "skip"),
    ("same", PLAIN, seen(code=125), "skip"),
    ("any", None, seen(blocked="no submodule", code=None), "skip"),
]


@pytest.mark.parametrize(("symptom", "reference", "observed", "verdict"), VERDICTS)
def test_verdicts(symptom: FailureSymptom, reference: Observation | None, observed: Observation, verdict: str) -> None:
    judgement = judge(observed, symptom, reference)
    assert judgement.verdict == verdict
    assert judgement.reason


HELD = [
    (FINE, Held(verdict="worse", change=0.1, text="peak +10 %"), "bad", "peak"),
    (FINE, Held(verdict="same"), "good", ""),
    (FINE, Held(verdict="better", change=-0.1), "good", ""),
    (FINE, Held(verdict="undecided", text="too few runs"), "skip", "too few runs"),
    (FINE, None, "skip", "no record"),
    (OOM, Held(verdict="worse", change=0.1), "skip", "it fails"),
    (seen(blocked="no submodule"), None, "skip", "no submodule"),
    (seen(code=125), None, "skip", "cannot be tested"),
]


@pytest.mark.parametrize(("observed", "held", "verdict", "reason"), HELD)
def test_verdicts_on_a_metric(observed: Observation, held: Held | None, verdict: str, reason: str) -> None:
    judgement = judge_metric(observed, "memory_peak", held)
    assert judgement.verdict == verdict
    assert reason in judgement.reason


def test_a_changed_message_is_a_warning() -> None:
    assert judge(REWORDED, "same", CRASH).warning
    assert judge(OOM_ELSEWHERE, "oom", OOM).warning
    assert not judge(CRASH, "same", CRASH).warning


TRACE = """noise
Traceback (most recent call last):
  File "/a/b/first.py", line 3, in <module>
    go()
  File "/tmp/tree-8123/router.py", line 41, in forward
    raise RuntimeError
RuntimeError: buffer 17 at 0x7f00 of /tmp/tree-8123/x.bin differs
"""


def test_last_words_are_the_same_from_run_to_run() -> None:
    found = last_words(TRACE)
    assert found.failure_class == "crash"
    assert found.signature == "RuntimeError: buffer N at 0x… of x.bin differs @ router.py:forward"
    moved = TRACE.replace("8123", "9").replace("0x7f00", "0x1").replace("buffer 17", "buffer 3")
    assert last_words(moved).signature == found.signature
    assert last_words("nothing\nof note\n").failure_class == ""
    assert last_words("").evidence == ()


def test_the_failures_room_is_asked_first(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(TRACE)

    def diagnose(logs: Any, exit_code: int | None) -> Any:
        assert (list(logs), exit_code) == ([log], 3)
        return SimpleNamespace(failure_class="oom", signature="s", message=None, reading="r", evidence=["e"])

    assert sight(log, 3, diagnose) == Sighting("oom", "s", "r", ("e",))
    unknown = SimpleNamespace(failure_class=None, signature=None, message=None, evidence=[])
    assert sight(log, 1, lambda logs, code: unknown).failure_class == "crash"


def test_the_shipped_recipes_are_whole() -> None:
    shipped = recipes()
    named = {name: name for name in ("oom", "nan", "hang", "crash")} | {"slower": "step_ms", "larger": "memory_peak"}
    assert set(shipped) == set(named)
    for name, symptom in named.items():
        recipe = load_recipe(name, {})
        assert recipe.symptom == symptom
        assert recipe.description


def test_flags_count_instead_of_the_recipe_and_the_working_folder_comes_first() -> None:
    Path("bisect").mkdir()
    Path("bisect/oom.toml").write_text('symptom = "any"\ncommand = ["make", "test"]\nconfirm = 5\n')
    recipe = load_recipe("oom", {"confirm": 0, "symptom": None, "set": ()})
    assert (recipe.symptom, recipe.confirm, recipe.command) == ("any", 0, ("make", "test"))
    assert load_recipe("oom", {"workload": "tiny"}).command == ()


WRONG_RECIPES = [
    ("symptom = 'oom'\ntimeuot = 3\n", "there is no key 'timeuot': did you mean 'timeout'"),
    ("symptom = 'omm'\n", "there is no symptom 'omm': did you mean 'oom'? it is a failure (same, oom"),
    ("symptom = 'step_time'\n", "there is no symptom 'step_time': did you mean 'step_ms'?"),
    ("symptom = 3\n", "symptom is 3"),
    ("timeout = 'long'\n", "timeout is 'long'"),
    ("command = 'make'\n", "command is 'make'"),
    ("[[[", "is not valid TOML"),
]


@pytest.mark.parametrize(("text", "expected"), WRONG_RECIPES)
def test_a_wrong_recipe_is_one_sentence(text: str, expected: str) -> None:
    Path("mine.toml").write_text(text)
    with pytest.raises(UserError, match=r"recipe 'mine\.toml'") as caught:
        load_recipe("mine.toml", {})
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_recipes() -> None:
    with pytest.raises(UserError, match="did you mean 'crash'"):
        load_recipe("crsh", {})
    with pytest.raises(UserError, match="no recipe file"):
        load_recipe("gone.toml", {})
    with pytest.raises(UserError, match=r"the flags: there is no symptom"):
        load_recipe("", {"symptom": "slow"})
