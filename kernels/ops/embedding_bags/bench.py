"""What is measured of embedding_bags: `python -m kernels.measure bench embedding_bags`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from ...inductor import together
from ...measure import fbgemm
from ...measure.cells import OURS, Calls, Cell, FirstCall, Lengths, Row, calls, implementations
from ...measure.judge import CALLS, AnyLength, AtMost, Verdict, name
from .eager import forward_bytes

OP = "embedding_bags"
# The cardinalities of C1 to C26 of Criteo's Kaggle data, and a row a table for what is not known: 33.8 million in all.
KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
HEIGHTS = tuple(cardinality + 1 for cardinality in KAGGLE)
# Tables of 17 GB do not fit beside what they are compared with, in float64. A batch of 65536 ids still meets 97 % of
# them once only, with a million rows a table.
MOST_ROWS = 1_000_000
CAPPED = tuple(min(height, MOST_ROWS) for height in HEIGHTS)
SMALL = tuple(min(height, 100_000) for height in HEIGHTS)  # whose dense gradients are small
FEATURES = len(HEIGHTS)
ROWS = (2048, 16384, 65536)
ZIPF = 1.05
NAMES = ("eager", "torch.compile", "triton", "cuda")
SHOWN = {"rows": 65536, "width": 16, "ids": "uniform"}
# µs on an H200, by ids, width and rows. The time of the bytes themselves is some 15 % less.
LIMITS = {
    ("uniform", 16, 2048): 2.8, ("uniform", 16, 16384): 11.5, ("uniform", 16, 65536): 43.0,
    ("zipf", 16, 2048): 2.9, ("zipf", 16, 16384): 10.4, ("zipf", 16, 65536): 42.0,
    ("uniform", 128, 65536): 303.0,
}


@dataclass(frozen=True)
class Within:
    """Each of ours takes at most so many µs, as `limits` says for (ids, width, rows), where it says."""

    limits: Mapping[tuple, float]
    part: str = "bandwidth"

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        figures, misses, seen = [], [], set()
        for row in (row for row in rows if row.implementation in OURS):
            key = row.labels["ids"], row.labels["width"], row.labels["rows"]
            if key not in self.limits:
                continue
            seen.add((row.implementation, key))
            us = row.us_p50 or math.inf
            figures.append(f"{row.implementation} {key[0]} {key[2]}×{key[1]} {us:.2f} of {self.limits[key]}")
            if us > self.limits[key]:
                misses.append(f"{name(row)}: {us:.2f} µs, {self.limits[key]} asked")
        met = not misses and len(seen) == len(OURS) * len(self.limits)
        return Verdict(self.part, met, f"µs: {', '.join(figures)}", misses)


TARGETS = (
    Within(LIMITS), AtMost(0.2, "eager", "ragged"), AtMost(0.2, "eager", "uneven bags"),
    AtMost(1.0, "eager", "backward"), AnyLength(), *CALLS,
)  # fmt: skip


def _offsets(heights: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.tensor([0, *accumulate(heights)], device=like.device)


def _shared(heights: tuple[int, ...], width: int) -> Callable:
    def shared(draw: Callable) -> tuple[Tensor, ...]:
        tables = draw(sum(heights), width)
        return tables, _offsets(heights, tables)

    return shared


def _single(heights: tuple[int, ...], rows: int, zipf: float, prepared: dict | None) -> Callable:
    """prepared: gets the ids of each set as FBGEMM wants them, by the place of ours in memory."""

    def inputs(draw: Callable, ids: Callable, tables: Tensor, row_offsets: Tensor) -> tuple[Tensor, ...]:
        indices = torch.stack([ids(rows, below=height, zipf=zipf) for height in heights], dim=1)
        if prepared is not None:
            prepared[indices.data_ptr()] = fbgemm.by_feature(indices)
        return tables, row_offsets, indices

    return inputs


def lengths(rows: int, uneven: bool = False) -> Tensor:
    """The lengths of a feature's bags, a Zipf distribution's of mean 5 (uneven: one of 40 ids for seven empty ones),
    the same for each feature and set, so that a peer that takes a table at a time knows where its ids begin; in which
    order they come is drawn."""
    if uneven:
        return torch.where(torch.arange(rows) % 8 == 0, 40, 0)
    top, power = 31.0, -0.5
    quantiles = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    return (1 + quantiles * (top**power - 1)).pow(1 / power).long()


def _ragged(heights: tuple[int, ...], rows: int, zipf: float, prepared: dict | None, uneven: bool = False) -> Callable:
    def inputs(draw: Callable, ids: Callable, tables: Tensor, row_offsets: Tensor) -> tuple[Tensor, ...]:
        of_bags = lengths(rows, uneven).to(tables.device)
        drawn = [of_bags[draw(rows).argsort()] for _ in heights]
        offsets = torch.cat([row_offsets[:1], torch.cat(drawn).cumsum(0)])
        count = int(of_bags.sum())
        return tables, row_offsets, torch.cat([ids(count, below=height, zipf=zipf) for height in heights]), offsets

    return inputs


def _table_by_table(heights: tuple[int, ...]) -> Callable:
    """nn.Embedding's operator a table, as one would write it."""

    def look_up(tables: Tensor, row_offsets: Tensor, indices: Tensor) -> Tensor:
        parts = tables.split(heights)
        return torch.stack([F.embedding(indices[:, f], part) for f, part in enumerate(parts)], dim=1)

    return look_up


