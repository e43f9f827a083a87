"""Training logs as Megatron-LM, its forks, Megatron Bridge and NeMo print them, written for these tests."""

from pathlib import Path

from vlmprof.interop import read_megatron_log
from vlmprof.records.figures import Absent, Figure
from vlmprof.records.run import Run


def megatron(
    iteration: int,
    ms: float = 1000.0,
    loss: str = "2.500000E+00",
    rate: float | None = None,
    batch: int = 64,
    nans: int = 0,
    skipped: int = 0,
) -> str:
    """A line as Megatron-LM of 2026 prints it."""
    shown_rate = f" throughput per GPU (TFLOP/s/GPU): {rate:.1f} |" if rate is not None else ""
    return (
        f" [2026-01-01 12:00:00.123456] iteration {iteration:8d}/{1000:8d} | consumed samples: {iteration:12d} |"
        f" elapsed time per iteration (ms): {ms:.1f} |{shown_rate} learning rate: 3.000000E-05 |"
        f" global batch size: {batch:5d} | lm loss: {loss} | load_balancing_loss: 1.080000E+00 | loss scale: 1.0 |"
        f" grad norm: 0.750 | number of skipped iterations: {skipped:3d} | number of nan iterations: {nans:3d} |\n"
    )


def bridge_rate(seconds: float, rate: float) -> str:
    return f"Step Time : {seconds:.2f}s GPU utilization: {rate:.1f}MODEL_TFLOP/s/GPU\n"


def nemo(step: int, seconds: float = 2.5, loss: str = "10.5", more: str = "") -> str:
    return (
        f"Training epoch 0, iteration {step}/99 | lr: 3e-06 | global_batch_size: 128 | global_step: {step} | "
        f"{more}reduced_train_loss: {loss} | train_step_timing in s: {seconds} | consumed_samples: {(step + 1) * 128}\n"
    )


def bar(done: int, step: str, seconds: float, epoch: int = 0, end: str = "\r") -> str:
    return (
        f"Epoch {epoch}: :  {done * 10}%|███▌      | {done}/10 [06:19<07:13, v_num=7, reduced_train_loss=11.50, "
        f"global_step={step}, consumed_samples=12288.0, train_step_timing in s={seconds}]{end}"
    )


def read(folder: Path, text: str, warmup: int | None = 0) -> Run:
    path = folder / "train.log"
    path.write_text(text)
    return read_megatron_log(path, warmup)


def value(run: Run, name: str) -> float:
    measured = run.throughput[name]
    assert isinstance(measured, Figure)
    return measured.value


def absent(measured: object) -> str:
    assert isinstance(measured, Absent)
    return measured.absent


def note(run: Run, part: str) -> str:
    return next((one for one in run.notes if part in one), "")


# What each form's line gives: (iteration, ms, loss, grad norm, TFLOP/s)
LINES = {
    "Megatron-LM, new": (megatron(7, 5630.1, rate=231.9), (7, 5630.1, 2.5, 0.75, 231.9)),
    "Megatron-LM, 2020, no colons": (
        " iteration      200/    1000 | elapsed time per iteration (ms): 430.0 | learning rate 1.3E-04 | "
        "lm loss 7.4E+00 | loss scale 16384.0 |\n",
        (200, 430.0, 7.4, None, None),
    ),
    "Megatron-LM, one loss of another name": (
        " iteration 3/ 9 | elapsed time per iteration (ms): 80.5 | loss: 6.5 | mtp_1 loss: 1.0 | grad norm: 2.0 |\n",
        (3, 80.5, 6.5, 2.0, None),
    ),
    "Megatron-DeepSpeed, seconds": (
        "[default7]: iteration    12695/  115311 | consumed samples:      9841584 | elapsed time per iteration (s): "
        "105.22 | learning rate: 5.9E-05 | global batch size:  2048 | lm loss: 2.463556E+00 | grad norm: 0.174 | "
        "samples per second: 19.463 | TFLOPs: 149.02 |\n",
        (12695, 105220.0, 2.463556, 0.174, 149.02),
    ),
    "Megatron-DeepSpeed, equals signs": (
        "[2026-01-01 22:59:19][INFO][training_log:661] -  iteration=       1/  635782 | consumed_samples=         768 |"
        " elapsed_time_per_iteration_ms=29570.0 | lm loss=11.167250 | loss_scale=1.0 | grad_norm=6.363 | "
        "[LM]TFLOPs=20.30 | [DS]TFLOPs=26.18 |\n",
        (1, 29570.0, 11.16725, 6.363, 20.30),
    ),
    "Primus, running means behind a slash": (
        "[rank-7/8][INFO ] [trainer.py:2560] : iteration 126/ 5000 | consumed samples: 16128 | elapsed time per "
        "iteration (ms): 13372.8/13364.7 | mem usage/free: 153.81GB/102.17GB | throughput per GPU (TFLOP/s/GPU): "
        "567.6/568.0 | tokens per GPU (tokens/s/GPU): 9801.4/9807.3 | lm loss: 6.548988E-03 | grad norm: 0.061 |\n",
        (126, 13372.8, 6.548988e-03, 0.061, 567.6),
    ),
    "thousands separators": (
        "iteration 1,200/ 5,000 | elapsed time per iteration (ms): 13,372.8 | lm loss: 1.5 | grad norm: 0.5 |\n",
        (1200, 13372.8, 1.5, 0.5, None),
    ),
    "no end of training": (
        " iteration       10/infinity | elapsed time per iteration (ms): 12.5 | lm loss: 1.5 |\n",
        (10, 12.5, 1.5, None, None),
    ),
    "Megatron Bridge, rate in the line": (
        "[2026-05-06 00:00:01] iteration 4/ 9 | elapsed time per iteration (ms): 100.0 | lm loss: 1.0E+00 | "
        "grad norm: 1.0 | GPU utilization: 50.0MODEL_TFLOP/s/GPU\n",
        (4, 100.0, 1.0, 1.0, 50.0),
    ),
    "NeMo 2": (nemo(45, 6.08, "11.96", "TFLOPS_per_GPU: 1.249e+03 | "), (45, 6080.0, 11.96, None, 1249.0)),
    "NeMo 2 through NeMo-Run": (
        "retraining/0 [default0]:" + nemo(46, 2.008, "1.5", "grad_norm: 0.25 | "),
        (46, 2008.0, 1.5, 0.25, None),
    ),
    "NeMo 1, progress bar": (bar(7, "5.000", 49.5), (7, 49500.0, 11.5, None, None)),
    "NeMo 1, progress bar without a total": (
        "Epoch 1: : 12it [00:04,  4.36s/it, v_num=d3c7, reduced_train_loss=0.674, global_step=11.00, "
        "train_step_timing in s=3.370, batch_time=4.400, gradient_norm=8.600]\n",
        (11, 3370.0, 0.674, 8.6, None),
    ),
    "colours": (
        "\x1b[32m iteration\x1b[0m=\x1b[1;94m 5\x1b[0m/ 9 | elapsed_time_per_iteration_ms=\x1b[94m25.5\x1b[0m | "
        "lm loss=\x1b[94m3.5\x1b[0m | grad_norm=\x1b[94m1.5\x1b[0m |\n",
        (5, 25.5, 3.5, 1.5, None),
    ),
    "srun label": (f"0: {megatron(9, 12.5)}", (9, 12.5, 2.5, 0.75, None)),
    "Windows line end": (megatron(9, 12.5).replace("\n", "\r\n"), (9, 12.5, 2.5, 0.75, None)),
}


