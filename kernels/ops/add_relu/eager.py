"""out = relu(x + bias), in plain PyTorch: the reference. It is what follows the matrix product in an MLP's layer.

Bytes, with E = rows · columns elements of `size` bytes. Fused: x read, out written, 2 E size; the bias, columns · size,
stays in cache and is counted once. Eager launches two kernels, and the sum goes through memory:

    x + bias     reads E, writes E
    relu(…)      reads E, writes E              4 E size in all
"""

import torch
from torch import Tensor


def add_relu(x: Tensor, bias: Tensor) -> Tensor:
    """x [..., N] and bias [N] of one floating dtype → [..., N], contiguous."""
    return torch.relu(x + bias).contiguous()


def add_relu_(x: Tensor, bias: Tensor) -> Tensor:
    """The same, written to x, which is returned."""
    return x.add_(bias).relu_()


def forward_bytes(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Bytes that a fused forward must move: x and bias once in, out once out."""
    return (2 * rows * columns + columns) * dtype.itemsize


def backward_bytes(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Bytes that a fused backward must move: the gradient and the output in, grad_x and grad_bias out."""
    return (3 * rows * columns + columns) * dtype.itemsize
