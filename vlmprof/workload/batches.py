"""From a planned sequence to tensors: pictures are read, resized and cut into patches here, every time anew."""

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlmprof.workload.packing import Sequence
from vlmprof.workload.samples import Picture
from vlmprof.workload.spec import Encoder, Workload
from vlmprof.workload.tokens import Mark

__all__ = ["MicroBatch", "make_micro_batch"]


@dataclass
class MicroBatch:
    """One micro-batch on its device. s = seq_length, b = sequences."""

    input_ids: Tensor
    """int64 [b, s]"""
    position_ids: Tensor
    """int64 [b, s]"""
    labels: Tensor
    """int64 [b, s]: the next token"""
    loss_mask: Tensor
    """float32 [b, s]: 1 where the next token is learnt"""
    patches: Tensor | None
    """[patches, patch_elements], or None without pictures"""
    grids: list[tuple[int, int]]
    """(rows, columns) of patches of each picture"""
    image_positions: Tensor
    """int64 [image tokens]: rows of the flattened [s * b] embeddings"""

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on a device; copies from pinned memory do not wait."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "MicroBatch":
        """The same in memory that a GPU can copy from on its own."""
        return self._with(Tensor.pin_memory)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "MicroBatch":
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "grids"}
        changed: dict[str, Any] = {n: change(value) for n, value in tensors.items() if isinstance(value, Tensor)}
        return replace(self, **changed)


def make_micro_batch(workload: Workload, sequences: Many[Sequence], dtype: torch.dtype) -> MicroBatch:
    """Read the pictures of `sequences` and lay everything out in host memory."""
    length, count = workload.data.seq_length, len(sequences)
    ids = torch.full((count, length + 1), int(Mark.PAD), dtype=torch.int64)
    useful = torch.zeros((count, length + 1), dtype=torch.float32)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence.tokens)] = torch.tensor(sequence.tokens)
        useful[row, : len(sequence.useful)] = torch.tensor(sequence.useful, dtype=torch.float32)
    encoder = workload.model.encoder
    pictures = [picture for sequence in sequences for picture in sequence.pictures]
    patches = [_patches(picture, encoder) for picture in pictures]
    is_image = ids[:, :-1] == Mark.IMAGE
    rows, columns = is_image.nonzero(as_tuple=True)  # in sequence order, as the pictures are
    return MicroBatch(
        input_ids=ids[:, :-1].contiguous(),
        position_ids=torch.arange(length).expand(count, -1).contiguous(),
        labels=ids[:, 1:].contiguous(),
        loss_mask=useful[:, 1:].contiguous(),
        patches=torch.from_numpy(np.concatenate(patches)).to(dtype) if patches else None,
        grids=[(p.height // encoder.patch_size, p.width // encoder.patch_size) for p in pictures],
        image_positions=columns * count + rows,
    )


def read_picture(picture: Picture) -> np.ndarray:
    """RGB pixels at the trained size, uint8 [height, width, 3]."""
    if picture.file is None:
        random = np.random.default_rng(picture.seed)
        return random.integers(0, 256, (picture.height, picture.width, 3), dtype=np.uint8)
    from PIL import Image

    with Image.open(picture.file) as image:
        resized = image.convert("RGB").resize((picture.width, picture.height), Image.Resampling.BICUBIC)
    return np.asarray(resized)


def _patches(picture: Picture, encoder: Encoder) -> np.ndarray:
    """float32 [patches, patch_elements] in [-1, 1], merge blocks side by side, the frame repeated in time."""
    size, merge = encoder.patch_size, encoder.spatial_merge_size
    pixels = read_picture(picture).astype(np.float32) / 127.5 - 1.0
    rows, columns = picture.height // size, picture.width // size
    blocks = pixels.reshape(rows // merge, merge, size, columns // merge, merge, size, 3)
    blocks = blocks.transpose(0, 3, 1, 4, 6, 2, 5)  # block row, block column, row, column, channel, y, x
    frame = blocks.reshape(rows * columns, 3, 1, size, size)
    return np.repeat(frame, encoder.temporal_patch_size, axis=2).reshape(rows * columns, -1)
