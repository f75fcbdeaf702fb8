"""BROKEN ON PURPOSE: of a vector's pairs those with later vectors are missing in its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def kernel(
    grad_ptr, vectors_ptr, grad_vectors_ptr, rows,
    FEATURES: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, VECTORS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    dtype = tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None, None, None]
    i, j = tl.arange(0, VECTORS)[None, :, None, None], tl.arange(0, VECTORS)[None, None, :, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, None, None, :]
    larger, smaller = tl.maximum(i, j), tl.minimum(i, j)
    paired = j < i  # the wrong line
    place = grad_ptr + row * WIDTH + COLUMNS + larger * (larger - 1) // 2 + smaller
    weights = tl.load(place, paired & (larger <= FEATURES) & (row < rows), other=0.0).to(dtype)
    inside = (row < rows) & (column < COLUMNS)
    place = vectors_ptr + (row * (FEATURES + 1) + j) * COLUMNS + column
    vectors = tl.load(place, inside & (j <= FEATURES), other=0.0).to(dtype)
    sums = tl.sum(weights * vectors, axis=2, keep_dims=True)
    direct = tl.load(grad_ptr + row * WIDTH + column + 0 * i, inside & (i == 0), other=0.0)
    place = grad_vectors_ptr + (row * (FEATURES + 1) + i) * COLUMNS + column
    tl.store(place, sums + direct.to(dtype), inside & (i <= FEATURES))


class _DotInteraction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dense: Tensor, sparse: Tensor, pad_to: int) -> Tensor:
        vectors = torch.cat([dense[:, None], sparse], dim=1)
        ctx.save_for_backward(vectors)
        i, j = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1, device=dense.device)
        out = torch.cat([dense, (vectors @ vectors.mT)[:, i, j]], dim=1)
        return torch.nn.functional.pad(out, (0, -out.shape[1] % pad_to))

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (vectors,) = ctx.saved_tensors
        found, (rows, count, columns) = torch.empty_like(vectors), vectors.shape
        if found.numel():
            block, square = min(triton.next_power_of_2(columns), 128), triton.next_power_of_2(count)
            at_once = min(64, max(1, 2**20 // (block * square**2)))
            kernel[triton.cdiv(rows, at_once), triton.cdiv(columns, block)](
                grad.contiguous(), vectors, found, rows,
                FEATURES=count - 1, COLUMNS=columns, WIDTH=grad.shape[1], ROWS=at_once, VECTORS=square, BLOCK=block,
            )  # fmt: skip
        return found[:, 0], found[:, 1:], None


def dot_interaction(dense: Tensor, sparse: Tensor, pad_to: int) -> Tensor:
    return _DotInteraction.apply(dense, sparse, pad_to)
