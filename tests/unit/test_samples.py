import itertools
import json
from pathlib import Path

import pytest
from PIL import Image

from vlmprof.errors import UserError
from vlmprof.workload.packing import plan_steps
from vlmprof.workload.samples import OwnData, fit, open_source
from vlmprof.workload.settings import data_overrides, load_workload
from vlmprof.workload.spec import Workload
from vlmprof.workload.tokens import Mark


def steps_of(workload: Workload, count: int = 3):
    return list(itertools.islice(plan_steps(workload, open_source(workload)), count))


@pytest.mark.parametrize("kind", ["real", "mock", "text-only"])
def test_sampling_depends_on_the_seed_alone(kind: str) -> None:
    workload = load_workload("tiny", [], {"data.kind": kind})
    assert steps_of(workload) == steps_of(workload)
    assert steps_of(workload) != steps_of(load_workload("tiny", ["seed=7"], {"data.kind": kind}))


def test_real_pictures_have_many_sizes_within_the_limit() -> None:
    workload = load_workload("tiny")
    pictures = [p for step in steps_of(workload, 20) for s in step.sequences for p in s.pictures]
    sizes = {(p.width, p.height) for p in pictures}
    assert len(sizes) > 20
    assert all(w * h <= workload.data.max_pixels and w % 32 == 0 and h % 32 == 0 for w, h in sizes)
    assert len({p.file for p in pictures}) > 10


def test_only_answers_bear_loss_and_images_take_their_tokens() -> None:
    workload = load_workload("tiny")
    for step in steps_of(workload):
        for sequence in step.sequences:
            images = sum(token == Mark.IMAGE for token in sequence.tokens)
            assert images == sum(sequence.patches) // 4
            assert len(sequence.tokens) == len(sequence.useful) <= workload.data.seq_length
            assert not any(
                useful for token, useful in zip(sequence.tokens, sequence.useful, strict=True) if token in (3, 4, 5)
            )
            assert 0 < sequence.useful_tokens < len(sequence.tokens)


@pytest.mark.parametrize(("width", "height"), [(4000, 3000), (10, 3000), (3000, 10), (33, 33), (224, 224)])
def test_fit_keeps_within_the_limit_and_close_to_the_aspect(width: int, height: int) -> None:
    w, h = fit(width, height, 50176, 32)
    assert w % 32 == h % 32 == 0
    assert 32 * 32 <= w * h <= 50176
    if max(width, height) / min(width, height) < 3:
        assert w / h == pytest.approx(width / height, rel=0.35)


def picture(path: Path, size: tuple[int, int] = (100, 60)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (200, 30, 30)).save(path)
    return path


def own(path: Path) -> Workload:
    return load_workload("tiny", [], data_overrides(str(path)))


def line(**entry: object) -> str:
    talk = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A red field."}]
    return json.dumps({"image": "a.png", "conversations": talk, **entry})


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    for name in ("a.png", "deep/b.jpg"):
        picture(tmp_path / "pics" / name)
    (tmp_path / "pics" / "notes.txt").write_text("not a picture")
    sequence = steps_of(own(tmp_path / "pics"))[0].sequences[0]
    assert {p.file.name for p in sequence.pictures if p.file} == {"a.png", "b.jpg"}


def test_a_llava_file(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    file = tmp_path / "train.jsonl"
    file.write_text(line() + "\n\n" + line(image=["a.png", "a.png"]) + "\n")
    source = OwnData(own(file), skip_bad=False)
    counts = {len(source.sample(index).pictures) for index in range(4)}
    assert counts == {1, 2}
    question, answer = source.sample(0).turns[0]
    assert bytes(token - 8 for token in question).decode() == "What?"
    assert bytes(token - 8 for token in answer).decode() == "A red field."


@pytest.mark.parametrize(
    ("second_line", "expected"),
    [
        (line(image="gone.png"), "train.jsonl line 2: there is no picture"),
        (line(image="cut.png"), "train.jsonl line 2: picture"),
        (line(image="../outside.png"), "line 2: picture '../outside.png' lies outside"),
        ("{not json", "train.jsonl line 2: not a LLaVA conversation"),
        (json.dumps({"image": "a.png"}), "train.jsonl line 2: not a LLaVA conversation"),
        (line(conversations=[{"from": "human", "value": "hm"}]), "line 2: the conversation has no answer"),
        (json.dumps([1]), "train.jsonl line 2: not a LLaVA conversation"),
    ],
)
def test_a_bad_sample_is_named_by_file_and_line_or_skipped_and_counted(
    tmp_path: Path, second_line: str, expected: str
) -> None:
    whole = picture(tmp_path / "data" / "a.png", (300, 300)).read_bytes()
    (tmp_path / "data" / "cut.png").write_bytes(whole[: len(whole) // 2])
    picture(tmp_path / "outside.png")
    file = tmp_path / "data" / "train.jsonl"
    file.write_text(line() + "\n" + second_line + "\n")
    workload = own(file)
    with pytest.raises(UserError, match=expected):
        [open_source(workload).sample(index) for index in range(4)]
    source = open_source(workload, skip_bad=True)
    for index in range(4):
        source.sample(index)
    assert sum(source.skipped.values()) == 1


def test_nothing_usable_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no usable sample"):
        open_source(own(tmp_path / "empty"))
    (tmp_path / "empty" / "bad.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="holds no sample whose pictures can all be read"):
        open_source(own(tmp_path / "empty"), skip_bad=True).sample(0)


def test_pictures_that_do_not_fit_the_sequence_are_refused() -> None:
    workload = load_workload("tiny", ["images_per_sample=9"])
    with pytest.raises(UserError, match=r"its 9 pictures take \d+ tokens of data.seq_length 256"):
        steps_of(workload)
