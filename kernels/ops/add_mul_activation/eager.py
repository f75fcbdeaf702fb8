"""out = act(x + multiplier · y + bias), in plain PyTorch: the reference.

Bytes, with E = rows · columns elements of `size` bytes. Fused: x and y read, out written, 3 E size; the bias, columns ·
size, stays in cache and is counted once. Eager launches four kernels and moves every intermediate through memory:

    multiplier * y    reads E, writes E
    x + …             reads 2 E, writes E
    … + bias          reads E, writes E
    act(…)            reads E, writes E         9 E size in all
"""

import torch
import torch.nn.functional as F
from torch import Tensor

FUNCTIONS = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,  # the erf form
    "silu": F.silu,
    "identity": lambda z: z,
}
# What the derivative is computed from: the output, the inputs (x, y and bias give act's input), or nothing.
DERIVATIVE_READS = {
    "relu": "output",
    "sigmoid": "output",
    "tanh": "output",
    "gelu": "inputs",
    "silu": "inputs",
    "identity": "nothing",
}


def add_mul_activation(x: Tensor, bias: Tensor, y: Tensor, multiplier: float = 1.0, activation: str = "relu") -> Tensor:
    """x, y [..., N] and bias [N] of one floating dtype → [..., N], contiguous."""
    return FUNCTIONS[activation](x + multiplier * y + bias).contiguous()


def add_mul_activation_(
    x: Tensor, bias: Tensor, y: Tensor, multiplier: float = 1.0, activation: str = "relu"
) -> Tensor:
    """The same, written to x, which is returned."""
    return x.copy_(FUNCTIONS[activation](x + multiplier * y + bias))


def forward_bytes(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Bytes that a fused forward must move: x, y and bias once in, out once out."""
    return (3 * rows * columns + columns) * dtype.itemsize


def backward_bytes(rows: int, columns: int, dtype: torch.dtype, activation: str = "relu") -> int:
    """Bytes that a fused backward to all three inputs must move: the gradient and what the derivative reads (the
    output; x and y; nothing) in, grad_x and grad_y and grad_bias out."""
    read = {"nothing": 0, "output": 1, "inputs": 2}[DERIVATIVE_READS[activation]]
    return ((1 + read + 2) * rows * columns + columns) * dtype.itemsize