def _bag_by_bag(heights: tuple[int, ...], rows: int, uneven: bool) -> Callable:
    """nn.EmbeddingBag's operator a table; where a table's ids begin is known outside the timing."""
    count = int(lengths(rows, uneven).sum())

    def look_up(tables: Tensor, row_offsets: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        pooled = []
        for f, part in enumerate(tables.split(heights)):
            own = offsets[f * rows : (f + 1) * rows + 1] - f * count
            bags = ids[f * count : (f + 1) * count]
            pooled.append(F.embedding_bag(bags, part, own, mode="sum", include_last_offset=True))
        return torch.stack(pooled, dim=1)

    return look_up


def _table_batch(prepared: dict) -> Callable:
    """FBGEMM's look-up of all tables, made at the first call."""
    batches = []

    def look_up(tables: Tensor, row_offsets: Tensor, indices: Tensor, offsets: Tensor | None = None) -> Tensor:
        if not batches:
            batches.append(fbgemm.table_batch(tables, row_offsets))
        ids, offsets = prepared[indices.data_ptr()] if offsets is None else (indices, offsets)
        return batches[0](ids, offsets).unflatten(1, (-1, tables.shape[1]))

    return look_up


def _implementations(peer: Callable, names: tuple[str, ...], prepared: dict) -> dict[str, Callable]:
    ours = implementations(OP, (), [name for name in names if name in ("auto", *OURS)])
    compiled = functools.partial(torch.compile, peer, dynamic=False)
    peers = {"eager": lambda: peer, "torch.compile": compiled}
    peers[fbgemm.NAME] = functools.partial(_table_batch, prepared)
    if any(name.startswith("torch.compile, ") for name in names):  # to ask for settings imports Triton
        for setting, options in together().items():
            peers[f"torch.compile, {setting}"] = functools.partial(compiled, options=options)
    return {name: peers.get(name) or ours[name] for name in names}


def _cell(
    part: str, rows: int, width: int, ids: str, names: tuple[str, ...] = NAMES,
    heights: tuple[int, ...] = HEIGHTS, **more,
) -> Cell:
    zipf = ZIPF if ids == "zipf" else 0.0
    uneven = part == "uneven bags"
    ragged = part == "ragged" or uneven
    backward = part == "backward"
    # The dense gradient is written, once; the rows are not read for it, and what comes in is as large as the output.
    gradient = FEATURES * rows * (width * 4 + 8) + sum(heights) * width * 4
    capped = tuple(min(height, MOST_ROWS) for height in heights)
    smaller = functools.partial(_cell, part, rows, width, ids, names, capped, **more)
    prepared = {}
    draws = functools.partial(_ragged, uneven=uneven) if ragged else _single
    kind = "all rows" if heights == HEIGHTS else f"at most {max(heights):,} rows a table"
    cell = Cell(
        OP, part, "backward" if backward else "functional",
        {"rows": rows, "features": FEATURES, "width": width, "dtype": "float32", "ids": ids, "tables": kind},
        shared=_shared(heights, width),
        inputs=draws(heights, rows, zipf, None),
        implementations=_implementations(
            _bag_by_bag(heights, rows, uneven) if ragged else _table_by_table(heights), names, prepared
        ),
        bytes=gradient if backward else forward_bytes,
        smaller=lambda: smaller() if capped != heights else None,
        needs=fbgemm.NEEDS,
        **more,
    )
    if fbgemm.NAME in names and not cell.missing():
        return replace(cell, inputs=draws(heights, rows, zipf, prepared))
    return cell


def _small(draw: Callable[..., Tensor], ids: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    tables = draw(64, 16)
    return tables, _offsets((16,) * 4, tables), ids(16, 4, below=16)


def _lengths() -> Lengths:
    """Four tables and 64 rows, so that the GPU is done before the next call comes."""
    rows, heights = 64, (1000,) * 4

    def inputs(draw: Callable, ids: Callable, n: int, tables: Tensor, row_offsets: Tensor) -> tuple[Tensor, ...]:
        ends = ids(rows * len(heights) - 1, below=n).sort().values
        offsets = torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), n)])
        return tables, row_offsets, ids(n, below=heights[0]), offsets

    return Lengths(
        OP, {"rows": rows, "features": len(heights), "width": 16, "dtype": "float32"}, inputs,
        implementations(OP, (), ("eager", *OURS)), shared=_shared(heights, 16),
    )


