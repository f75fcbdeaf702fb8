"""The lesson's experiments on this machine: what Triton makes of the steps for an H200, a race, a breakpoint, times."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels import runtime
from kernels.inductor.machine_code import registers
from lessons.n13_softmax_to_matrix_product import tiled_cuda
from lessons.n13_softmax_to_matrix_product.launch import STEPS
from lessons.shared.timing import print_times
from lessons.shared.to_cubin import compiled as shared_compiled
from model.config import Precision
from model.device import settings

ROOT = Path(__file__).resolve().parents[3]
STOPPING = "lessons.n13_softmax_to_matrix_product.breakpoint_kernel"


@dataclass(frozen=True)
class Made:
    """registers: of a thread; shared: bytes of a program. tensor: instructions that multiply on tensor cores; ahead,
    by_tma: copies into shared memory by threads that need not wait, and by the SM's unit for copies."""

    name: str
    registers: int
    shared: int
    tensor: int
    ahead: int
    by_tma: int


def compiled(name: str) -> Made:
    """A step for an H200, in bfloat16."""
    config = STEPS[name]
    types = {tensor: "*bf16" for tensor in ("x", "weight", "bias", "out")} | dict.fromkeys("MNK", "i32")
    constants = {"ROWS": config.rows, "COLUMNS": config.columns, "STEP": config.step, "GROUP": config.group,
                 "EPILOGUE": True}
    if config.kernel == "naive":
        constants = {"STEP": config.step}
    elif config.kernel == "tiled":
        constants |= {"UNITS": config.units}
    else:
        constants |= {"PARTS": config.parts, "FLATTEN": config.kernel == "persistent"}
        sides = {"x": (config.rows, config.step), "weight": (config.columns, config.step),
                 "out": (config.rows, config.columns // config.parts)}
        types |= {tensor: f"tensordesc<bf16[{a}, {b}]>" for tensor, (a, b) in sides.items()}
    kernel = {"naive": "naive_kernel", "tiled": "tiled_kernel"}.get(config.kernel, "persistent_kernel")
    binary = shared_compiled(
        f"lessons.n13_softmax_to_matrix_product.product_kernels.{kernel}",
        tuple(types.items()),
        tuple(constants.items()),
        aligned=tuple(name for name, kind in types.items() if "desc" not in kind),
        num_warps=config.warps, num_stages=config.stages,
    )
    counts = [len(re.findall(word, binary.ptx)) for word in
              (r"wgmma\.mma_async|mma\.sync", r"cp\.async\.c[ag]", r"cp\.async\.bulk\.tensor\S*\.global\.mbarrier")]
    return Made(name, registers(binary.cubin), binary.shared, *counts)


def show_compiled(*names: str) -> None:
    """A line a step: what Triton makes of it here, for an H200, which need not be here."""
    print("                registers  shared KB  products on tensor cores  copies ahead  by TMA")
    for step in map(compiled, names):
        print(f"{step.name:15} {step.registers:9}  {step.shared / 1024:9.0f}  {step.tensor:24}  {step.ahead:12}"
              f"  {step.by_tma:6}")


def times(size: int | None = None) -> None:
    """µs of PyTorch's product in float32 and in bfloat16, by turns."""
    device = runtime.device()
    size = size or (4096 if device.type == "cuda" else 256)
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    with settings(0, Precision.FP32):
        print_times(
            {
                f"{size}³, float32": functools.partial(_product, a.float(), b.float()),
                f"{size}³, bfloat16": functools.partial(_product, a, b),
            },
            tolerance=0.02,
        )


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b.T


def race(barrier: bool) -> None:
    """tiled.cuh under ThreadSanitizer, on the host, with its second barrier or without."""
    try:
        print(*tiled_cuda.race(tiled_cuda.on_host(barrier)), sep="\n  ")
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"not run here: {error}")


def stop(*commands: str) -> None:
    """breakpoint_kernel.py in Triton's interpreter, with these commands for Python's debugger at its breakpoint."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", STOPPING], input="\n".join([*commands, "q", ""]), capture_output=True, text=True,
        cwd=ROOT, env=environment | {"PYTHONBREAKPOINT": "pdb.set_trace"}, check=False,
    )
    answers = re.split(r"\(Pdb\) ", done.stdout)
    print("stopped before:", answers[0].rpartition("->")[2].strip())
    for command, answer in zip(commands, answers[1:], strict=False):
        shown = [line for line in answer.rstrip().splitlines() if not line.startswith(("> ", "-> "))]
        print("\n".join([f"(Pdb) {command}", *shown]))
