"""Samples packed into sequences and steps: the plan of a run, known before a pixel is read.

First fit in order (a sample that does not fit opens the next sequence; the rest is padding), the plan that a
streaming loader makes. Every rank makes the whole plan and takes its share of it, so the plan never depends on ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from vlmprof.errors import UserError
from vlmprof.workload.samples import Picture, Sample, SampleSource
from vlmprof.workload.spec import Workload
from vlmprof.workload.tokens import Mark

__all__ = ["Sequence", "Step", "plan_steps"]


@dataclass(frozen=True)
class Sequence:
    """One packed sequence: `tokens` ids (unpadded), `useful[i]` says that token i is learnt."""

    tokens: tuple[int, ...]
    useful: tuple[bool, ...]
    pictures: tuple[Picture, ...]
    patches: tuple[int, ...]
    """Patches of each picture, before merging."""
    samples: int

    @cached_property
    def useful_tokens(self) -> int:
        return sum(self.useful[1:])  # the first token is predicted from nothing


@dataclass(frozen=True)
class Step:
    """The sequences of one global batch, in order."""

    sequences: tuple[Sequence, ...]

    @property
    def patches(self) -> tuple[int, ...]:
        """Patches of every picture of the step."""
        return tuple(count for sequence in self.sequences for count in sequence.patches)


@dataclass
class _Open:
    """A sequence that is being filled."""

    tokens: list[int] = field(default_factory=list)
    useful: list[bool] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    patches: list[int] = field(default_factory=list)
    samples: int = 0

    def close(self) -> Sequence:
        return Sequence(tuple(self.tokens), tuple(self.useful), tuple(self.pictures), tuple(self.patches), self.samples)


def plan_steps(workload: Workload, source: SampleSource) -> Iterator[Step]:
    """The steps of a run, without end.

    Raises:
        UserError: a sample's pictures alone exceed `data.seq_length`.
    """
    sequences = _sequences(workload, source)
    while True:
        yield Step(tuple(next(sequences) for _ in range(workload.knobs.global_batch_size)))


def _sequences(workload: Workload, source: SampleSource) -> Iterator[Sequence]:
    room = workload.data.seq_length
    current, index = _Open(), 0
    while True:
        tokens, useful, patches, pictures = _lay_out(workload, source.sample(index))
        index += 1
        if current.tokens and len(current.tokens) + len(tokens) > room:
            yield current.close()
            current = _Open()
        current.tokens += tokens
        current.useful += useful
        current.pictures += pictures
        current.patches += patches
        current.samples += 1
        if len(current.tokens) >= room:
            yield current.close()
            current = _Open()


def _lay_out(workload: Workload, sample: Sample) -> tuple[list[int], list[bool], list[int], list[Picture]]:
    """`BEGIN (VISION_START IMAGE* VISION_END)* (prompt answer END)*`, words cut at the sequence length."""
    encoder, room = workload.model.encoder, workload.data.seq_length
    tokens, useful, patches = [int(Mark.BEGIN)], [False], []
    for picture in sample.pictures:
        patches.append(picture.patches(encoder.patch_size))
        marks = [Mark.VISION_START, *[Mark.IMAGE] * (patches[-1] // encoder.spatial_merge_size**2), Mark.VISION_END]
        tokens += map(int, marks)
    if len(tokens) >= room:
        origin = sample.pictures[0].origin or "the sample"
        raise UserError(
            f"{origin}: its {len(sample.pictures)} pictures take {len(tokens)} tokens of data.seq_length {room}: "
            "raise data.seq_length or lower data.max_pixels or data.images_per_sample"
        )
    useful += [False] * (len(tokens) - 1)
    for prompt, answer in sample.turns:
        tokens += [*prompt, *answer, int(Mark.END)]
        useful += [False] * len(prompt) + [True] * (len(answer) + 1)
    return tokens[:room], useful[:room], patches, list(sample.pictures)
