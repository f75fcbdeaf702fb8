"""Ids as DLRM's tables get them, one a feature and row, or bags of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from data import population
from kernels.measure.runs import generators
from kernels.ops.embedding_bags.bench import lengths

CRITEO = tuple(category.cardinality for category in population.CATEGORIES.values())  # rows of its 26 tables


def draw(rows: int, heights: Sequence[int], device: str | torch.device = "cpu", zipf: float = 0.0) -> Tensor:
    """Ids int64 [rows, F] below the tables' heights: uniform, or with zipf > 0 id k about (k + 1)^-zipf as often as
    id 0. torch.manual_seed repeats them."""
    _, ids = generators(torch.float32, torch.device(device), int(torch.randint(2**31, ())))
    return torch.stack([ids(rows, below=height, zipf=zipf) for height in heights], dim=1)


def draw_bags(rows: int, heights: Sequence[int], device: str | torch.device) -> tuple[Tensor, Tensor]:
    """ids [N] feature by feature, by Zipf's law, and offsets [F · rows + 1] of bags as long as the benchmark's."""
    ids = draw(int(lengths(rows).sum()), heights, device, zipf=1.05)
    each = torch.cat([lengths(rows)[torch.randperm(rows)] for _ in heights])
    return ids.t().flatten(), torch.nn.functional.pad(each.cumsum(0), (1, 0)).to(device)
