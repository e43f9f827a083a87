"""Where training samples come from: photographs, a user's pictures, mock pixels, or text alone.

A sample is only described here (sizes and tokens); pixels are read when a micro-batch is made, so a whole run can be
planned, counted and replayed without opening a picture. Sample `index` depends on the seed and the index alone.
"""

import importlib.util
import json
import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vlmprof.errors import EnvironmentFault, UserError
from vlmprof.workload.spec import Workload
from vlmprof.workload.tokens import Tokenizer, load_tokenizer

__all__ = ["Picture", "Sample", "SampleSource", "open_source"]

MOCK_SIDE = 256
PICTURE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


@dataclass(frozen=True)
class Picture:
    """One picture at the size it is trained at. `file` None means seeded random pixels."""

    file: Path | None
    width: int
    height: int
    seed: int = 0
    origin: str = ""
    """Where the picture was named, e.g. `train.jsonl line 3`: for messages."""

    def patches(self, patch_size: int) -> int:
        return (self.width // patch_size) * (self.height // patch_size)


@dataclass(frozen=True)
class Sample:
    """Pictures, then turns of (prompt, answer) token ids. Only answers bear loss."""

    pictures: tuple[Picture, ...]
    turns: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


class SampleSource(Protocol):
    realism: str
    """`real`, `mock` or `text-only`."""

    def sample(self, index: int) -> Sample:
        """The sample of this index, the same on every machine."""
        ...


def open_source(workload: Workload) -> SampleSource:
    """The source that `workload.data` names.

    Raises:
        UserError: a folder or file that is missing, empty or malformed (with file and line).
        EnvironmentFault: scikit-image's photographs are not installed.
    """
    return SOURCES[workload.data.kind](workload)


def _generator(workload: Workload, purpose: str, index: int) -> np.random.Generator:
    """A stream of its own for each purpose and sample index."""
    return np.random.default_rng([workload.seed, *purpose.encode(), index])


def fit(width: float, height: float, max_pixels: int, unit: int) -> tuple[int, int]:
    """The nearest (width, height) in whole `unit`s, at least one each, with at most `max_pixels`; keeps the aspect.

    The rule of Qwen-VL's dynamic resolution: scale down to the limit, then round to the merge unit.
    """
    scale = min(1.0, math.sqrt(max_pixels / (width * height)))
    columns, rows = (max(1, round(side * scale / unit)) for side in (width, height))
    while columns * rows * unit * unit > max_pixels:
        if columns >= rows:
            columns -= 1
        else:
            rows -= 1
    return columns * unit, rows * unit


def _size_of(file: Path, origin: str) -> tuple[int, int]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return image.size
    except FileNotFoundError:
        raise UserError(f"{origin}: there is no picture '{file}'") from None
    except (UnidentifiedImageError, OSError) as error:
        raise UserError(f"{origin}: '{file}' cannot be read as a picture ({type(error).__name__})") from None


class Photographs:
    """scikit-image's photographs with this project's captions, at a seeded spread of sizes and aspect ratios."""

    realism = "real"

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.tokenizer = load_tokenizer(workload)
        self.photos = [
            (file, _size_of(file, "scikit-image"), _encode(self.tokenizer, turns)) for file, turns in photographs()
        ]

    def sample(self, index: int) -> Sample:
        random = _generator(self.workload, "real", index)
        data, encoder = self.workload.data, self.workload.model.encoder
        chosen = random.integers(len(self.photos), size=max(1, data.images_per_sample))
        pictures = []
        for number in chosen[: data.images_per_sample]:
            file, (width, height), _ = self.photos[number]
            area = data.max_pixels * float(np.exp(random.uniform(np.log(0.25), 0.0)))
            aspect = width / height * float(np.exp(random.uniform(-0.4, 0.4)))
            size = fit(math.sqrt(area * aspect), math.sqrt(area / aspect), data.max_pixels, encoder.image_unit)
            pictures.append(Picture(file, *size, origin="scikit-image"))
        turns = [turn for number in dict.fromkeys(chosen.tolist()) for turn in self.photos[number][2]]
        return Sample(tuple(pictures), tuple(turns))


class TextOnly(Photographs):
    """The same words without a picture."""

    realism = "text-only"

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.tokenizer = load_tokenizer(workload)
        self.turns = [_encode(self.tokenizer, turns) for _, turns in captions()]

    def sample(self, index: int) -> Sample:
        number = _generator(self.workload, "real", index).integers(len(self.turns))
        return Sample((), self.turns[number])


class Mock:
    """One picture of one fixed size and random words, a whole sequence long: what a mock-data benchmark feeds."""

    realism = "mock"

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.tokenizer = load_tokenizer(workload)

    def sample(self, index: int) -> Sample:
        data, encoder = self.workload.data, self.workload.model.encoder
        size = fit(MOCK_SIDE, MOCK_SIDE, data.max_pixels, encoder.image_unit)
        pictures = tuple(
            Picture(None, *size, seed=index * 1000 + number) for number in range(min(1, data.images_per_sample))
        )
        image_tokens = sum(p.patches(encoder.patch_size) for p in pictures) // encoder.spatial_merge_size**2
        words = data.seq_length - image_tokens - 2 * len(pictures) - 2
        if words < 1:
            raise UserError(
                f"data.seq_length {data.seq_length} leaves no room for text beside a mock picture of "
                f"{image_tokens} tokens: raise data.seq_length or lower data.max_pixels"
            )
        random = _generator(self.workload, "mock", index)
        answer = random.integers(self.tokenizer.first_word, self.tokenizer.vocab_size, size=words)
        return Sample(pictures, (((), tuple(int(token) for token in answer)),))


class OwnData:
    """A folder of pictures (captioned by this project's questions about any picture) or a LLaVA-format JSONL file."""

    realism = "real"

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.tokenizer = load_tokenizer(workload)
        path = Path(workload.data.path)
        self.entries: list[tuple[tuple[tuple[Path, str], ...], Any]] = list(read_entries(path))
        if not self.entries:
            raise UserError(f"data path '{path}' holds no pictures ({', '.join(sorted(PICTURE_SUFFIXES))})")

    def sample(self, index: int) -> Sample:
        epoch, position = divmod(index, len(self.entries))
        order = _generator(self.workload, "order", epoch).permutation(len(self.entries))
        files, turns = self.entries[order[position]]
        data, encoder = self.workload.data, self.workload.model.encoder
        pictures = tuple(
            Picture(file, *fit(*_size_of(file, origin), data.max_pixels, encoder.image_unit), origin=origin)
            for file, origin in files
        )
        return Sample(pictures, _encode(self.tokenizer, turns))


SOURCES: dict[str, Callable[[Workload], SampleSource]] = {
    "real": Photographs,
    "text-only": TextOnly,
    "mock": Mock,
    "path": OwnData,
}

Turns = list[tuple[str, str]]


def captions() -> list[tuple[str, Turns]]:
    """(file name, [(question, answer)]) of every photograph."""
    text = (resources.files("vlmprof.workload") / "captions.toml").read_text(encoding="utf-8")
    return [(p["file"], [(q, a) for q, a in p["turns"]]) for p in tomllib.loads(text)["photo"]]


def photographs() -> list[tuple[Path, Turns]]:
    """The installed photographs with their captions; scikit-image is located, never imported."""
    package = importlib.util.find_spec("skimage")
    if package is None or package.origin is None:
        raise EnvironmentFault("real data needs scikit-image's photographs: pip install scikit-image")
    folder = Path(package.origin).parent / "data"
    found = [(folder / file, turns) for file, turns in captions() if (folder / file).is_file()]
    if not found:
        raise EnvironmentFault(f"this scikit-image ships no photographs in {folder}: pip install -U scikit-image")
    return found


def _encode(tokenizer: Tokenizer, turns: Turns) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    return tuple((tokenizer.encode(question), tokenizer.encode(answer)) for question, answer in turns)


def read_entries(path: Path) -> Iterator[tuple[tuple[tuple[Path, str], ...], Turns]]:
    """((picture, origin) ..., turns) of every sample of a folder or a LLaVA JSONL file.

    LLaVA form, one object a line: {"image": "a.jpg" | ["a.jpg", ...], "conversations": [{"from": "human"|"gpt",
    "value": text}, ...]}; `<image>` marks are dropped, since pictures always lead the sample.

    Raises:
        UserError: with file and line.
    """
    if path.is_dir():
        generic = [("What does this picture show?", f"A picture named {{}} from the folder {path.name}.")]
        for file in sorted(path.rglob("*")):
            if file.suffix.lower() in PICTURE_SUFFIXES:
                question, answer = generic[0]
                yield ((file, str(path)),), [(question, answer.format(file.stem))]
        return
    if not path.is_file():
        raise UserError(f"there is no data folder or file '{path}'")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data file '{path}' cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _llava_entry(path, f"{path} line {number}", line)


def _llava_entry(path: Path, origin: str, line: str) -> tuple[tuple[tuple[Path, str], ...], Turns]:
    try:
        entry = json.loads(line)
        images = entry.get("image", [])
        names = [images] if isinstance(images, str) else list(images)
        said = [(str(turn["from"]), str(turn["value"]).replace("<image>", "").strip()) for turn in entry["conversations"]]
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{origin}: not a LLaVA conversation ({type(error).__name__}: {error})") from None
    files = []
    for name in names:
        file = (path.parent / str(name)).resolve()
        if not file.is_relative_to(path.parent.resolve()):
            raise UserError(f"{origin}: picture '{name}' lies outside {path.parent}")
        if not file.is_file():
            raise UserError(f"{origin}: there is no picture '{file}'")
        files.append((file, origin))
    turns: Turns = []
    for speaker, text in said:
        if speaker in ("human", "user"):
            turns.append((text, ""))
        elif turns and not turns[-1][1]:
            turns[-1] = (turns[-1][0], text)
        else:
            turns.append(("", text))
    if not any(answer for _, answer in turns):
        raise UserError(f"{origin}: the conversation has no answer to learn from")
    return tuple(files), turns
