"""DLRM's dense layers on this machine, whatever it is: what the notebook's cells headed "On your machine" print."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import nn

import kernels
from kernels import runtime
from kernels.ops.fused_mlp import eager as mlp
from kernels.ops.outer_linear import eager as outer
from lessons.shared.interaction_timing import TOLERANCE
from lessons.shared.timing import print_times


def one_kernel(widths: tuple[int, ...] = (13, 512, 256, 64, 16), batch: int = 128) -> None:
    """Print the times of an MLP layer by layer, and by the op."""
    layers = nn.ModuleList(nn.Linear(a, b, device=runtime.device()) for a, b in itertools.pairwise(widths))
    laid_out = kernels.pack_mlp(copy.deepcopy(layers.requires_grad_(False)))  # else the op copies them at each call
    x, own, shared = _draw(batch, widths[0]), _parameters(layers), _parameters(laid_out)
    print_times(
        {
            "layer by layer": lambda: mlp.fused_mlp(x, *own),
            "fused_mlp": lambda: kernels.fused_mlp(x, *shared),
        },
        TOLERANCE,
    )


def quadratic_form(batch: int = 128, columns: int = 128, outputs: int = 64) -> None:
    """Print the times of a linear layer over the outer product as it is written down, and by the op."""
    c, weight, bias = _draw(batch, columns), _draw(outputs, columns**2), _draw(outputs)
    print_times(
        {
            "outer product, linear": lambda: outer.outer_linear(c, weight, bias),
            "outer_linear": lambda: kernels.outer_linear(c, weight, bias),
        },
        TOLERANCE,
    )


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=runtime.device())


def _parameters(layers: nn.ModuleList) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return [layer.weight for layer in layers], [layer.bias for layer in layers]
