"""BROKEN ON PURPOSE: the bias is read at offsets % 8, whatever the number of columns."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def kernel(x_ptr, bias_ptr, out_ptr, elements, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    dtype = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    x = tl.load(x_ptr + offsets, mask).to(dtype)
    bias = tl.load(bias_ptr + offsets % 8, mask).to(dtype)  # the wrong line
    z = x + bias
    tl.store(out_ptr + offsets, tl.where(z < 0, 0.0, z), mask)


def add_relu(x: Tensor, bias: Tensor) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    # Zeros after the bias: under 8 columns the wrong line reads them, not what lies beyond.
    padded = F.pad(bias, (0, 8))
    if out.numel():
        kernel[(triton.cdiv(out.numel(), 1024),)](
            x.contiguous(), padded, out, out.numel(), COLUMNS=len(bias), BLOCK=1024
        )
    return out