MEMORY_LINES = {
    "Megatron-LM": (
        "[Rank 3] (after 2 iterations) memory (MB) | allocated: 1024.5 | max allocated: 2048.25 | reserved: 4000.0 | "
        "max reserved: 4096.0\n",
        (2048.25 * 2**20, 1024.5 * 2**20, "4.0 GiB reserved: rank 3"),
    ),
    "Megatron-LM, around a checkpoint": (
        "[Rank 1] (before save_checkpoint for iteration 50) memory (MB) | allocated: 10.00 | max allocated: 30.00 | "
        "reserved: 40.00 | max reserved: 50.00 | total device memory used: 60.00\n",
        (30 * 2**20, 10 * 2**20, "50.0 MiB reserved: rank 1"),
    ),
    "Megatron-LM, 2020, no rank": (
        " (after 100 iterations) memory (MB) | allocated: 512.0 | max allocated: 768.0 | cached: 800.0 | "
        "max cached: 1024.0\n",
        (768 * 2**20, 512 * 2**20, "1.0 GiB reserved: the log does not say of which rank"),
    ),
    "a fork that prints GB": (
        "[Rank 2] (after 2 iterations) memory (GB) | allocated: 1.5 | max allocated: 2.5 | reserved: 3.0 | "
        "max reserved: 4.0\n",
        (2.5 * 2**30, 1.5 * 2**30, "4.0 GiB reserved: rank 2"),
    ),
    "Megatron Bridge": (
        "4: [Rank 4] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 63.66 | mem-active-gigabytes: 63.66 | "
        "mem-reserved-gigabytes: 182.2 | mem-max-allocated-gigabytes: 153.4 | mem-max-reserved-gigabytes: 182.2 | "
        "mem-alloc-retires: 0\n",
        (153.4e9, 63.66e9, "170 GiB reserved: rank 4"),
    ),
    "NeMo 2": (
        nemo(5, more="max_memory_reserved: 127785762816 | max_memory_allocated: 115792977920 | "),
        (115792977920.0, None, "119 GiB reserved: the log does not say of which rank"),
    ),
    "NeMo 2, other names": (
        nemo(5, more="peak_memory_usage: 72972500992 | memory_allocated: 34466545664 | "),
        (72972500992.0, 34466545664.0, "68.0 GiB allocated: the log"),
    ),
}


ARGUMENTS = """using world size: 16, data-parallel size: 4, context-parallel size: 1, tensor-model-parallel size: 4
using torch.bfloat16 for parameters ...
------------------------ arguments ------------------------
  decoder_seq_length .............................. None
  encoder_seq_length .............................. 4096
  fp8 ............................................. None
  global_batch_size ............................... 512
  log_interval .................................... 1
  max_position_embeddings ......................... 131072
  params_dtype .................................... torch.bfloat16
  seq_length ...................................... 4096
  world_size ...................................... 16
-------------------- end of arguments ---------------------
"""


MALFORMED = [
    "iteration 5/ 9 | elapsed time per iteration (ms): fast | lm loss: 2.0 |\n",
    "iteration 5/ 9 | elapsed time per iteration (ms): 12x4.3 | lm loss: 2.0 |\n",
    "iteration 5/ 9 | elapsed time per iteration (ms): nan | lm loss: 2.0 |\n",
    "iteration 5/ 9 | elapsed time per iteration (ms): 0.0 | lm loss: 2.0 |\n",
    "iteration 5/ 9 | elapsed time per iteration (ms): -3.0 | lm loss: 2.0 |\n",
    "iteration 5/ 9 | elapsed time per iteration (ms): 1e999 | lm loss: 2.0 |\n",
    f"iteration {'9' * 5000}/ 9 | elapsed time per iteration (ms): 5.0 |\n",
    "Training epoch 0, iteration 5/99 | lr: 1e-06 | global_step: 5 | reduced_train_loss: 2.6\n",
]
