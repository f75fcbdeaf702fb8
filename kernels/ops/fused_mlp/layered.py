"""The layers of a packed MLP one by one, as one node of autograd: a matrix product a layer, whose epilogue has bias and
ReLU.

    forward   y_l = act(y_(l-1) W_lᵀ + b_l)                           one launch a layer
    backward  g_l ← 0 where y_l ≤ 0;  ∂b_l = Σ g_l;  ∂W_l = g_lᵀ y_(l-1);  g_(l-1) = g_l W_l

For PyTorch each layer is several nodes, and every parameter has a gradient of its own, which is copied where it is not
dense. A step of few rows is bound by the host, which does all that. Here the gradients are written where they belong in
the buffer's.

Bytes: those of eager.py's products; the epilogues spare the activations' reading and writing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from . import packing

ACTIVATIONS = ("identity", "relu")
Pairs = list[tuple[Tensor, Tensor]]  # (weight, bias) of each layer


class Layered(torch.autograd.Function):
    """x [B, K'], the buffer, its `wide` views, its widths, activations of ACTIVATIONS → out [B, NL]; K' >= K as in
    `fused_mlp`."""

    @staticmethod
    def forward(
        ctx, x: Tensor, buffer: Tensor, pairs: Pairs, widths: str, activation: str, final_activation: str
    ) -> Tensor:
        ctx.pairs, ctx.widths = pairs, widths
        ctx.is_relu = [*[activation == "relu"] * (len(pairs) - 1), final_activation == "relu"]
        values = [x[:, : pairs[0][0].shape[1]]]
        for (weight, bias), is_relu in zip(pairs, ctx.is_relu, strict=True):
            product = torch._addmm_activation if is_relu else torch.addmm
            values.append(product(bias, values[-1], weight.t()))
        read = values[1:] if ctx.is_relu[-1] else values[1:-1]  # what no backward reads may be written to
        ctx.save_for_backward(x, buffer, *read)
        return values[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, buffer, *outputs = ctx.saved_tensors
        gradients, columns = torch.zeros_like(buffer), ctx.pairs[0][0].shape[1]
        layers = list(zip(ctx.pairs, wide(gradients, ctx.widths, columns), strict=True))
        inputs = [x[:, :columns], *outputs]
        for i in reversed(range(len(layers))):
            (weight, _), (grad_weight, grad_bias) = layers[i]
            if ctx.is_relu[i]:
                grad = torch.ops.aten.threshold_backward(grad, outputs[i], 0)
            torch.sum(grad, 0, out=grad_bias)
            torch.mm(grad.t(), inputs[i], out=grad_weight)
            if i or ctx.needs_input_grad[0]:
                # With out= it is float32 under a torch.autocast around the backward, too.
                grad = torch.mm(grad, weight, out=grad.new_empty(grad.shape[0], weight.shape[1]))
        needed = packing.layers(ctx.widths)[0].inputs
        if columns > needed:  # what rows of x are filled up with need not be zeros
            layers[0][1][0][:, needed:].zero_()
        if not ctx.needs_input_grad[0]:
            grad = None
        elif x.shape[1] > columns:
            grad = F.pad(grad, (0, x.shape[1] - columns))
        return grad, gradients, None, None, None, None


def columns_of(x: Tensor, widths: str) -> int:
    """How many columns of x, which are zeros from K on, the first product takes: those of its padding too, as far as x
    has them, so that no product is of rows that are not aligned."""
    return min(x.shape[1], packing.padded(packing.layers(widths)[0].inputs))


def wide(buffer: Tensor, widths: str, columns: int) -> Pairs:
    """As `packing.views`, with so many columns of the first weight; a call a view."""
    found, start = [], buffer.storage_offset()
    for i, layer in enumerate(packing.layers(widths)):
        shape = layer.outputs, layer.inputs if i else columns
        weight = buffer.as_strided(shape, (packing.padded(layer.inputs), 1), start + layer.weight)
        found.append((weight, buffer.as_strided(shape[:1], (1,), start + layer.bias)))
    return found


def takes(dtype: torch.dtype, device: torch.device, backend: str) -> bool:
    """Whether layers that one kernel does not compute are taken one by one here: on a GPU, in float32."""
    return backend == "auto" and device.type == "cuda" and dtype == torch.float32
