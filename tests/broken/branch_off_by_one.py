"""BROKEN ON PURPOSE: a block that is one element short counts as whole, and stores without a mask."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device.pointwise_launch import pointwise_block


@triton.jit
def compute(x_ptr, bias_ptr, out_ptr, offsets, mask, COLUMNS: tl.constexpr):
    dtype = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    z = tl.load(x_ptr + offsets, mask).to(dtype) + tl.load(bias_ptr + offsets % COLUMNS, mask).to(dtype)
    tl.store(out_ptr + offsets, tl.where(z < 0, 0.0, z), mask)


@triton.jit
def kernel(x_ptr, bias_ptr, out_ptr, elements, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= elements + 1:  # the wrong line
        compute(x_ptr, bias_ptr, out_ptr, offsets, None, COLUMNS)
    else:
        compute(x_ptr, bias_ptr, out_ptr, offsets, offsets < elements, COLUMNS)


def add_relu(x: Tensor, bias: Tensor) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel():
        block = pointwise_block(out.numel(), x.itemsize)
        grid = (triton.cdiv(out.numel(), block),)
        kernel[grid](x.contiguous(), bias.contiguous(), out, out.numel(), COLUMNS=len(bias), BLOCK=block)
    return out
