"""The lesson's experiments on this machine, whatever it is: what its cells headed "On your machine" print."""

from __future__ import annotations

from functools import partial

import torch

from kernels import runtime
from lessons.n06_how_a_gpu_runs_a_kernel import compiled
from lessons.shared.timing import print_times
from model.config import Precision
from model.device import settings


def strides(*strides: int, reads: int | None = None) -> None:
    """µs to add up every stride-th of some numbers, as many for each stride, by PyTorch."""
    device = runtime.device()
    count = reads or (1 << 24 if device.type == "cuda" else 1 << 20)
    x = torch.ones(count * max(strides), device=device)
    print(f"{count:,} numbers, {4 * count / 1e6:.0f} MB")
    with settings(1, Precision.FP32):
        print_times({f"stride {stride}": x[::stride][:count].sum for stride in strides})


def layers(rows: int | None = None) -> None:
    """µs of two of DLRM's layers, in float32 and in bfloat16: the bottom MLP's first and the top MLP's first."""
    device = runtime.device()
    rows = rows or (65536 if device.type == "cuda" else 64)
    for depth, columns in ((13, 512), (367, 512)):
        times = {}
        for dtype in (torch.float32, torch.bfloat16):
            a, b = (torch.ones(n, depth, dtype=dtype, device=device) for n in (rows, columns))
            name = str(dtype).removeprefix("torch.")
            times[f"{depth} to {columns}, {name}"] = partial(_product, a, b)
        print_times(times, tolerance=0.01)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a @ b.T).float()


def registers(*blocks: int) -> None:
    """What Triton makes of copy_kernel here, for an H200, which need not be here."""
    for made in map(compiled.copy, blocks):
        loads = f"{made.loads:2} loads of {4 * made.neighbours} bytes"
        print(f"BLOCK {made.block:5}: {made.block // 128:3} numbers a thread, {made.registers:3} registers, {loads}")
