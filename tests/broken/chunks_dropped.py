"""BROKEN ON PURPOSE: of the bias gradient's chunks only the first 32 are added up."""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK_ROWS = 4


@triton.jit
def kernel(
    grad_ptr, out_ptr, grad_x_ptr, sums_ptr, rows, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    dtype = tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32
    columns = tl.arange(0, BLOCK)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    mask = (row < rows) & (columns < COLUMNS)
    grad = tl.load(grad_ptr + row * COLUMNS + columns, mask, other=0.0).to(dtype)
    out = tl.load(out_ptr + row * COLUMNS + columns, mask, other=0.0).to(dtype)
    grad_x = tl.where(out <= 0, 0.0, grad)
    tl.store(grad_x_ptr + row * COLUMNS + columns, grad_x, mask)
    tl.store(sums_ptr + tl.program_id(0) * COLUMNS + columns, tl.sum(grad_x, axis=0), columns < COLUMNS)


@triton.jit
def add_chunks(sums_ptr, grad_bias_ptr, chunks, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], sums_ptr.dtype.element_ty)
    for first in range(0, min(chunks, CHUNKS), CHUNKS):  # the wrong line
        row = (first + tl.arange(0, CHUNKS))[:, None]
        mask = (row < chunks) & (columns < COLUMNS)
        total += tl.sum(tl.load(sums_ptr + row * COLUMNS + columns, mask, other=0.0), axis=0)
    tl.store(grad_bias_ptr + columns, total, columns < COLUMNS)


class _AddRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(out := torch.relu(x + bias))
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        (out,) = ctx.saved_tensors
        grad, columns = grad.contiguous(), out.shape[-1]
        grad_x = torch.empty_like(out, memory_format=torch.contiguous_format)
        if not out.numel():
            return grad_x, out.new_zeros(columns)
        chunks, block = triton.cdiv(out.numel() // columns, CHUNK_ROWS), triton.next_power_of_2(columns)
        dtype = torch.promote_types(out.dtype, torch.float32)
        sums = torch.empty(chunks, columns, dtype=dtype, device=out.device)
        grad_bias = torch.empty(columns, dtype=dtype, device=out.device)
        rows = out.numel() // columns
        kernel[(chunks,)](grad, out, grad_x, sums, rows, COLUMNS=columns, ROWS=CHUNK_ROWS, BLOCK=block)
        add_chunks[(1,)](sums, grad_bias, chunks, COLUMNS=columns, CHUNKS=32, BLOCK=block)
        return grad_x, grad_bias.to(out.dtype)


def add_relu(x: Tensor, bias: Tensor) -> Tensor:
    return _AddRelu.apply(x, bias)
