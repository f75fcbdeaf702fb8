"""What `kernels.check` takes embedding_bags_apart through, and how far its results may be off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...check import Call, Case, Dimension, Spec, Sums
from .eager import embedding_bags_apart

HEIGHTS = (37, 1, 8)


def draw_bags(rows: int, seed: int, heights: Sequence[int] = HEIGHTS) -> tuple[list[Tensor], list[Tensor]]:
    """(ids of each table, offsets int64 [rows + 1]) of bags of 0 to 4 ids, one in twenty of 13."""
    generator = torch.Generator().manual_seed(seed)
    indices, offsets = [], []
    for height in heights:
        lengths = torch.randint(5, (rows,), generator=generator)
        lengths[torch.rand(rows, generator=generator) < 0.05] = 13
        offsets.append(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
        indices.append(torch.randint(height, (int(lengths.sum()),), generator=generator))
    return indices, offsets


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    *leading, width = case.shape
    rows, heights = math.prod(leading), case.sizes or HEIGHTS
    drawn = case if case.only in ("", "tables") else Case(case.shape, case.dtype)
    tables = [drawn.tensor(seed, device, (height, width)) for seed, height in enumerate(heights)]
    if case.values == "huge":
        tables = [table / 1024 for table in tables]  # a dozen must not overflow in one order and stay finite in another
    indices, offsets = ([tensor.to(device) for tensor in drawn] for drawn in draw_bags(rows, sum(case.shape), heights))
    begins = [tensor[:-1] for tensor in offsets]
    generator = torch.Generator().manual_seed(rows)
    columns = torch.stack([torch.randint(height, (rows,), generator=generator) for height in heights], 1).to(device)

    yield Call(f"{case} bags", (tables, indices, begins), ("sum", False))
    yield Call(f"{case} one id", (tables, list(columns.unbind(1)), None), ("sum", False))
    narrow = [tensor.int() for tensor in indices], [tensor.int() for tensor in offsets]
    yield Call(f"{case} bags mean int32", (tables, *narrow), ("mean", True))
    yield Call(f"{case} one id mean int32", (tables, [ids.int() for ids in columns.unbind(1)], None), ("mean", False))


def _cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(0, 5), (5, 0), (1, 1), (7, 1), (120, 4), (1, 4097), (3, 1025), (33, 129), (9,), (2, 0, 3)]
    cases = [Case(shape, every_option=False) for shape in shapes]
    cases += [Case((6, 24), layout=layout) for layout in ("transposed", "strided", "expanded", "misaligned")]
    cases += [Case((1, 7)), Case((13, 40), values="special"), Case((40, 16), values="large"), Case((70, 16))]
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        cases += [Case((13, 24), dtype), Case((6, 24), dtype, "misaligned"), Case((7, 5), dtype, values="special")]
    return cases


def _wide_cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(4099, 16), (2048, 128), (1031, 1024), (517, 1023), (26215, 4)]
    return [Case(shape, dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)]


SPEC = Spec(
    embedding_bags_apart,
    _calls,
    # A row's gradient adds up to some hundred terms in another order than the reference, which in float64 is no better.
    scale=Sums(k=16.0),
    cases=_cases,
    wide_cases=_wide_cases,
    # The second has one table of one row, the least that there is to do.
    dimensions=(Dimension(lambda n: Case((1, n))), Dimension(lambda n: Case((n, 3), sizes=(1,)), large=1024)),
    overload=lambda arguments: (*arguments[:2], [] if arguments[2] is None else arguments[2], *arguments[3:]),
)
