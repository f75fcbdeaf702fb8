"""BROKEN ON PURPOSE: the columns behind the last whole block of 16 are left out."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def kernel(c_ptr, weight_ptr, bias_ptr, out_ptr, rows, columns, outputs, RELU: tl.constexpr, ROWS: tl.constexpr,
           WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    dtype = tl.float64 if c_ptr.dtype.element_ty == tl.float64 else tl.float32
    b, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    i = tl.arange(0, WIDTH)
    in_rows = (b < rows)[:, None]
    ci = tl.load(c_ptr + b[:, None] * columns + i[None, :], in_rows & (i < columns)[None, :], 0.0).to(dtype)
    z = tl.zeros([ROWS], dtype) + tl.load(bias_ptr + h).to(dtype)
    for block in range(0, BLOCKS):
        j = block * 16 + tl.arange(0, 16)
        cj = tl.load(c_ptr + b[:, None] * columns + j[None, :], in_rows & (j < columns)[None, :], 0.0).to(dtype)
        real = (i < columns)[:, None] & (j < columns)[None, :]
        place = h * columns * columns + i[:, None] * columns + j[None, :]
        weight = tl.load(weight_ptr + place, real, 0.0).to(dtype)
        terms = tl.where(real[None, :, :], ci[:, :, None] * cj[:, None, :] * weight[None, :, :], 0.0)
        z += tl.sum(tl.sum(terms, axis=2), axis=1)
    tl.store(out_ptr + b * outputs + h, tl.where((z < 0) & RELU, 0.0, z), b < rows)


def outer_linear(c: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str) -> Tensor:
    rows, columns, outputs = *c.shape, len(bias)
    out = torch.empty(rows, outputs, dtype=c.dtype, device=c.device)
    if out.numel():
        width = max(2, triton.next_power_of_2(columns))
        blocks = columns // 16  # the wrong line
        kernel[triton.cdiv(rows, 16), outputs](
            c.contiguous(), weight.contiguous(), bias.contiguous(), out, rows, columns, outputs,
            RELU=activation == "relu", ROWS=16, WIDTH=width, BLOCKS=blocks,
        )
    return out
