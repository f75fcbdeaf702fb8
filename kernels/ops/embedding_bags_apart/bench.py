"""What is measured of embedding_bags_apart: `python -m kernels.measure bench embedding_bags_apart`.

A cell's tensors are the tables, each table's ids and, of bags, each table's offsets, one after the other.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels

from ...check import Spec, Sums
from ...inductor import together
from ...measure.cells import Cell
from ...measure.judge import AtMost, NeverSlower

OP = "embedding_bags_apart"
# The cardinalities of C1 to C26 of Criteo's Kaggle data, and a row a table for what is not known: 33.8 million in all.
KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
HEIGHTS = tuple(cardinality + 1 for cardinality in KAGGLE)
SMALL = tuple(min(height, 100_000) for height in HEIGHTS)  # whose dense gradients are small
FEATURES = len(HEIGHTS)
ZIPF = 1.05
LENGTH = 5  # of a bag
SHOWN = {"rows": 65536, "width": 16, "ids": "uniform"}
OURS = ("cuda",)
TARGETS = (
    NeverSlower(who=OURS), AtMost(0.5, "eager", "bandwidth", OURS), AtMost(0.5, "eager", "ragged", OURS),
    AtMost(1.0, "eager", "backward", OURS),
)  # fmt: skip


def _lists(tensors: tuple[Tensor, ...]) -> list[list[Tensor]]:
    return [list(tensors[start : start + FEATURES]) for start in range(0, len(tensors), FEATURES)]


def _ours(backend: str) -> Callable:
    return lambda *tensors: kernels.embedding_bags_apart(*_lists(tensors), backend=backend)


def _reference(*tensors: Tensor) -> Tensor:
    """An operator a table, as one would write it."""
    tables, indices, *offsets = _lists(tensors)
    if offsets:
        pooled = map(functools.partial(F.embedding_bag, mode="sum"), indices, tables, offsets[0])
    else:
        pooled = map(F.embedding, indices, tables)
    return torch.stack(list(pooled), 1)


def _spec(ragged: bool) -> Spec:
    """The op with a name for each of its tensors."""

    def reference(*tensors: Tensor) -> Tensor:
        return _reference(*tensors)

    kinds = ("table", "ids", "offsets") if ragged else ("table", "ids")
    names = [f"{kind}_{k}" for kind in kinds for k in range(FEATURES)]
    of_tensor = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    reference.__signature__ = inspect.Signature(of_tensor)
    return Spec(reference, lambda case, device: iter(()), scale=Sums(k=16.0))


def _compiled(**options) -> Callable:
    return torch.compile(_reference, dynamic=False, options=options or None)


def _cell(
    part: str, rows: int, width: int, ids: str, heights: tuple[int, ...] = HEIGHTS, compiled: bool = True
) -> Cell:
    ragged, count = part == "ragged", rows * LENGTH if part == "ragged" else rows
    zipf = ZIPF if ids == "zipf" else 0.0

    def shared(draw: Callable) -> tuple[Tensor, ...]:
        return tuple(draw(height, width) for height in heights)

    def inputs(draw: Callable, ids: Callable, *tables: Tensor) -> tuple[Tensor, ...]:
        indices = [ids(count, below=height, zipf=zipf) for height in heights]
        offsets = [torch.arange(rows, device=tables[0].device) * LENGTH for _ in heights] if ragged else []
        return (*tables, *indices, *offsets)

    peers = {"torch.compile": _compiled} if compiled else {}
    for setting, options in together().items() if compiled else ():
        peers[f"torch.compile, {setting}"] = functools.partial(_compiled, **options)
    size, kind = width * 4, "all rows" if heights == HEIGHTS else f"at most {max(heights):,} rows a table"
    # Look-ups read at most a row for each id, and write a row for each bag; a gradient writes the tables once.
    moved = FEATURES * (count * (size + 8) + rows * (size + 8 * ragged))
    gradient = FEATURES * rows * (size + 8) + sum(heights) * size
    return Cell(
        OP, part, "backward" if part == "backward" else "functional",
        {"rows": rows, "features": FEATURES, "width": width, "dtype": "float32", "ids": ids, "tables": kind},
        shared=shared,
        inputs=inputs,
        implementations={
            "eager": lambda: _reference, **peers, **{name: functools.partial(_ours, name) for name in OURS}
        },
        bytes=gradient if part == "backward" else moved,
        smaller=lambda: _cell(part, rows, width, ids, SMALL, compiled) if heights != SMALL else None,
        spec=_spec(ragged),
    )  # fmt: skip


def cells(quick: bool = False) -> Iterator[Cell]:
    """Cells by part: one id a feature against the bytes, bags of five ids, and the dense gradients."""
    for rows in (65536,) if quick else (2048, 16384, 65536):
        for ids in ("uniform", "zipf"):
            yield _cell("bandwidth", rows, 16, ids, compiled=not quick and ids == "uniform")
    yield _cell("bandwidth", 8192, 128, "uniform", SMALL, compiled=False)
    for rows in (16384,) if quick else (2048, 16384):
        yield _cell("ragged", rows, 16, "zipf", compiled=False)
    yield _cell("backward", 16384, 16, "uniform", SMALL, compiled=not quick)
