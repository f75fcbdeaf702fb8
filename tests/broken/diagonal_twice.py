"""BROKEN ON PURPOSE: folded over the pairs i <= j, the weight of a column with itself is counted twice."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def kernel(c_ptr, weight_ptr, bias_ptr, out_ptr, rows, columns, outputs, RELU: tl.constexpr, ROWS: tl.constexpr,
           WIDTH: tl.constexpr):
    dtype = tl.float64 if c_ptr.dtype.element_ty == tl.float64 else tl.float32
    b, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    k = tl.arange(0, WIDTH)
    c = tl.load(c_ptr + b[:, None] * columns + k[None, :], (b < rows)[:, None] & (k < columns)[None, :], 0.0).to(dtype)
    i, j = k[:, None], k[None, :]
    square = weight_ptr + h * columns * columns
    upper = (i <= j) & (j < columns)
    weight = tl.load(square + i * columns + j, upper, 0.0).to(dtype)
    weight += tl.load(square + j * columns + i, upper, 0.0).to(dtype)  # the wrong line
    terms = tl.where(upper[None, :, :], c[:, :, None] * c[:, None, :] * weight[None, :, :], 0.0)
    z = tl.sum(tl.sum(terms, axis=2), axis=1) + tl.load(bias_ptr + h).to(dtype)
    tl.store(out_ptr + b * outputs + h, tl.where((z < 0) & RELU, 0.0, z), b < rows)


def outer_linear(c: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str) -> Tensor:
    rows, columns, outputs = *c.shape, len(bias)
    out = torch.empty(rows, outputs, dtype=c.dtype, device=c.device)
    if out.numel():
        width = max(2, triton.next_power_of_2(columns))
        kernel[triton.cdiv(rows, 16), outputs](
            c.contiguous(), weight.contiguous(), bias.contiguous(), out, rows, columns, outputs,
            RELU=activation == "relu", ROWS=16, WIDTH=width,
        )
    return out
