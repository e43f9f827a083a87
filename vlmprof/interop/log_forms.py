"""The line forms of training logs, as data: where an entry begins, which figures it holds, in which units.

Forms are those of Megatron-LM from 2020 on, its forks (Megatron-DeepSpeed, Primus), Megatron Bridge and NeMo 1 and 2.
"""

import re
from typing import Literal, NamedTuple

__all__ = ["FORMS", "MARKS", "SETTINGS", "UNDERSTOOD", "Entry", "Form", "entries"]

NUMBER = r"([-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?))"
BEHIND_NUMBER = r"(?=[\s|/,\])(]|s\b|MODEL_|TFLOP|$)"
"""What may follow: anything else means that the number is torn, or is part of a word."""
JOINT = r"\s{0,40}[:=]?\s{0,40}"
"""Between a label and its figure. Bounded, like all that repeats below: a megabyte of blanks must cost nothing."""
COUNT = r"\d{1,3}(?:,\d{3})+|\d+"
SEPARATOR = re.compile(r".*(?:\||\]|, |/GPU)", re.DOTALL)
"""Up to the last place where a figure is known to be whole."""

MEBIBYTE = 2.0**20
"""What Megatron-LM calls MB."""
GIBIBYTE = 2.0**30
GIGABYTE = 1e9
"""Megatron Bridge divides by 1e9."""


class Field(NamedTuple):
    name: str
    label: str
    """A regular expression; begins with a literal wherever it can, for re finds those fastest."""
    factor: float = 1.0
    """Into ms, bytes or TFLOP/s."""


class Form(NamedTuple):
    family: str
    """Whose log it is."""
    kind: Literal["iteration", "rate", "memory"]
    """`rate` stands on a line of its own and tells no iteration."""
    mark: bytes
    """Every line of this form holds it."""
    head: re.Pattern[str]
    """Where an entry begins. Groups `iteration`, `epoch`, `total` and `rank` are figures of it."""
    fields: tuple[tuple[str, re.Pattern[str], float], ...]


def _fields(*fields: Field) -> tuple[tuple[str, re.Pattern[str], float], ...]:
    return tuple(
        (field.name, re.compile(rf"{field.label}{JOINT}{NUMBER}{BEHIND_NUMBER}"), field.factor) for field in fields
    )


MEGATRON_FIELDS = _fields(
    Field("ms", r"elapsed[ _]time[ _]per[ _]iteration[ _]\(?ms\)?"),
    Field("ms", r"elapsed[ _]time[ _]per[ _]iteration[ _]\(?s\)?", 1e3),
    Field("loss", r"lm[ _]loss"),
    Field("loss", r"\|\s*(?:total )?loss"),
    Field("grad_norm", r"grad[ _]norm"),
    Field("tflops", r"throughput per GPU \(TFLOP/s/GPU\)"),
    Field("tflops", r"compute per GPU \(TFLOP/s/GPU\)"),  # Primus
    Field("tflops", r"GPU utilization"),
    Field("tflops", r"TFLOPs"),  # Megatron-DeepSpeed
    Field("batch_size", r"global[ _]batch[ _]size"),
    Field("skipped", r"number[ _]of[ _]skipped[ _]iterations"),
    Field("nan_iterations", r"number[ _]of[ _]nan[ _]iterations"),
)
NEMO_FIELDS = _fields(
    Field("ms", r"train_step_timing in s", 1e3),
    Field("loss", r"reduced_train_loss"),
    Field("grad_norm", r"grad(?:ient)?_norm"),
    Field("tflops", r"TFLOPS_per_GPU"),
    Field("batch_size", r"global_batch_size"),
    Field("peak", r"max_memory_allocated"),
    Field("peak", r"peak_memory_usage"),
    Field("reserved", r"max_memory_reserved"),
    Field("held", r"\|\s*memory_allocated"),
)
MEMORY_HEAD = r"(?:\[Rank\s+(?P<rank>\d{1,9})\][^|\[\]]{0,80}|\(after\s+\d+\s+iterations\)\s*)memory\b"

FORMS: tuple[Form, ...] = (
    Form(
        "NeMo",
        "iteration",
        b"Training epoch",
        re.compile(rf"Training epoch\s+\d+,\s*iteration\s+(?P<iteration>{COUNT})/(?:{COUNT}|inf)"),
        # `iteration` begins again with each epoch; global_step does not, and Lightning prints it whole here.
        NEMO_FIELDS + _fields(Field("iteration", r"global_step")),
    ),
    Form(
        "NeMo",
        "iteration",
        b"train_step_timing",
        # A tqdm bar. It prints global_step to three digits (2e+3), so its own counter has to tell the iteration.
        re.compile(
            r"Epoch\s+(?P<epoch>\d{1,9}):[^|\[]{0,60}(?:\|[^|]{0,400}\|\s{0,9})?(?<!\d)(?P<iteration>\d{1,9})(?:/(?P<total>\d{1,9})|it)\s*\["
        ),
        NEMO_FIELDS + _fields(Field("global_step", r"global_step")),
    ),
    Form(
        "Megatron-LM or Megatron Bridge",
        "iteration",
        b"iteration",
        re.compile(rf"iteration{JOINT}(?P<iteration>{COUNT})\s*/\s*(?:{COUNT}|infinity)\s*\|"),
        MEGATRON_FIELDS,
    ),
    Form(
        "Megatron Bridge",
        "rate",
        b"Step Time",
        re.compile(r"Step Time\s*:"),
        # What it calls GPU utilization is TFLOP/s of one GPU, not a share.
        _fields(Field("ms", r"Step Time", 1e3), Field("tflops", r"GPU utilization")),
    ),
    Form(
        "Megatron-LM",
        "memory",
        b"memory (MB)",
        re.compile(MEMORY_HEAD + r"\s*\(MB\)"),
        _fields(
            Field("held", r"\|\s*allocated", MEBIBYTE),
            Field("peak", r"max allocated", MEBIBYTE),
            Field("reserved", r"max (?:reserved|cached)", MEBIBYTE),
        ),
    ),
    Form(
        "Megatron Bridge",
        "memory",
        b"-gigabytes",
        re.compile(MEMORY_HEAD),
        _fields(
            Field("held", r"mem-allocated-gigabytes", GIGABYTE),
            Field("peak", r"mem-max-allocated-gigabytes", GIGABYTE),
            Field("reserved", r"mem-max-reserved-gigabytes", GIGABYTE),
        ),
    ),
    Form(
        "Megatron-LM",
        "memory",
        b"memory (GB) | allocated",
        re.compile(MEMORY_HEAD + r"\s*\(GB\)"),
        _fields(
            Field("held", r"\|\s*allocated", GIBIBYTE),
            Field("peak", r"max allocated", GIBIBYTE),
            Field("reserved", r"max reserved", GIBIBYTE),
        ),
    ),
)

