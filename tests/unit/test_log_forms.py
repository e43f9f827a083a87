from pathlib import Path

import pytest

from tests.unit.training_logs import (
    ARGUMENTS,
    LINES,
    MALFORMED,
    MEMORY_LINES,
    absent,
    bridge_rate,
    megatron,
    note,
    read,
    value,
)
from vlmprof.errors import UserError
from vlmprof.interop.log_forms import FORMS, MARKS, SETTINGS, entries
from vlmprof.records.figures import Figure


def test_the_table_of_forms_is_whole() -> None:
    for form in FORMS:
        assert form.fields
        assert form.mark in MARKS
        names = {name for name, _, _ in form.fields}
        assert names & {"ms", "peak"}
        assert ("iteration" in form.head.groupindex) == (form.kind == "iteration")
    assert {name for name, _, _ in SETTINGS} >= {"seq_length", "batch_size", "world_size", "precision"}


@pytest.mark.parametrize("name", LINES)
def test_every_form_of_an_iteration(tmp_path: Path, name: str) -> None:
    text, (index, ms, loss, grad_norm, rate) = LINES[name]
    run = read(tmp_path, text)
    (step,) = run.steps
    assert (step.index, step.batch, step.kind, step.warmup) == (index, index, "plain", False)
    assert step.ms == pytest.approx(ms)
    assert step.loss == pytest.approx(loss)
    assert step.grad_norm == (None if grad_norm is None else pytest.approx(grad_norm))
    measured = run.throughput["tflops_per_second_per_gpu"]
    if rate is None:
        assert "no TFLOP/s" in absent(measured)
    else:
        assert isinstance(measured, Figure)
        assert (measured.value, measured.unit) == (pytest.approx(rate), "TFLOP/s/GPU")
    assert value(run, "step_ms") == pytest.approx(ms)
    assert run.outcome.status == "ok"


@pytest.mark.parametrize("name", MEMORY_LINES)
def test_every_form_of_memory(tmp_path: Path, name: str) -> None:
    text, (peak, held, reserved) = MEMORY_LINES[name]
    run = read(tmp_path, megatron(1) + text)
    assert run.memory is not None
    assert isinstance(run.memory.peak, Figure)
    assert (run.memory.peak.unit, run.memory.peak.source) == ("bytes", "allocator")
    assert run.memory.peak.value == pytest.approx(peak)
    if held is None:
        assert "does not say what was allocated" in absent(run.memory.held_after)
    else:
        assert isinstance(run.memory.held_after, Figure)
        assert run.memory.held_after.value == pytest.approx(held)
    for part in ("parameters", "gradients", "optimizer_state", "saved_activations", "host_rss"):
        assert absent(getattr(run.memory, part))
    assert reserved in note(run, "peak memory")


def test_the_rank_with_the_highest_peak_is_told_wherever_its_line_stands(tmp_path: Path) -> None:
    def rank(number: int, after: int, held: float, peak: float) -> str:
        return (
            f"[Rank {number}] (after {after} iterations) memory (MB) | allocated: {held} | max allocated: {peak} | "
            f"reserved: 900.0 | max reserved: 900.0"
        )

    text = megatron(1) + f"{rank(1, 1, 100, 300)}\n{rank(0, 1, 100, 500)}{rank(2, 1, 100, 400)}\n"
    run = read(tmp_path, text + megatron(2) + f"{rank(0, 2, 150, 600)}\n")
    assert run.memory is not None
    assert isinstance(run.memory.peak, Figure)
    assert isinstance(run.memory.held_after, Figure)
    assert (run.memory.peak.value, run.memory.held_after.value) == (600 * 2**20, 150 * 2**20)
    assert "rank 0, the highest of 3 that report" in note(run, "peak memory")


def test_zeros_of_an_allocator_that_does_not_count_are_no_measurement(tmp_path: Path) -> None:
    text = "[Rank 5] (after 1 iterations) memory (MB) | allocated: 0.0 | max allocated: 0.0 | max reserved: 0.0\n"
    run = read(tmp_path, megatron(1) + text)
    assert run.memory is None
    assert not note(run, "peak memory")


def test_bridge_rates_find_their_iteration_before_and_behind_it(tmp_path: Path) -> None:
    text = bridge_rate(14.26, 58.2) + megatron(10, 14260.3) + megatron(20, 16850.0) + bridge_rate(16.85, 49.3)
    text += bridge_rate(99.0, 1.0) + megatron(30, 15000.0)  # belongs to another iteration: not to this one
    run = read(tmp_path, text)
    measured = run.throughput["tflops_per_second_per_gpu"]
    assert isinstance(measured, Figure)
    assert measured.samples == (58.2, 49.3)


def test_rates_without_an_iteration_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the last rank's file has them"):
        read(tmp_path, bridge_rate(14.26, 58.2) * 3)


def test_tokens_and_environment_from_the_argument_dump(tmp_path: Path) -> None:
    run = read(tmp_path, ARGUMENTS + megatron(1, 2000.0) + megatron(2, 4000.0) + megatron(3, 1000.0, batch=128))
    measured = run.throughput["tokens_per_second"]
    assert isinstance(measured, Figure)
    # The line's own batch size counts (it may ramp up), not the argument.
    assert measured.samples == (64 * 4096 / 2.0, 64 * 4096 / 4.0, 128 * 4096 / 1.0)
    assert (measured.value, measured.unit) == (64 * 4096 / 2.0, "tokens/s")
    environment = run.environment
    assert environment is not None
    assert (environment.platform, environment.device) == ("unknown", "unknown")
    assert (environment.precision, environment.ranks) == ("bf16", 16)
    assert run.data.realism == "unknown"
    assert not note(run, "how many ranks")


