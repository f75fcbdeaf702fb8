"""BatchNorm in eval between a linear layer and its activation: a scale and a shift of the layer's own weight and bias.

    γ (x Wᵀ + b - μ) / √(σ² + ε) + β  =  x (s W)ᵀ + s (b - μ) + β          s = γ / √(σ² + ε), of each row of W
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from .match import arguments, aten, is_call, value


@dataclass
class Norm:
    """A call that does so, and what it is given; γ and β may be absent."""

    node: fx.Node
    tensors: list[fx.Node | None]  # μ, σ², γ, β
    epsilon: float

    @property
    def inputs(self) -> list[fx.Node]:
        return [tensor for tensor in self.tensors if tensor is not None]


def norm_of(node: object) -> Norm | None:
    """The BatchNorm of x [B, N] by statistics that stay, where a node is one."""
    if not is_call(node, aten.batch_norm.default):
        return None
    kwargs = arguments(node)
    tensors = [kwargs[name] for name in ("running_mean", "running_var", "weight", "bias")]
    if kwargs["training"] or None in tensors[:2] or value(node).dim() != 2:
        return None
    return Norm(node, tensors, kwargs["eps"])


def why_not_folded(node: object) -> str:
    """Why a BatchNorm between two layers is in neither; "" of another call."""
    if not is_call(node, aten.batch_norm.default):
        return ""
    if arguments(node)["training"]:
        return "its mean and variance are the batch's own; by running ones it may go into the layer before it"
    if value(node).dim() != 2:
        return f"it is of {value(node).dim()} dimensions, and goes into a layer where there are two"
    return "what it is applied to is no layer's own result; of one it goes into the layer"


def folded(
    weight: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor, gamma: Tensor | None, beta: Tensor | None,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """The weight [N, K] and the bias [N] of the layer with the BatchNorm in it: s W and s (b - μ) + β."""
    # Halves' σ² + ε may be zero, and 1 / σ infinite. (torch.promote_types would be traced into an exported program.)
    wide = torch.float32 if weight.dtype.itemsize < 4 else weight.dtype
    scale = torch.rsqrt(variance.to(wide) + epsilon)
    scale = scale if gamma is None else scale * gamma
    shift = -mean.to(wide) if bias is None else bias.to(wide) - mean
    shift = scale * shift if beta is None else scale * shift + beta
    return (scale[:, None] * weight).to(weight.dtype), shift.to(weight.dtype)