UNDERSTOOD = (
    "Megatron-LM's and Megatron Bridge's 'iteration N/ M | ... elapsed time per iteration (ms): X |' and NeMo's "
    "'Training epoch E, iteration N/M | ... train_step_timing in s: X' or progress bar"
)


def _setting(name: str, dots_only: bool = False) -> str:
    """An argument as Megatron dumps it (`name ..... 1`), as a command line (`--name 1`), or as YAML (`name: 1`)."""
    spelled = name.replace("_", "[_-]")
    joint = r"\s+\.{2,}\s*" if dots_only else r"['\"]?(?:\s*[:=]\s*|\s+\.{2,}\s*|\s+)"
    return rf"(?:^|[\s.,('\"]|--){spelled}{joint}"


WHOLE_NUMBER = r"(\d{1,9})\b"

SETTINGS: tuple[tuple[str, bytes, re.Pattern[str]], ...] = (
    ("seq_length", b"seq_length", re.compile(_setting("seq_length") + WHOLE_NUMBER)),
    ("seq_length", b"seq-length", re.compile(_setting("seq_length") + WHOLE_NUMBER)),
    ("batch_size", b"global_batch_size", re.compile(_setting("global_batch_size") + WHOLE_NUMBER)),
    ("batch_size", b"global-batch-size", re.compile(_setting("global_batch_size") + WHOLE_NUMBER)),
    ("world_size", b"world_size", re.compile(_setting("world_size") + WHOLE_NUMBER)),
    ("world_size", b"using world size", re.compile(r"using world size:\s*" + WHOLE_NUMBER)),
    ("log_interval", b"log_interval", re.compile(_setting("log_interval") + WHOLE_NUMBER)),
    ("precision", b"params_dtype", re.compile(_setting("params_dtype") + r"(?:torch\.)?(\w+)")),
    ("precision", b"for parameters", re.compile(r"using torch\.(\w+) for parameters")),
    ("fp8", b"fp8 ..", re.compile(_setting("fp8", dots_only=True) + r"(e4m3|hybrid)\b")),
)
"""What a log says of the run as a whole: name, mark, value."""

MARKS: tuple[bytes, ...] = tuple(dict.fromkeys([*(form.mark for form in FORMS), *(mark for _, mark, _ in SETTINGS)]))


class Entry(NamedTuple):
    form: Form
    figures: dict[str, float]
    """By field name, in ms, bytes or TFLOP/s; may be nan or infinite. What is not there or is torn is left out."""
    text: str


def entries(text: str, whole: bool) -> list[Entry]:
    """The entries of a line, in order: ranks that print at once leave several on one.

    `whole` is false for a line without its end: figures behind the last separator are left out, they may be torn. So
    are those of an entry that another one interrupts.
    """
    found: list[tuple[re.Match[str], Form]] = []
    for form in FORMS:
        if form.mark.decode() in text:
            found += [(head, form) for head in form.head.finditer(text)]
    found.sort(key=lambda one: one[0].start())
    kept: list[tuple[re.Match[str], Form]] = []
    for head, form in found:
        # A head inside another's is that one's: NeMo's `Training epoch 0, iteration 0/9 |` ends like Megatron's.
        if not kept or head.start() >= kept[-1][0].end():
            kept.append((head, form))
    ends = [*(head.start() for head, _ in kept), len(text)][1:]
    return [
        _entry(form, head, text[head.start() : end], whole and number == len(kept) - 1)
        for number, ((head, form), end) in enumerate(zip(kept, ends, strict=True))
    ]


def _entry(form: Form, head: re.Match[str], text: str, whole: bool) -> Entry:
    if not whole:
        separated = SEPARATOR.match(text)
        text = separated[0] if separated else ""
    figures = {name: _number(value) for name, value in head.groupdict().items() if value is not None}
    told: dict[str, float] = {}
    for name, pattern, factor in form.fields:
        if name not in told and (match := pattern.search(text)):
            told[name] = _number(match[1]) * factor
    return Entry(form, figures | told, text.strip())


def _number(text: str) -> float:
    return float(text.replace(",", ""))