@pytest.mark.parametrize(
    "text",
    [
        "+ torchrun pretrain_gpt.py --seq-length 2048 --max-seq-length 9 --decoder-seq-length 8\n",
        "python run.py --seq-length=2048 \\\n",
        "  seq_length: 2048\n",
        "1:   seq_length ...................................... 2048\n",
        "dataset.seq_length=2048 tokenizer=none\n",
        'Config(seq_length=2048, x=1)\n{"seq_length": 2048}\n',
    ],
)
def test_the_sequence_length_as_logs_spell_it(tmp_path: Path, text: str) -> None:
    assert value(read(tmp_path, text + megatron(1, 1000.0)), "tokens_per_second") == 64 * 2048


def test_a_batch_size_that_only_the_arguments_tell_counts(tmp_path: Path) -> None:
    text = "  seq_length: 100\n  global_batch_size: 32\niteration 1/ 9 | elapsed time per iteration (ms): 1000.0 |\n"
    assert value(read(tmp_path, text), "tokens_per_second") == 3200


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (megatron(1), "does not say the sequence length"),
        ("seq_length: 4096\nseq_length: 8192\n" + megatron(1), "several sequence lengths: 4096, 8192"),
        (
            "--seq-length 4096\niteration 1/ 2 | elapsed time per iteration (ms): 10.0 |\n",
            "global batch size of every iteration",
        ),
    ],
)
def test_tokens_are_absent_with_a_reason(tmp_path: Path, text: str, reason: str) -> None:
    run = read(tmp_path, text)
    assert reason in absent(run.throughput["tokens_per_second"])
    assert "bear loss" in absent(run.throughput["useful_tokens_per_second"])
    assert absent(run.throughput["images_per_second"])
    assert absent(run.throughput["patches_per_second"])


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("  params_dtype .................................... torch.float16\n", "fp16"),
        ("using torch.float32 for parameters ...\n", "fp32"),
        ("  fp8 ............................................. hybrid\n  params_dtype .... torch.bfloat16\n", "fp8"),
        ("", "unknown"),
    ],
)
def test_the_precision_as_far_as_the_log_tells(tmp_path: Path, text: str, precision: str) -> None:
    environment = read(tmp_path, text + megatron(1)).environment
    assert environment is not None
    assert (environment.precision, environment.ranks) == (precision, 0)


def test_other_lines_with_the_same_words_are_no_iterations(tmp_path: Path) -> None:
    text = (
        " validation loss at iteration 1000 | lm loss value: 6.439325E+00 | lm loss PPL: 6.2E+02 |\n"
        "saving checkpoint at iteration      50 to /checkpoints/x\n"
        "  successfully saved checkpoint from iteration 50 [ t 1/4, p 1/2 ]\n"
        "time (ms) | forward-compute: 53.79 | optimizer: 19.12\n"
        "[Rank 0] time (ms) | fwd: 25341.72 | bwd: 77707.38\n"
        "Validation DataLoader 0: 100%|███| 5/5 [00:03<00:00]\n"
    )
    run = read(tmp_path, megatron(1) + text + megatron(2))
    assert [(step.index, step.loss) for step in run.steps] == [(1, 2.5), (2, 2.5)]
    assert len(run.notes) == 3


@pytest.mark.parametrize("line", MALFORMED)
def test_a_malformed_line_is_left_out_and_counted(tmp_path: Path, line: str) -> None:
    run = read(tmp_path, megatron(1) + line + megatron(2))
    assert [step.index for step in run.steps] == [1, 2]
    assert note(run, "1 iteration lines without a usable time")
    with pytest.raises(UserError, match="has 1 iteration lines, but none of them says how long it took"):
        read(tmp_path, line)


def test_absurd_settings_and_ranks_break_nothing(tmp_path: Path) -> None:
    nines = "9" * 5000
    text = f"seq_length: {nines}\nusing world size: {nines}\n[Rank {nines}] memory (MB) | max allocated: 5.0 |\n"
    run = read(tmp_path, text + megatron(1))
    assert run.environment is not None
    assert run.environment.ranks == 0


def test_ranks_on_one_line_are_taken_apart(tmp_path: Path) -> None:
    memory = "[Rank 0] (after 1 iterations) memory (GB) | mem-max-allocated-gigabytes: 20.0 |"
    line = megatron(1, 100.0).rstrip("\n") + bridge_rate(0.2, 50.0).rstrip("\n") + memory + megatron(2, 200.0)
    found = entries(line, whole=True)
    assert [entry.form.kind for entry in found] == ["iteration", "rate", "memory", "iteration"]
    run = read(tmp_path, line)
    assert [step.ms for step in run.steps] == [100.0, 200.0]
    assert value(run, "tflops_per_second_per_gpu") == 50.0
    assert run.memory is not None
    assert isinstance(run.memory.peak, Figure)
    assert run.memory.peak.value == 20e9


def test_a_figure_that_another_rank_interrupts_is_left_out(tmp_path: Path) -> None:
    torn = (
        " iteration 2/ 9 | lm loss: 2.0 | elapsed time per iteration (ms): 12[Rank 0] (after 2 iterations) memory (MB)"
    )
    run = read(tmp_path, megatron(1) + torn + " | allocated: 5.0 | max allocated: 7.0 |\n")
    assert [step.index for step in run.steps] == [1]
    assert run.memory is not None
