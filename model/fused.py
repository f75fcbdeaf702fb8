"""A DLRM's arches by fused kernels: the modules, parameters and results of model.dlrm's, fewer kernels, fewer bytes.

    DenseArch          kernels.fused_mlp          every layer in one kernel
    InteractionArch    kernels.dot_interaction    dot; its rows are filled up, so that they are aligned for their reader
                       c alone                    outer: c cᵀ is not written, the first layer of the top MLP forms it
    OverArch           kernels.fused_mlp          every layer in one kernel; of outer those behind the first, which is
                       kernels.outer_linear

An MLP too wide for one kernel (kernels.FusedMLPError) is a matrix product a layer, with bias and ReLU in one pass. Float32
products are PyTorch's own choice of ieee or tf32 (`torch.set_float32_matmul_precision`, as model.train sets it), and under
torch.autocast the kernels compute in its dtype.

On a CPU the kernels are PyTorch's operations, and the arches compute as those of model.dlrm do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from model.config import Interaction
from model.dlrm import DenseArch, InteractionArch, OverArch

PAD_TO = 8  # numbers that a row of the interaction is filled up to: 16 bytes in half precision, 32 in float32


class Fused:
    """What the arches share. backend: of the kernels; "auto" fuses CUDA tensors, any other name all."""

    backend = "auto"

    def fuses(self, x: Tensor) -> bool:
        """Whether the kernels take x: not a CPU's, by "auto", nor a layer that is more than an nn.Linear (LoRA's)."""
        return (self.backend != "auto" or x.is_cuda) and all(type(linear) is nn.Linear for linear in self.linears())

    def linears(self) -> list[nn.Linear]:
        """The arch's layers, in order."""
        return []


class FusedDenseArch(Fused, DenseArch):
    """The bottom MLP in one kernel."""

    def __init__(self, widths: Sequence[int]):
        super().__init__(widths)
        self.layers = Layers(final_activation="relu")

    def linears(self) -> list[nn.Linear]:
        return list(self.mlp[::2])

    def forward(self, dense: Tensor) -> Tensor:
        if not self.fuses(dense):
            return super().forward(dense)
        return self.layers(dense, self.linears(), self.backend)


class FusedInteractionArch(Fused, InteractionArch):
    """The interaction in one kernel, as `FusedOverArch` reads it: dot [B, out_features or a few zeros more], outer
    c [B, (F + 1) D], cat as ever."""

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        if not self.fuses(dense) or self.interaction is Interaction.CAT:
            return super().forward(dense, sparse)
        if self.interaction is Interaction.DOT:
            return kernels.dot_interaction(dense, sparse, PAD_TO, backend=self.backend)
        return torch.cat([dense, sparse.flatten(1)], dim=1)


class FusedOverArch(Fused, OverArch):
    """The top MLP in one kernel; with outer in two, of which the first forms c cᵀ as it goes."""

    def __init__(self, in_features: int, widths: Sequence[int], interaction: Interaction):
        super().__init__(in_features, widths)
        self.outer = interaction is Interaction.OUTER
        self.layers = Layers(final_activation="identity")

    def linears(self) -> list[nn.Linear]:
        return [*self.mlp[::2], self.logit]

    def forward(self, features: Tensor) -> Tensor:
        if not self.fuses(features):
            return super().forward(features)
        linears = self.linears()
        if self.outer:
            first = linears.pop(0)
            activation = "relu" if linears else "identity"
            features = kernels.outer_linear(
                features, first.weight, first.bias, activation, precision_of(features), backend=self.backend
            )
        return self.layers(features, linears, self.backend) if linears else features


class Layers:
    """An MLP's layers in one kernel, or, where that does not fit on the chip, in one or two each."""

    def __init__(self, final_activation: str):
        self.final_activation = final_activation
        self.too_wide: set[tuple] = set()  # the calls' kinds that do not fit: to ask again would cost a plan each time

    def __call__(self, x: Tensor, linears: Sequence[nn.Linear], backend: str) -> Tensor:
        precision = precision_of(x)
        kind = (x.shape[0], x.dtype, torch.is_autocast_enabled(x.device.type), precision)
        if kind not in self.too_wide:
            weights, biases = [linear.weight for linear in linears], [linear.bias for linear in linears]
            try:
                return kernels.fused_mlp(x, weights, biases, "relu", self.final_activation, precision, backend=backend)
            except kernels.FusedMLPError:
                self.too_wide.add(kind)
        return self.one_by_one(x, linears, backend)

    def one_by_one(self, x: Tensor, linears: Sequence[nn.Linear], backend: str) -> Tensor:
        """A matrix product each.

        cuBLAS's own epilogue adds the bias and takes the ReLU before the product is written: 2 B N bytes less to move,
        by the item, than any kernel behind it. It has no derivative, so that training takes the next best, which reads
        and writes the product once, and whose backward has the ReLU's mask and the bias's sum in one pass too.
        """
        x = x[:, : linears[0].in_features]
        for i, linear in enumerate(linears):
            if i == len(linears) - 1 and self.final_activation == "identity":
                x = F.linear(x, linear.weight, linear.bias)
            elif torch.is_grad_enabled():
                x = kernels.add_relu(x @ linear.weight.t(), linear.bias, backend=backend)
            else:
                x = torch._addmm_activation(linear.bias, x, linear.weight.t())
        return x


def precision_of(x: Tensor) -> str:
    """What float32 products of x are to be computed in; for other dtypes it says nothing."""
    tf32 = x.is_cuda and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if tf32 else "ieee"
