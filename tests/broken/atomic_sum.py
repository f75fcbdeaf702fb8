"""BROKEN ON PURPOSE: programs add to the bias gradient in the order in which they happen to run."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def kernel(
    grad_ptr, out_ptr, grad_x_ptr, grad_bias_ptr, rows, rows_each, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):
    dtype = tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32
    columns = tl.arange(0, BLOCK)
    mask = columns < COLUMNS
    first = tl.program_id(0) * rows_each
    total = tl.zeros([BLOCK], dtype)
    for row in range(first, tl.minimum(first + rows_each, rows)):
        grad = tl.load(grad_ptr + row * COLUMNS + columns, mask, other=0.0).to(dtype)
        out = tl.load(out_ptr + row * COLUMNS + columns, mask, other=0.0).to(dtype)
        grad_x = tl.where(out <= 0, 0.0, grad)
        tl.store(grad_x_ptr + row * COLUMNS + columns, grad_x, mask)
        total += grad_x
    tl.atomic_add(grad_bias_ptr + columns, total, mask)


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
        rows, block = out.numel() // columns, triton.next_power_of_2(columns)
        grad_bias = torch.zeros(columns, dtype=torch.promote_types(out.dtype, torch.float32), device=out.device)
        programs = triton.cdiv(rows, 4)  # the wrong line
        each = triton.cdiv(rows, programs)
        kernel[(programs,)](grad, out, grad_x, grad_bias, rows, each, COLUMNS=columns, BLOCK=block)
        return grad_x, grad_bias.to(out.dtype)


def add_relu(x: Tensor, bias: Tensor) -> Tensor:
    return _AddRelu.apply(x, bias)
