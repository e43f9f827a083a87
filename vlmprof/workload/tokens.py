"""Text to token ids: bytes by default, or a Hugging Face `tokenizer.json` where one is named."""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from vlmprof.errors import MachineError, UserError
from vlmprof.workload.spec import Workload

__all__ = ["Mark", "Tokenizer", "load_tokenizer"]


class Mark(IntEnum):
    """Ids of their own below every word: they never collide with text."""

    PAD = 0
    BEGIN = 1
    END = 2
    IMAGE = 3
    VISION_START = 4
    VISION_END = 5


MARKS = 8  # a round number, room for marks to come


@dataclass(frozen=True)
class Tokenizer:
    """Words begin at id `first_word`; `vocab_size` is one above the largest id it gives."""

    vocab_size: int
    file: Any = None
    first_word: int = MARKS

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of `text` without marks: its UTF-8 bytes, or what the tokenizer file says, moved above the marks."""
        ids = text.encode() if self.file is None else self.file.encode(text, add_special_tokens=False).ids
        return tuple(MARKS + token for token in ids)


def load_tokenizer(workload: Workload) -> Tokenizer:
    """The tokenizer of `data.tokenizer`.

    Raises:
        UserError: the file is missing or unreadable, or the model's vocabulary is too small for it.
        MachineError: the `tokenizers` package is not installed.
    """
    name, vocab_size = workload.data.tokenizer, workload.model.decoder.vocab_size
    if not name:
        return Tokenizer(min(vocab_size, MARKS + 256))
    try:
        from tokenizers import Tokenizer as HuggingFaceTokenizer
    except ImportError:
        raise MachineError("data.tokenizer needs the tokenizers package: pip install 'vlmprof[hf]'") from None
    if not Path(name).is_file():
        raise UserError(f"there is no tokenizer file '{name}'")
    try:
        file = HuggingFaceTokenizer.from_file(name)
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"tokenizer file '{name}' cannot be read: {error}") from None
    needed = MARKS + file.get_vocab_size()
    if needed > vocab_size:
        raise UserError(f"tokenizer '{name}' needs model.decoder.vocab_size of at least {needed}, not {vocab_size}")
    return Tokenizer(needed, file)
