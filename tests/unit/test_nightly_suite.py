from pathlib import Path

import pytest

from vlmprof.errors import UserError
from vlmprof.nightly.suite import load_suite, suites

SUITE = '[workloads.small]\nworkload = "tiny"\n'


def write(text: str) -> str:
    Path("mine.toml").write_text(text)
    return "mine.toml"


@pytest.mark.parametrize("name", ["cpu", "h200"])
def test_shipped_suites_are_in_order(name: str) -> None:
    suite = load_suite(name)
    assert suite.description
    assert any(entry.rounds for entry in suite.workloads.values()) == (name == "h200")
    assert all(entry.load(workload).hash8 for workload, entry in suite.workloads.items())


def test_the_working_folders_suites_come_first() -> None:
    Path("suites").mkdir()
    Path("suites/cpu.toml").write_text(SUITE)
    assert list(load_suite("cpu").workloads) == ["small"]
    assert set(suites()) == {"cpu", "h200"}


def test_the_digest_is_of_what_counts() -> None:
    one = load_suite(write(SUITE)).digest
    assert load_suite(write(f'description = "words"\n{SUITE}# a note\n')).digest == one
    assert load_suite(write(f"{SUITE}steps = 7\n")).digest != one
    assert load_suite(write(f'{SUITE}set = ["data.seq_length=128"]\n')).digest != one


def test_what_an_entry_says_reaches_the_run(tmp_path: Path) -> None:
    text = f'{SUITE}steps = 7\nwarmup = 2\nnproc = 2\nset = ["layout.ep=2"]\nmemory_limit = "64MiB"\ntimeout = 9.5\n'
    entry = load_suite(write(text)).workloads["small"]
    options = entry.options(tmp_path / "tree", tmp_path / "out")
    assert (options.steps, options.warmup, options.nproc, options.timeout) == (7, 2, 2, 9.5)
    assert options.memory_limit == 64 << 20
    assert (options.megatron, options.out) == (str(tmp_path / "tree"), tmp_path / "out")
    assert entry.load("small").layout.ep == 2


def test_what_a_suite_names_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pictures").mkdir()
    Path("ours.toml").write_text('base = "tiny"\n[data]\nkind = "path"\npath = "pictures"\n')
    entry = load_suite(write('[workloads.ours]\nworkload = "ours.toml"\n')).workloads["ours"]
    assert entry.load("ours").data.path == str(tmp_path / "pictures")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no workloads"),
        ("[workloads]\n", "names no workloads"),
        ("[workloads.small]\nstep = 3\n", "no key 'workloads.small.step': did you mean 'steps'"),
        ("[workloads.small]\nsteps = 0\n", "steps is 0"),
        (
            '[workloads.small]\nworkload = "tinny"\n',
            "workload 'small': there is no preset 'tinny': did you mean 'tiny'",
        ),
        ("[workloads.nosuch]\n", "no preset 'nosuch'"),
        (f'{SUITE}set = ["nonsense=1"]\n', "no setting 'nonsense'"),
        (f'{SUITE}memory_limit = "much"\n', "much"),
        (f"{SUITE}nproc = 3\n", "workload 'small'"),
        ('[workloads."../up"]\nworkload = "tiny"\n', "is no name"),
        ("nonsense = [", "not valid TOML"),
        ("[suites]\n", "no key 'suites'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UserError, match=r"mine\.toml") as told:
        load_suite(write(text))
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_unknown_suites() -> None:
    with pytest.raises(UserError, match="no suite 'cpo': did you mean 'cpu'"):
        load_suite("cpo")
    with pytest.raises(UserError, match="no suite file"):
        load_suite("nowhere/a.toml")
