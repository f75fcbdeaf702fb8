"""Updates of tables on this machine, whatever it is: what the notebook's cells headed "On your machine" print."""

from __future__ import annotations

import torch

import kernels
from kernels import runtime
from model import profiling


def updates(rows: int = 200_000, batch: int = 2048, width: int = 16, rate: float = 0.1) -> None:
    """Print ms of SGD on one table, host included: by a dense gradient, by the batch's rows alone, by the fused op."""
    device = runtime.device()
    table, bounds = torch.rand(rows, width, device=device), torch.tensor([0, rows], device=device)
    ids, grad = torch.randint(rows, (batch, 1), device=device), torch.rand(batch, 1, width, device=device)
    ways = {
        "dense": lambda: table.sub_(torch.zeros_like(table).index_add_(0, ids[:, 0], grad[:, 0]), alpha=rate),
        "sparse": lambda: table.index_add_(0, ids[:, 0], grad[:, 0], alpha=-rate),
        "fused": lambda: kernels.embedding_bags_sgd_(table, bounds, ids, grad, rate),
    }
    print(f"ms of an update of {batch:,} rows in a table of {rows:,}: 20th, 50th, 80th percentile")
    times = profiling.step_times(ways, rounds=10 if device.type == "cuda" else 2)
    print(times.quantile([0.2, 0.5, 0.8]).round(3).to_string())


def two_sums(count: int = 100_000) -> None:
    """Print the sum of so many gradients of one row, twice as `index_add_` adds them and twice as the op does."""
    device = runtime.device()
    values, ids = torch.randn(count, 1, device=device), torch.zeros(count, dtype=torch.int64, device=device)
    bounds = torch.tensor([0, 1], device=device)
    ways = {
        "index_add_ (atomics on a GPU, not on a CPU)": lambda row: row.index_add_(0, ids, values),
        "fused": lambda row: kernels.embedding_bags_sgd_(row, bounds, ids[:, None], -values[:, None], 1.0),
    }
    print(f"{count:,} gradients of one row, added up twice in each way:")
    for name, add in ways.items():
        print(f"  {name}:", *(add(torch.zeros(1, 1, device=device)).item() for _ in range(2)))