def cells(quick: bool = False) -> Iterator[Cell | Calls | FirstCall | Lengths]:
    """Cells by part: one id a feature against the bytes, ragged bags and uneven ones against nn.EmbeddingBag, the
    dense gradient, the calls' cost, where the number of ids is another one each time too."""
    # Compiling 26 look-ups takes longer than measuring them: the peer is compiled for the cells that texts speak of.
    tbe = (fbgemm.NAME,)
    ours = tuple(name for name in NAMES if name != "torch.compile")
    names = ours if quick else NAMES
    for rows in ROWS:
        for ids in ("uniform", "zipf"):
            compiled = not quick and (rows == 65536 or (rows, ids) == (2048, "uniform"))
            set_best = together() if compiled and ids == "uniform" else ()
            each = (f"torch.compile, {setting}" for setting in set_best)
            yield _cell("bandwidth", rows, 16, ids, (*(NAMES if compiled else ours), *each, *tbe))
    yield _cell("bandwidth", 65536, 128, "uniform", (*names, *tbe))
    # An output as large as that of 65536 rows of 16.
    yield _cell("bandwidth", 8192, 128, "uniform", (*ours, *tbe), CAPPED)
    for rows in (2048, 16384):
        yield _cell("ragged", rows, 16, "zipf", (*names, *tbe))
    yield _cell("uneven bags", 16384, 16, "zipf", (*ours, *tbe))
    yield _cell("backward", 16384, 16, "uniform", names, SMALL)
    labels = {"rows": 16, "features": 4, "width": 16, "dtype": "float32"}
    yield from calls(OP, labels, _small, ("tables", "row_offsets", "indices"), forms=("functional", "with a gradient"))
    yield _lengths()
    yield _cell("auto", 2048, 16, "uniform", ("eager", "auto"), SMALL, waits=True)
