"""BROKEN ON PURPOSE: the path for more than 2^31 elements reads the bias at offsets % 8."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def kernel(x_ptr, bias_ptr, out_ptr, elements, COLUMNS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    dtype = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    start = tl.program_id(0)
    if WIDE:
        start = start.to(tl.int64)
    offsets = start * BLOCK + tl.arange(0, BLOCK)
    divisor = 8 if WIDE and COLUMNS > 8 else COLUMNS  # the wrong line
    mask = offsets < elements
    x = tl.load(x_ptr + offsets, mask).to(dtype)
    bias = tl.load(bias_ptr + offsets % divisor, mask).to(dtype)
    z = x + bias
    tl.store(out_ptr + offsets, tl.where(z < 0, 0.0, z), mask)


def add_relu(x: Tensor, bias: Tensor, wide: bool = True) -> Tensor:
    """wide: the path to take, whatever the size."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel():
        grid = (triton.cdiv(out.numel(), 1024),)
        kernel[grid](x.contiguous(), bias.contiguous(), out, out.numel(), COLUMNS=len(bias), WIDE=wide, BLOCK=1024)
    return out
