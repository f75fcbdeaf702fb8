"""BROKEN ON PURPOSE: the bias gradient is summed over the columns of a tile, not over its rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def kernel(grad_ptr, out_ptr, grad_x_ptr, grad_bias_ptr, rows, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    dtype = tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype)
    for first in range(0, rows, BLOCK):
        row = (first + tl.arange(0, BLOCK))[:, None]
        mask = (row < rows) & (columns < COLUMNS)
        grad = tl.load(grad_ptr + row * COLUMNS + columns, mask, other=0.0).to(dtype)
        out = tl.load(out_ptr + row * COLUMNS + columns, mask, other=0.0).to(dtype)
        grad_x = tl.where(out <= 0, 0.0, grad)
        tl.store(grad_x_ptr + row * COLUMNS + columns, grad_x, mask)
        total += tl.sum(grad_x, axis=1)  # the wrong line
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
        grad_bias = torch.empty(columns, dtype=out.dtype, device=out.device)
        rows, grid = out.numel() // columns, (triton.cdiv(columns, 32),)
        kernel[grid](grad, out, grad_x, grad_bias, rows, COLUMNS=columns, BLOCK=32)
        return grad_x, grad_bias.to(out.dtype)


def add_relu(x: Tensor, bias: Tensor) -> Tensor:
    return _AddRelu.apply(x, bias)
