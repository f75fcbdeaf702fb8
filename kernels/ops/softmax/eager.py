"""out = softmax(x) = e^(x - max x) / Σ e^(x - max x) over the last dimension, in plain PyTorch: the reference.

Bytes, with E = rows · columns elements of `size` bytes. Where a row fits on chip it is read once and written once: 2 E
size. So it is by PyTorch's own kernel up to 1024 columns, and on while a row fits in shared memory. For longer rows it
takes three passes:

    max x                   reads E
    Σ e^(x - max x)         reads E
    e^(x - max x) / Σ       reads E, writes E       4 E size in all

A maximum and a sum kept in one pass ("online": Milakov and Gimelshein 2018, arXiv:1805.02867) make it 3 E size.
"""

import torch
from torch import Tensor


def softmax(x: Tensor) -> Tensor:
    """x [..., N] of a floating dtype → [..., N], contiguous."""
    return torch.softmax(x, -1).contiguous()


def softmax_(x: Tensor) -> Tensor:
    """The same, written to x, which is returned."""
    return x.copy_(torch.softmax(x, -1))


def forward_bytes(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Bytes that a forward must move: x once in, out once out."""
    return 2 * rows * columns * dtype.itemsize


def backward_bytes(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Bytes that a backward, grad_x = out · (grad - Σ grad · out), must move: grad and out in, grad_x out."""
    return 3 * rows * columns * dtype.itemsize
