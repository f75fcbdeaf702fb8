"""The notebook's cells headed "On your machine": a step's phases, a call, and a product, measured here."""

import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from kernels import runtime
from lessons.shared.timing import print_times
from model.config import Precision
from model.device import settings
from model.profiling.phases import by_phase
from model.profiling.recording import record
from model.profiling.traced_steps import TRACED_STEPS, training_step


def step() -> None:
    """Print the phases of the story's step 04, `small` with modulus, of 64 rows on a CPU."""
    device = runtime.device()
    gpu = device.type == "cuda"
    rows = 2048 if gpu else 64
    function, config = training_step(replace(TRACED_STEPS[3], batch_size=rows), device)
    # One thread on a CPU: at these sizes, sharing an operation costs more than it saves.
    with tempfile.TemporaryDirectory() as folder, settings(0 if gpu else 1, Precision.FP32), _quiet():
        out, timed = Path(folder) / "here", 20 if gpu else 2
        run = record(function, out, config=config, device=device, timed=timed, stacks=False)
        table = by_phase(out)
    profiled = table["host µs"]["total"] / 1e3
    print(f"{_name()}, {rows} rows: {run['step_ms']:.2f} ms a step without the profiler, {profiled:.2f} with it")
    shown = table if gpu else table[["host µs"]]
    print(shown.round(0).astype(int).to_string())


def call() -> None:
    """Print what `x + 1` costs, the GPU's work waited for at the end of many."""
    x = torch.ones(64, 64, device=runtime.device())
    print_times({"x + 1": lambda: x + 1})


def clocks() -> None:
    """Print what a clock shows that stops when a product's call returns, and one that waits until it is done."""
    gpu = runtime.device().type == "cuda"
    size = 8192 if gpu else 512
    x = torch.randn(size, size, device=runtime.device())
    wait = torch.cuda.synchronize if gpu else lambda: None
    for _ in range(3):  # the first call loads libraries
        wait()
        start = time.perf_counter()
        x @ x
        returned = time.perf_counter() - start
        wait()
        done = time.perf_counter() - start
    print(f"{_name()}: x @ x has returned after {1e3 * returned:.3f} ms, and is done after {1e3 * done:.3f} ms")


def precisions(size: int = 8192) -> None:
    """Print the times of a product in float32 and in TF32. A CPU has no TF32."""
    if runtime.device().type != "cuda":
        print("CPU: it has no TF32")
        return
    x = torch.randn(size, size, device=runtime.device())

    def product(precision: Precision) -> torch.Tensor:
        with settings(0, precision):
            return x @ x

    print_times({str(each): partial(product, each) for each in (Precision.FP32, Precision.TF32)}, tolerance=1e-2)


def _name() -> str:
    return torch.cuda.get_device_name() if runtime.device().type == "cuda" else "CPU"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the profiler's warnings, and what its C++ libraries write to stderr, past Python. Errors are raised."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
