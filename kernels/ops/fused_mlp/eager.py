"""out = final(… act(act(x W1ᵀ + b1) W2ᵀ + b2) … WLᵀ + bL), in plain PyTorch: the reference.

Bytes, of B rows and layers K → N1 → … → NL, with elements of `size` bytes. Each layer reads its input, its weight and
its bias and writes its output, and an activation of its own reads and writes that once more:

    product l      reads B N(l-1) + N(l-1) N(l) + N(l), writes B N(l)
    activation l   reads B N(l), writes B N(l)

Needed are x in, out, and every weight once: B K + B NL + Σ N(l-1) N(l) + N(l). FLOPs: 2 B Σ N(l-1) N(l).
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .packing import views

ACTIVATIONS = {
    "identity": lambda z: z,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,  # of slope 0.01
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,  # of erf
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
}


def fused_mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str = "relu",
    final_activation: str = "identity",
    precision: str = "ieee",
) -> Tensor:
    """x [B, K'], weights [N1, K], [N2, N1], … with K <= K', biases [N1], [N2], … → [B, NL], contiguous.

    precision is for PyTorch's own switch to say here (torch.backends.cuda.matmul.fp32_precision).
    """
    value = x[:, : weights[0].shape[1]]
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        last = i == len(weights) - 1
        value = ACTIVATIONS[final_activation if last else activation](F.linear(value, weight, bias))
    return value.contiguous()


def from_packed(
    x: Tensor, packed: Tensor, widths: str, activation: str, final_activation: str, precision: str, keep: bool
) -> tuple[Tensor, Tensor]:
    """The same with weights and biases in one buffer (packing.py); (out, an empty tensor)."""
    weights, biases = zip(*views(packed, widths), strict=True)
    return fused_mlp(x, weights, biases, activation, final_activation, precision), x.new_empty(0)


def forward_bytes(rows: int, widths: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes that a forward must move: x in, out, every weight and bias once."""
    return (rows * (widths[0] + widths[-1]) + parameters(widths)) * dtype.itemsize


def parameters(widths: Sequence[int]) -> int:
    """How many numbers the weights and biases of layers of these widths have."""
    return sum((a + 1) * b for a, b in itertools.pairwise(widths))


def forward_flops(rows: int, widths: Sequence[int]) -> int:
    """Two for each weight and row."""
    return 2 * rows * sum(a * b for a, b in itertools.pairwise(widths))
