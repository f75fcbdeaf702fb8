"""What is measured of embedding_bags_sort: `python -m kernels.measure bench embedding_bags_sort`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

import kernels

from ...measure.cells import Cell, Row
from ...measure.judge import Verdict, name

OP = "embedding_bags_sort"
# The cardinalities of C1 to C26 of Criteo's Kaggle data, and a row a table for what is not known: 33.8 million in all.
KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
HEIGHTS = tuple(cardinality + 1 for cardinality in KAGGLE)
ZIPF = 1.05
SHOWN = {"rows": 65536, "ids": "uniform"}
# µs on an H200: torch.sort of as many int32 keys, which are there already.
TORCH_SORT = {2048: 51.0, 16384: 64.0, 65536: 122.0}


@dataclass(frozen=True)
class Faster:
    """CUDA's takes less than torch.sort of ready keys, as `limits` says by batch."""

    limits: Mapping[int, float]
    part: str = "bandwidth"

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        figures, misses = [], []
        for row in (row for row in rows if row.implementation == "cuda" and row.labels["rows"] in self.limits):
            us, limit = row.us_p50 or math.inf, self.limits[row.labels["rows"]]
            figures.append(f"{row.labels['rows']} {row.labels['ids']} {us:.1f} of {limit}")
            if us >= limit:
                misses.append(f"{name(row)}: {us:.1f} µs, less than {limit} asked")
        return Verdict(self.part, bool(figures) and not misses, f"µs: {', '.join(figures)}", misses)


TARGETS = (Faster(TORCH_SORT),)


def _by(backend: str, table_keys: int = 32768) -> Callable:
    def sort(indices, row_offsets, offsets):
        arguments = (indices, row_offsets, offsets, sum(HEIGHTS), -1, False, table_keys)
        return kernels.embedding_bags_sort(*arguments, backend=backend)

    return sort


def _compiled() -> Callable:
    return torch.compile(_by("eager"), dynamic=False)


def _cell(batch: int, zipf: float) -> Cell:
    def inputs(draw: Callable, ids: Callable) -> tuple[Tensor | None, ...]:
        indices = torch.stack([ids(batch, below=height, zipf=zipf) for height in HEIGHTS], dim=1)
        return indices, torch.tensor([0, *accumulate(HEIGHTS)], device=indices.device), None

    keys = batch * len(HEIGHTS)
    return Cell(
        OP, "bandwidth", "functional", {"rows": batch, "ids": "zipf" if zipf else "uniform", "dtype": "float32"},
        inputs=inputs,
        implementations={
            "eager": functools.partial(_by, "eager"),
            "torch.compile": _compiled,
            "cuda": functools.partial(_by, "cuda"),
            "cuda, all at once": functools.partial(_by, "cuda", 0),
        },
        options=(sum(HEIGHTS), -1, False),
        bytes=keys * (8 + 4 + 4),
        smaller=lambda: _cell(batch // 2, zipf) if batch > 1024 else None,
    )


def cells(quick: bool = False) -> Iterator[Cell]:
    """One id a feature: ids in, keys and positions out."""
    for batch in (65536,) if quick else (2048, 4096, 16384, 65536):
        for zipf in (0.0, ZIPF):
            yield _cell(batch, zipf)
