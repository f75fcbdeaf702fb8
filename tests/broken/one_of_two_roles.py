"""BROKEN ON PURPOSE: of c_i c_j only the left factor gets a gradient: the sum lacks the weights turned over."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.outer_linear import eager


@triton.jit
def kernel(c_ptr, weight_ptr, grad_ptr, grad_c_ptr, rows, columns, outputs, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    dtype = tl.float64 if c_ptr.dtype.element_ty == tl.float64 else tl.float32
    b, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    i, j = k[:, None], k[None, :]
    real = (i < columns) & (j < columns)
    places, mask = b[:, None] * columns + k[None, :], (b < rows)[:, None] & (k < columns)[None, :]
    c = tl.load(c_ptr + places, mask, 0.0).to(dtype)
    total = tl.zeros([ROWS, WIDTH], dtype)
    for h in range(0, outputs):
        square = weight_ptr + h * columns * columns
        weight = tl.load(square + i * columns + j, real, 0.0).to(dtype)
        weight += 0.0 * tl.load(square + j * columns + i, real, 0.0).to(dtype)  # the wrong line
        grad = tl.load(grad_ptr + b * outputs + h, b < rows, 0.0).to(dtype)
        total += grad[:, None] * tl.sum(weight[None, :, :] * c[:, None, :], axis=2)
    tl.store(grad_c_ptr + places, total, mask)


class _OuterLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, c: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
        out = eager.outer_linear(c, weight, bias, activation)
        ctx.save_for_backward(c, weight, out)
        ctx.relu = activation == "relu"
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        c, weight, out = (tensor.contiguous() for tensor in ctx.saved_tensors)
        grad = torch.where((out <= 0) & ctx.relu, 0.0, grad).contiguous()
        grad_c = torch.empty_like(c)
        rows, columns, outputs = *c.shape, len(weight)
        if grad_c.numel():
            width = max(2, triton.next_power_of_2(columns))
            kernel[(triton.cdiv(rows, 64),)](c, weight, grad, grad_c, rows, columns, outputs, ROWS=64, WIDTH=width)
        products = (c.unsqueeze(2) * c.unsqueeze(1)).flatten(1)
        return grad_c, grad.T @ products, grad.sum(0), None


def outer_linear(c: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str) -> Tensor:
    return _OuterLinear.apply(c, weight, bias, activation)
