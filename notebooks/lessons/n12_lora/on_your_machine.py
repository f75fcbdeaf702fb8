"""LoRA on this machine, whatever it is: what the notebook's cells headed "On your machine" print."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import nn

from kernels import runtime
from lessons.n12_lora import formulations
from lessons.shared.timing import print_times
from model.lora import LinearWithLoRA
from model.profiling.operators import Operator, Operators


@torch.no_grad()
def operators(layer: nn.Module, x: torch.Tensor) -> list[Operator]:
    """What a call of the layer runs, below autograd."""
    with Operators() as found:
        layer(x)
    return found.seen


def _layer(width: int, rank: int) -> LinearWithLoRA:
    device = runtime.device()
    layer = LinearWithLoRA(nn.Linear(width, width), rank, alpha=1.5 * rank, activation="relu").to(device)
    layer.lora.reset_parameters(b_std=0.02)
    return layer


def layers(rows: int | None = None, width: int | None = None, rank: int = 16) -> None:
    """µs of one layer's forward in float32: eager, fused (on a GPU: elsewhere it is eager too), merged."""
    gpu = runtime.device().type == "cuda"
    rows, width = rows or (8192 if gpu else 256), width or (4096 if gpu else 512)
    plain = _layer(width, rank)
    x = torch.randn(rows, width, device=runtime.device())
    merged = copy.deepcopy(plain).eval()
    merged.merge()
    times = {"eager": partial(plain, x)}
    if gpu:
        fused = copy.deepcopy(plain)
        fused.fused = True
        times["fused"] = partial(fused, x)
    times |= {"as one product": partial(formulations.OneProduct(plain), x), "merged": partial(merged, x)}
    print(f"{rows} rows of {width}, rank {rank}")
    print_times(times, tolerance=1e-3)


def adapters(rows: int | None = None, width: int | None = None, count: int = 8, rank: int = 8) -> None:
    """µs of (x A) B where each row chooses its adapter."""
    gpu = runtime.device().type == "cuda"
    rows, width = rows or (4096 if gpu else 64), width or (4096 if gpu else 256)
    random = partial(torch.randn, device=runtime.device())
    x, A, B = random(rows, width), random(count, width, rank) / width**0.5, random(count, rank, width) / rank**0.5
    adapter = torch.randint(count, (rows,), device=runtime.device())
    chosen = {name: way for name, way in formulations.MANY.items() if name != formulations.GROUPED}
    print(f"{rows} rows of {width}, {count} adapters of rank {rank}")
    print_times({name: partial(way, x, A, B, adapter) for name, way in chosen.items()}, tolerance=1e-3)
