"""out = act(vec(c cᵀ) weightᵀ + bias) with vec(c cᵀ)[i C + j] = c_i c_j, in plain PyTorch: the reference.

Bytes, of c [B, C] and weight [H, C²], with elements of `size` bytes:

    outer product     reads B C, writes B C²
    linear            reads B C² + H C² + H, writes B H
    activation        reads B H, writes B H

Needed are c, the weight and the bias in, and out: B C + H C² + H + B H. At C = 432, H = 512, B = 128 in float32 the
outer product is 95 MB, written and read again beside 382 MB of weight; at B = 2048 it is 1.5 GB.

FLOPs: 2 B H C² as written, of which B H C (C + 1) are needed: c_i c_j = c_j c_i (folding.py). The backward has two such
products, one for the weight's gradient, which is as symmetric, one for c's.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from . import folding

ACTIVATIONS = {"identity": lambda z: z, "relu": F.relu}


def outer_linear(
    c: Tensor, weight: Tensor, bias: Tensor, activation: str = "identity", precision: str = "ieee"
) -> Tensor:
    """c [B, C], weight [H, C·C], bias [H] → [B, H], contiguous.

    precision is for PyTorch's own switch to say here (torch.backends.cuda.matmul.fp32_precision).
    """
    products = (c.unsqueeze(2) * c.unsqueeze(1)).flatten(1)
    return ACTIVATIONS[activation](F.linear(products, weight, bias)).contiguous()


def outer_linear_folded(
    c: Tensor, weight: Tensor, bias: Tensor, activation: str = "identity", precision: str = "ieee"
) -> Tensor:
    """The same with a weight that folding.fold gave, [H, folding.folded_width(C)]."""
    return ACTIVATIONS[activation](F.linear(folding.unfolded_products(c), weight, bias)).contiguous()


def either(
    c: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str, folded: bool = False
) -> Tensor:
    """outer_linear or outer_linear_folded."""
    return (outer_linear_folded if folded else outer_linear)(c, weight, bias, activation, precision)


def forward_bytes(rows: int, columns: int, width: int, outputs: int, dtype: torch.dtype) -> int:
    """Bytes that a forward must move: c and the bias in, out, and a weight of `width` columns once."""
    return (rows * (columns + outputs) + outputs * (width + 1)) * dtype.itemsize


def forward_flops(rows: int, columns: int, outputs: int) -> int:
    """What a forward must compute: each unordered pair once."""
    return rows * outputs * columns * (columns + 1)


def backward_bytes(rows: int, columns: int, outputs: int, dtype: torch.dtype) -> int:
    """Bytes that a backward must move: the gradient that comes in, c and the weight in, their gradients out."""
    return (rows * (outputs + 2 * columns) + outputs * (2 * columns**2 + 1)) * dtype.itemsize
