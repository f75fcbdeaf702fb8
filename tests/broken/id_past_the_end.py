"""BROKEN ON PURPOSE: an id that is the height of its table is let through, and is the next table's first row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.embedding_bags import eager


@triton.jit
def kernel(
    tables_ptr, first_ptr, indices_ptr, out_ptr, padding,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):
    position = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    feature = position % FEATURES
    first = tl.load(first_ptr + feature)
    height = tl.load(first_ptr + feature + 1) - first
    ids = tl.load(indices_ptr + position).to(tl.int64)
    inside = (ids >= 0) & (ids <= height)  # the wrong line
    inside = inside & ((ids != padding) | (padding < 0))
    row = first + tl.where(inside, ids, 0)
    values = tl.load(tables_ptr + row * WIDTH + column, inside & (column < WIDTH), other=0.0)
    tl.store(out_ptr + position * WIDTH + column, values, column < WIDTH)


def embedding_bags(tables, row_offsets, indices, offsets, mode, weights, padding, out_of_range) -> Tensor:
    if offsets is not None or weights is not None:  # it is about one id a bag
        return eager.embedding_bags(tables, row_offsets, indices, offsets, mode, weights, padding, out_of_range)
    features, width = len(row_offsets) - 1, tables.shape[1]
    out = torch.empty(len(indices), features, width, dtype=tables.dtype, device=tables.device)
    if out.numel():
        kernel[(indices.numel(),)](
            tables.contiguous(), row_offsets, indices.contiguous(), out, padding,
            FEATURES=features, WIDTH=width, COLUMNS=triton.next_power_of_2(width),
        )
    return out
