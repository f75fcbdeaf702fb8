"""BROKEN ON PURPOSE: the mask lets one element past the end through."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def kernel(x_ptr, bias_ptr, out_ptr, elements, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    dtype = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets <= elements  # the wrong line
    x = tl.load(x_ptr + offsets, mask).to(dtype)
    bias = tl.load(bias_ptr + offsets % COLUMNS, mask).to(dtype)
    z = x + bias
    tl.store(out_ptr + offsets, tl.where(z < 0, 0.0, z), mask)


def add_relu(x: Tensor, bias: Tensor) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel():
        grid = (triton.cdiv(out.numel(), 1024),)
        kernel[grid](x.contiguous(), bias.contiguous(), out, out.numel(), COLUMNS=len(bias), BLOCK=1024)
    return out
