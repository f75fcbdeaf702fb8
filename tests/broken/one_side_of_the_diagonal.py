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
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None, None]
    i, j = tl.arange(0, VECTORS)[None, :, None], tl.arange(0, VECTORS)[None, None, :]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, None, :]
    larger, smaller = tl.maximum(i, j), tl.minimum(i, j)
    paired = j < i  # the wrong line
    place = grad_ptr + row * WIDTH + COLUMNS + larger * (larger - 1) // 2 + smaller
    weights = tl.load(place, paired & (larger <= FEATURES) & (row < rows), other=0.0)
    inside = (row < rows) & (i <= FEATURES) & (column < COLUMNS)
    vectors = tl.load(vectors_ptr + (row * (FEATURES + 1) + i) * COLUMNS + column, inside, other=0.0)
    sums = tl.dot(weights, vectors, input_precision="ieee")
    direct = tl.load(grad_ptr + row * WIDTH + column + 0 * i, inside & (i == 0), other=0.0)
    tl.store(grad_vectors_ptr + (row * (FEATURES + 1) + i) * COLUMNS + column, sums + direct, inside)


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
            block, square = (min(max(triton.next_power_of_2(n), 16), 64) for n in (columns, count))
            at_once = min(4 if grad.is_cuda else 64, triton.next_power_of_2(rows))
            kernel[triton.cdiv(rows, at_once), triton.cdiv(columns, block)](
                grad.contiguous(), vectors, found, rows,
                FEATURES=count - 1, COLUMNS=columns, WIDTH=grad.shape[1], ROWS=at_once, VECTORS=square, BLOCK=block,
            )
        return found[:, 0], found[:, 1:], None


def dot_interaction(dense: Tensor, sparse: Tensor, pad_to: int) -> Tensor:
    return _DotInteraction.apply(dense, sparse, pad_to)
