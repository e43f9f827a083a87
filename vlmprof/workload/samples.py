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
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Protocol

import numpy as np

from vlmprof.errors import MachineError, UserError
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
    skipped: dict[str, int]
    """Bad samples left out so far, by what was wrong: see `OwnData`."""

    def sample(self, index: int) -> Sample:
        """The sample of this index, the same on every machine."""
        ...


def open_source(workload: Workload, skip_bad: bool = False) -> SampleSource:
    """The source that `workload.data` names; `skip_bad` goes on without bad samples of the user's own, counted.

    Raises:
        UserError: a folder or file that is missing, empty or malformed (with file and line).
        MachineError: scikit-image's photographs are not installed.
    """
    if workload.data.kind == "path":
        return OwnData(workload, skip_bad)
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


def size_of(file: Path, origin: str, whole: bool = False) -> tuple[int, int]:
    """Width and height of a picture; `whole` reads all of it, which finds a file that is cut off.

    Raises:
        UserError: it is missing or corrupt, with where it was named.
    """
    from PIL import Image

    try:
        with Image.open(file) as image:
            if whole:
                image.load()
            return image.size
    except FileNotFoundError:
        raise UserError(f"{origin}: there is no picture '{file}'") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # what PIL raises for bad files
        raise UserError(
            f"{origin}: picture '{file}' cannot be read ({error}); --skip-bad-samples goes on without it"
        ) from None


class Photographs:
    """scikit-image's photographs with this project's captions, at a seeded spread of sizes and aspect ratios."""

    realism = "real"

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.skipped: dict[str, int] = {}
        self.tokenizer = load_tokenizer(workload)
        self.photos = [
            (file, size_of(file, "scikit-image"), _encode(self.tokenizer, turns)) for file, turns in photographs()
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
        self.skipped = {}
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
        self.skipped: dict[str, int] = {}
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
    """A folder of pictures (captioned by this project's question about any picture) or a LLaVA-format JSONL file.

    A picture is read once when the first sample with it is planned, so that a bad one is known before training.
    """

    realism = "real"

    def __init__(self, workload: Workload, skip_bad: bool) -> None:
        self.workload = workload
        self.skip_bad = skip_bad
        self.skipped: dict[str, int] = {}
        self.tokenizer = load_tokenizer(workload)
        self._sizes: dict[Path, tuple[int, int] | None] = {}
        path = Path(workload.data.path)
        self.entries: list[Entry] = []
        for read in entry_readers(path):
            try:
                self.entries.append(read())
            except UserError:
                self._skip_or_raise("line")
        if not self.entries:
            raise UserError(
                f"data path '{path}' holds no usable sample ({', '.join(sorted(PICTURE_SUFFIXES))} or JSONL)"
            )

    def sample(self, index: int) -> Sample:
        epoch, position = divmod(index, len(self.entries))
        order = _generator(self.workload, "order", epoch).permutation(len(self.entries))
        data, encoder = self.workload.data, self.workload.model.encoder
        for number in (*order[position:], *order[:position]):
            files, turns = self.entries[number]
            sizes = [self._size(file, origin) for file, origin in files]
            if None not in sizes:
                pictures = tuple(
                    Picture(file, *fit(*size, data.max_pixels, encoder.image_unit), origin=origin)
                    for (file, origin), size in zip(files, sizes, strict=True)
                    if size is not None
                )
                return Sample(pictures, _encode(self.tokenizer, turns))
        raise UserError(f"data path '{data.path}' holds no sample whose pictures can all be read")

    def _size(self, file: Path, origin: str) -> tuple[int, int] | None:
        """Width and height; None for a bad picture when those are skipped."""
        if file not in self._sizes:
            try:
                self._sizes[file] = size_of(file, origin, whole=True)
            except UserError:
                self._sizes[file] = None
                self._skip_or_raise("picture")
        return self._sizes[file]

    def _skip_or_raise(self, what: str) -> None:
        """Called while a UserError is handled: count it, or let it pass on."""
        if not self.skip_bad:
            raise
        self.skipped[what] = self.skipped.get(what, 0) + 1


SOURCES: dict[str, Callable[[Workload], SampleSource]] = {
    "real": Photographs,
    "text-only": TextOnly,
    "mock": Mock,
}

Turns = list[tuple[str, str]]
Entry = tuple[tuple[tuple[Path, str], ...], Turns]
"""((picture, where it was named) ..., (question, answer) ...)"""


def captions() -> list[tuple[str, Turns]]:
    """(file name, [(question, answer)]) of every photograph."""
    text = (resources.files("vlmprof.workload") / "captions.toml").read_text(encoding="utf-8")
    return [(p["file"], [(q, a) for q, a in p["turns"]]) for p in tomllib.loads(text)["photo"]]


def photographs() -> list[tuple[Path, Turns]]:
    """The installed photographs with their captions; scikit-image is located, never imported."""
    package = importlib.util.find_spec("skimage")
    if package is None or package.origin is None:
        raise MachineError("real data needs scikit-image's photographs: pip install scikit-image")
    folder = Path(package.origin).parent / "data"
    found = [(folder / file, turns) for file, turns in captions() if (folder / file).is_file()]
    if not found:
        raise MachineError(f"this scikit-image ships no photographs in {folder}: pip install -U scikit-image")
    return found


def _encode(tokenizer: Tokenizer, turns: Turns) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    return tuple((tokenizer.encode(question), tokenizer.encode(answer)) for question, answer in turns)


def entry_readers(path: Path) -> Iterator[Callable[[], Entry]]:
    """One reader for every sample of a folder or a LLaVA JSONL file; a reader of a bad line raises UserError.

    LLaVA form, one object a line: {"image": "a.jpg" | ["a.jpg", ...], "conversations": [{"from": "human"|"gpt",
    "value": text}, ...]}; `<image>` marks are dropped, since pictures always lead the sample.

    Raises:
        UserError: the path is missing or unreadable.
    """
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix.lower() in PICTURE_SUFFIXES:
                answer = f"A picture named {file.stem} from the folder {path.name}."
                yield partial(_same, (((file, str(path)),), [("What does this picture show?", answer)]))
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"there is no data folder or file '{path}'") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data file '{path}' cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield partial(_llava_entry, path, f"{path} line {number}", line)


def _same(entry: Entry) -> Entry:
    return entry


def _llava_entry(path: Path, origin: str, line: str) -> Entry:
    try:
        entry = json.loads(line)
        images = entry.get("image", [])
        names = [images] if isinstance(images, str) else list(images)
        said = [
            (str(turn["from"]), str(turn["value"]).replace("<image>", "").strip()) for turn in entry["conversations"]
        ]
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
