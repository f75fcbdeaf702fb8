"""Ids as DLRM's tables get them, and what is read for them: rows, sectors, bytes.

Row f of a table of D numbers takes D · itemsize bytes; caches move sectors of 32 bytes, and memory gives two at a time.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn

from data import population
from kernels.inductor import lower, parse
from kernels.measure.runs import generators
from lessons.shared.records import SECTOR

CARDINALITIES = tuple(category.cardinality for category in population.CATEGORIES.values())  # Criteo's
ROW_OFFSETS = (0, *accumulate(CARDINALITIES))
ZIPF = 1.05  # id k is about k^-ZIPF as often as id 1
ID_BYTES = 8
PAIR = 2 * SECTOR  # bytes that memory gives at a time


class SeparateTables(nn.Module):
    """F look-ups in F tables, one after the other: ids [B, F] → [B, F, D]."""

    def __init__(self, heights: tuple[int, ...], width: int):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(height, width) for height in heights)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.stack([table(ids[:, f]) for f, table in enumerate(self.tables)], dim=1)


def compiled_look_ups(tables: int, batch: int = 2048, width: int = 16, **options) -> list[str]:
    """The source of each kernel that torch.compile writes for so many look-ups, with these options of Inductor's; it
    takes no GPU."""
    ids = torch.randint(100, (batch, tables))
    (module,) = lower.triton_source(SeparateTables((100,) * tables, width), ids, options=options)
    return [kernel.source for kernel in parse.split(module)]


def body(source: str) -> str:
    """The lines of a generated kernel, without its imports and its metadata."""
    return source[source.index("def ") :].strip()


def draw(batch: int, zipf: float = 0.0, seed: int = 0) -> np.ndarray:
    """Ids int64 [batch, 26] below Criteo's cardinalities: uniform, or with zipf > 0 the smaller the more frequent."""
    _, ids = generators(torch.float32, torch.device("cpu"), seed)
    return torch.stack([ids(batch, below=rows, zipf=zipf) for rows in CARDINALITIES], dim=1).numpy()


def rows_of(ids: np.ndarray) -> np.ndarray:
    """The row of each id in the one buffer that holds the 26 tables, one behind the other."""
    return ids + np.array(ROW_OFFSETS[:-1])


def sectors(rows: np.ndarray, row_bytes: int, size: int = SECTOR) -> int:
    """How many different sectors, or pairs of that size, these rows lie in; row 0 starts on a boundary."""
    rows = np.unique(rows)
    first, last = rows * row_bytes // size, ((rows + 1) * row_bytes - 1) // size
    shared = first[1:] == last[:-1]  # rows in order: one sector at most is the one before's too
    return int((last - first + 1).sum() - shared.sum())


def bytes_a_read(width: int, reads: int = 8000) -> float:
    """Bytes that memory gives for a row of `width` float32 numbers, on average of rows far from each other."""
    apart = 1001
    return PAIR * sectors(apart * np.arange(reads), 4 * width, PAIR) / reads


def percent_distinct(ids: np.ndarray) -> float:
    """How many of the reads are of a row that none before has read, in percent."""
    return 100 * len(np.unique(rows_of(ids))) / ids.size


def needed_bytes(ids: np.ndarray, row_bytes: int) -> int:
    """What one call must move: each id, each sector once, each row of the output."""
    return ids.size * (ID_BYTES + row_bytes) + SECTOR * sectors(rows_of(ids), row_bytes)
