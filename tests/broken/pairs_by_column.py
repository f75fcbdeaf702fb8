"""BROKEN ON PURPOSE: the pairs below the diagonal are written column by column, not row by row."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def kernel(
    dense_ptr, sparse_ptr, out_ptr, rows,
    FEATURES: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, VECTORS: tl.constexpr, BLOCK: tl.constexpr,
):
    dtype = tl.float64 if out_ptr.dtype.element_ty == tl.float64 else tl.float32
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None, None, None]
    i, j = tl.arange(0, VECTORS)[None, :, None, None], tl.arange(0, VECTORS)[None, None, :, None]
    column = tl.arange(0, BLOCK)[None, None, None, :]
    inside = (row < rows) & (column < COLUMNS)
    dense = tl.load(dense_ptr + row * COLUMNS + column, inside, other=0.0)
    tl.store(out_ptr + row * WIDTH + column, dense, inside)
    a = tl.load(sparse_ptr + (row * FEATURES + i - 1) * COLUMNS + column, inside & (i > 0) & (i <= FEATURES), other=0.0)
    b = tl.load(sparse_ptr + (row * FEATURES + j - 1) * COLUMNS + column, inside & (j > 0) & (j <= FEATURES), other=0.0)
    products = tl.sum(a.to(dtype) * tl.where(j > 0, b, dense).to(dtype), axis=3, keep_dims=True)
    place = j * (2 * FEATURES + 1 - j) // 2 + i - j - 1  # the wrong line
    tl.store(out_ptr + row * WIDTH + COLUMNS + place, products, (row < rows) & (j < i) & (i <= FEATURES))


def dot_interaction(dense: Tensor, sparse: Tensor, pad_to: int) -> Tensor:
    (rows, features, columns), pairs = sparse.shape, sparse.shape[1] * (sparse.shape[1] + 1) // 2
    out = torch.empty((rows, -(-(columns + pairs) // pad_to) * pad_to), dtype=dense.dtype, device=dense.device)
    out[:, columns + pairs :] = 0
    if rows:
        block, vectors = triton.next_power_of_2(max(columns, 1)), triton.next_power_of_2(features + 1)
        at_once = min(64, max(1, 2**20 // (block * vectors**2)))
        kernel[(triton.cdiv(rows, at_once),)](
            dense.contiguous(), sparse.contiguous(), out, rows,
            FEATURES=features, COLUMNS=columns, WIDTH=out.shape[1], ROWS=at_once, VECTORS=vectors, BLOCK=block,
        )
    return out
