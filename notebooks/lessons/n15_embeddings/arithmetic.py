"""Ids as DLRM's tables get them, and what memory gives for a row: sectors of 32 bytes, two at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from data import population
from kernels.measure.runs import generators
from kernels.ops.embedding_bags.bench import lengths
from lessons.shared.records import SECTOR

CRITEO = tuple(category.cardinality for category in population.CATEGORIES.values())  # rows of its 26 tables
PAIR = 2 * SECTOR  # bytes that memory gives at a time


def draw(rows: int, zipf: float = 0.0, heights: Sequence[int] = CRITEO, device: str | torch.device = "cpu") -> Tensor:
    """Ids int64 [rows, F] below the tables' heights: uniform, or with zipf > 0 id k about (k + 1)^-zipf as often as
    id 0. torch.manual_seed repeats them."""
    _, ids = generators(torch.float32, torch.device(device), int(torch.randint(2**31, ())))
    return torch.stack([ids(rows, below=height, zipf=zipf) for height in heights], dim=1)


def draw_bags(rows: int, heights: Sequence[int], device: str | torch.device) -> tuple[Tensor, Tensor]:
    """ids [N] feature by feature, by Zipf's law, and offsets [F · rows + 1] of bags as long as the benchmark's."""
    ids = draw(int(lengths(rows).sum()), 1.05, heights, device)
    each = torch.cat([lengths(rows)[torch.randperm(rows)] for _ in heights])
    return ids.t().flatten(), torch.nn.functional.pad(each.cumsum(0), (1, 0)).to(device)


def pairs(rows: Tensor, row_bytes: int) -> int:
    """How many different pairs of sectors these rows lie in; row 0 starts on a boundary."""
    rows = rows.unique()
    first, last = rows * row_bytes // PAIR, ((rows + 1) * row_bytes - 1) // PAIR
    shared = first[1:] == last[:-1]  # rows in order: one pair at most is the one before's too
    return int((last - first + 1).sum() - shared.sum())


def bytes_a_read(width: int, reads: int = 8000) -> float:
    """Bytes that memory gives for a row of `width` float32 elements, on average of rows far from each other."""
    return PAIR * pairs(1001 * torch.arange(reads), 4 * width) / reads
