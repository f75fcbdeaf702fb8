"""The lesson's kernel, and the plain function that launches it."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def add_relu_kernel(x, bias, out, n, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """out = relu(x + bias), x and out of n numbers in rows of COLUMNS."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(x + i, i < n) + tl.load(bias + i % COLUMNS, i < n)
    tl.store(out + i, tl.where(z < 0, 0.0, z), i < n)


def launch(x: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    """The kernel alone, with Triton's launcher; x contiguous. Returns out."""
    n = x.numel()
    add_relu_kernel[(triton.cdiv(n, 1024),)](x, bias, out, n, COLUMNS=bias.numel(), BLOCK=1024)
    return out


def add_relu(x: Tensor, bias: Tensor) -> Tensor:
    """relu(x + bias), contiguous; to PyTorch a function of which it knows nothing."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return launch(x.contiguous(), bias, out)
