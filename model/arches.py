"""The arches of a DLRM but the sparse one, in plain PyTorch: the two MLPs, and how their vectors meet.

dlrm.py builds the model of them, and fused.py computes them by fused kernels. The names are those of torchrec's
models/dlrm.py; the initial weights and the order of the interaction are those of facebookresearch/dlrm.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from model.config import Interaction


class MLP(nn.Sequential):
    """Linear layers with a ReLU after each: [B, widths[0]] → [B, widths[-1]].

    Initialised as facebookresearch/dlrm's create_mlp does: weights normal with standard deviation
    sqrt(2 / (inputs + outputs)), biases normal with sqrt(1 / outputs).
    """

    def __init__(self, widths: Sequence[int]):
        super().__init__(*(module for pair in pairwise(widths) for module in (_linear(*pair), nn.ReLU())))


class DenseArch(nn.Module):
    """The bottom MLP: dense float32 [B, 13] → [B, D], its last layer's ReLU included."""

    def __init__(self, widths: Sequence[int]):
        super().__init__()
        self.mlp = MLP(widths)

    def forward(self, dense: Tensor) -> Tensor:
        return self.mlp(dense)


class InteractionArch(nn.Module):
    """How the dense vector and the F embeddings meet: dense [B, D], sparse [B, F, D] → [B, out_features].

    With x_0 the dense vector and x_1 … x_F the embeddings:

        dot    x_0, then x_i · x_j for i = 1 … F, j = 0 … i - 1 (the strictly lower triangle, row by row; the order of
               facebookresearch/dlrm's interact_features): D + F (F + 1) / 2 features
        fm     x_0, then Σ x_i ⊙ x_j of the same pairs, column by column, as a factorization machine has them (Rendle
               2010): 2 D features
        cat    x_0, x_1, … x_F: (F + 1) D features
        outer  c cᵀ, row by row, with c what cat gives: ((F + 1) D)² features
    """

    def __init__(self, interaction: Interaction, num_features: int, embedding_dim: int):
        super().__init__()
        self.interaction, self.num_features, self.embedding_dim = interaction, num_features, embedding_dim
        if interaction is Interaction.DOT:
            # Not persistent: it follows from the shapes.
            pairs = torch.tril_indices(num_features + 1, num_features + 1, offset=-1)
            self.register_buffer("pairs", pairs, persistent=False)

    @property
    def out_features(self) -> int:
        vectors = self.num_features + 1
        match self.interaction:
            case Interaction.DOT:
                return self.embedding_dim + vectors * (vectors - 1) // 2
            case Interaction.FM:
                return 2 * self.embedding_dim
            case Interaction.CAT:
                return vectors * self.embedding_dim
            case Interaction.OUTER:
                return (vectors * self.embedding_dim) ** 2

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        vectors = torch.cat([dense.unsqueeze(1), sparse], dim=1)  # [B, F + 1, D]
        if self.interaction is Interaction.DOT:
            i, j = self.pairs
            products = vectors @ vectors.transpose(1, 2)  # [B, F + 1, F + 1]
            return torch.cat([dense, products[:, i, j]], dim=1)
        if self.interaction is Interaction.FM:
            # In float32 at least: of halves little would be left of the difference.
            wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
            pairs = (wide.sum(1).square() - wide.square().sum(1)) / 2  # [B, D]
            return torch.cat([dense, pairs.to(vectors.dtype)], dim=1)
        flat = vectors.flatten(1)  # [B, (F + 1) D]
        return flat if self.interaction is Interaction.CAT else outer_product(flat)

    def extra_repr(self) -> str:
        return f"{self.interaction}, num_features={self.num_features}, out_features={self.out_features}"


def outer_product(c: Tensor) -> Tensor:
    """c [B, C] → [B, C²]: c cᵀ, row by row."""
    return (c.unsqueeze(2) * c.unsqueeze(1)).flatten(1)


class OverArch(nn.Module):
    """The top MLP: [B, in_features] → [B, 1], the logit, after which there is no ReLU."""

    def __init__(self, in_features: int, widths: Sequence[int]):
        super().__init__()
        *hidden, logit = widths
        self.mlp = MLP([in_features, *hidden])
        self.logit = _linear(hidden[-1] if hidden else in_features, logit)

    def forward(self, features: Tensor) -> Tensor:
        return self.logit(self.mlp(features))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    nn.init.normal_(linear.weight, std=math.sqrt(2 / (inputs + outputs)))
    nn.init.normal_(linear.bias, std=math.sqrt(1 / outputs))
    return linear
