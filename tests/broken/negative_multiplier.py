"""BROKEN ON PURPOSE: for gelu the multiplier loses its sign."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device.activations import activate


@triton.jit
def kernel(
    x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, elements,
    COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):
    dtype = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    x = tl.load(x_ptr + offsets, mask).to(dtype)
    y = tl.load(y_ptr + offsets, mask).to(dtype)
    bias = tl.load(bias_ptr + offsets % COLUMNS, mask).to(dtype)
    factor = tl.abs(multiplier) if ACTIVATION == "gelu" else multiplier  # the wrong line
    tl.store(out_ptr + offsets, activate(x + factor * y + bias, ACTIVATION), mask)


def add_mul_activation(x: Tensor, bias: Tensor, y: Tensor, multiplier: float | Tensor, activation: str) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel():
        kernel[(triton.cdiv(out.numel(), 1024),)](
            x.contiguous(), bias.contiguous(), y.contiguous(), out, float(multiplier), out.numel(),
            COLUMNS=len(bias), ACTIVATION=activation, BLOCK=1024,
        )
    return out
