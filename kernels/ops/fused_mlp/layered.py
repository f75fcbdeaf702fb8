"""The layers of a packed MLP one by one, as one node of autograd: a matrix product a layer, whose epilogue has bias and
ReLU.

    forward   y_l = act(y_(l-1) W_lᵀ + b_l)                           one launch a layer
    backward  g_l ← g_l where y_l > 0;  ∂b_l = Σ g_l;  ∂W_l = g_lᵀ y_(l-1);  g_(l-1) = g_l W_l

For PyTorch each layer is several nodes, and every parameter has a gradient of its own, which is copied where it is not
dense. A step of few rows is bound by the host, which does all that. Here the gradients are written where they belong in
the buffer's.

Bytes: as in eager.py, less a reading and a writing of each y_l, and the backward's three of each.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from . import packing

ACTIVATIONS = ("identity", "relu")


class Layered(torch.autograd.Function):
    """x [B, K'], the buffer and its widths, activations of ACTIVATIONS → out [B, NL]; K' >= K as in `fused_mlp`."""

    @staticmethod
    def forward(ctx, x: Tensor, buffer: Tensor, widths: str, activation: str, final_activation: str) -> Tensor:
        pairs = wide(buffer, widths, x)
        ctx.widths, ctx.inputs = widths, packing.layers(widths)[0].inputs
        ctx.is_relu = [*[activation == "relu"] * (len(pairs) - 1), final_activation == "relu"]
        values = [x[:, : pairs[0][0].shape[1]]]
        for (weight, bias), is_relu in zip(pairs, ctx.is_relu, strict=True):
            product = torch._addmm_activation if is_relu else torch.addmm
            values.append(product(bias, values[-1], weight.t()))
        ctx.save_for_backward(x, buffer, *values[1:])
        return values[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, buffer, *outputs = ctx.saved_tensors
        gradients = torch.zeros_like(buffer)
        layers = list(zip(wide(buffer, ctx.widths, x), wide(gradients, ctx.widths, x), strict=True))
        inputs = [x[:, : layers[0][0][0].shape[1]], *outputs[:-1]]
        for i in reversed(range(len(layers))):
            (weight, _), (grad_weight, grad_bias) = layers[i]
            if ctx.is_relu[i]:
                grad = torch.ops.aten.threshold_backward(grad, outputs[i], 0)
            torch.sum(grad, 0, out=grad_bias)
            torch.mm(grad.t(), inputs[i], out=grad_weight)
            if i or ctx.needs_input_grad[0]:
                grad = grad @ weight
        first = layers[0][1][0]
        if first.shape[1] > ctx.inputs:  # what rows of x are filled up with need not be zeros
            first[:, ctx.inputs :].zero_()
        grad_x = F.pad(grad, (0, x.shape[1] - grad.shape[1])) if ctx.needs_input_grad[0] else None
        return grad_x, gradients, None, None, None


def wide(buffer: Tensor, widths: str, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """As `packing.views`; the first weight with as many columns of its padding as x has beyond K, so that no product is
    of rows that are not aligned."""
    (first, bias), *others = packing.views(buffer, widths)
    columns = min(x.shape[1], first.stride(0))
    return [(first.as_strided((first.shape[0], columns), first.stride()), bias), *others]


def takes(dtype: torch.dtype, device: torch.device, backend: str) -> bool:
    """Whether layers that one kernel does not compute are taken one by one here: on a GPU, in float32."""
    return backend == "auto" and device.type == "cuda" and dtype == torch.float32
