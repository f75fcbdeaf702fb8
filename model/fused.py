"""A DLRM's arches by fused kernels: the modules, parameters and results of model.arches', fewer kernels, fewer bytes.

    DenseArch          kernels.fused_mlp          every layer in one kernel
    InteractionArch    kernels.dot_interaction    dot; its rows are filled up, so that they are aligned for their reader
                       c alone                    outer: c cᵀ is not written, the first layer of the top MLP forms it
    OverArch           kernels.fused_mlp          every layer in one kernel; of outer those behind the first, which is
                       kernels.outer_linear

An MLP too wide for one kernel (kernels.FusedMLPError), or in full float32, is a matrix product a layer, with bias and
ReLU in one pass.
Float32 products are as exact as PyTorch's own (`torch.set_float32_matmul_precision`, which model.train sets), and under
torch.autocast the kernels compute in its dtype.

On a CPU the kernels are PyTorch's operations, and the arches compute as those of model.arches do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from kernels.ops.fused_mlp.triton_launch import backward_tile, forward_tile
from model.arches import DenseArch, InteractionArch, OverArch, outer_product
from model.config import Interaction

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
        return list(self.mlp)[::2]

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
            return kernels.dot_interaction(autocast(dense), sparse, PAD_TO, backend=self.backend)
        return torch.cat([dense, sparse.flatten(1)], dim=1)


class FusedOverArch(Fused, OverArch):
    """The top MLP in one kernel; with outer in two, of which the first forms c cᵀ as it goes."""

    def __init__(self, in_features: int, widths: Sequence[int]):
        super().__init__(in_features, widths)
        self.in_features = in_features
        self.layers = Layers(final_activation="identity")

    def linears(self) -> list[nn.Linear]:
        return [*list(self.mlp)[::2], self.logit]

    def forward(self, features: Tensor) -> Tensor:
        if not self.fuses(features):
            # What the plain interaction gives, made of what the fused one gave.
            plain = outer_product(features) if self._is_root(features) else features[:, : self.in_features]
            return super().forward(plain)
        linears = self.linears()
        if self._is_root(features):
            first = linears.pop(0)
            activation = "relu" if linears else "identity"
            features = kernels.outer_linear(
                autocast(features), first.weight, first.bias, activation, precision_of(features), backend=self.backend
            )
        return self.layers(features, linears, self.backend) if linears else features

    def _is_root(self, features: Tensor) -> bool:
        """Whether the first layer is of c cᵀ, and the features are c, which has two numbers or more."""
        return features.shape[1] ** 2 == self.in_features


class Layers:
    """An MLP's layers in one kernel. Where they do not fit on the chip, each layer is one or two kernels.

    Backend "auto" also takes one or two kernels a layer for products in full float32: without tensor cores cuBLAS takes
    no longer for them than the one kernel does."""

    def __init__(self, final_activation: str):
        self.final_activation = final_activation
        self.too_wide: set[tuple] = set()  # the kinds of calls that do not fit, which to find out again costs a plan

    def __call__(self, x: Tensor, linears: Sequence[nn.Linear], backend: str) -> Tensor:
        x = autocast(x)
        weights, biases = [linear.weight for linear in linears], [linear.bias for linear in linears]
        options = ("relu", self.final_activation, precision_of(x))
        if backend == "auto" and x.dtype == torch.float32 and options[-1] == "ieee":
            return self.one_by_one(x, linears, backend)
        if torch.compiler.is_compiling():  # when the kernel says so it is too late
            if _fits(tuple(weight.shape for weight in weights), x.dtype, options[-1]):
                return kernels.fused_mlp(x, weights, biases, *options, backend=backend)
            return self.one_by_one(x, linears, backend)
        kind = (x.shape[0], x.dtype, options[-1])
        if kind not in self.too_wide:
            try:
                return kernels.fused_mlp(x, weights, biases, *options, backend=backend)
            except kernels.FusedMLPError:
                self.too_wide.add(kind)
        return self.one_by_one(x, linears, backend)

    def one_by_one(self, x: Tensor, linears: Sequence[nn.Linear], backend: str) -> Tensor:
        """A matrix product each.

        cuBLAS's own epilogue adds the bias and takes the ReLU before the product is written, where a kernel behind it
        reads and writes the product once more. But it has no derivative: training takes that kernel, whose backward has
        the ReLU's mask and the bias's sum in one pass too.

        The zeros that rows of x are filled up with meet zeros in training: the derivative of x without them would be
        copied into zeros, which took 24 of a step's 1557 µs on an H200, 16384 rows in full float32. (What rows are
        filled up with must be finite: 0 · NaN is NaN.)
        """
        weights = [linear.weight for linear in linears]
        if (filled := x.shape[1] - linears[0].in_features) > 0:
            if torch.is_grad_enabled():
                weights[0] = F.pad(weights[0], (0, filled))
            else:
                x = x[:, :-filled]
        for i, (linear, weight) in enumerate(zip(linears, weights, strict=True)):
            if i == len(linears) - 1 and self.final_activation == "identity":
                x = F.linear(x, weight, linear.bias)
            elif torch.is_grad_enabled():
                x = kernels.add_relu(x @ weight.t(), linear.bias, backend=backend)
            else:
                # PyTorch has no autocast rule for it on a GPU.
                x = torch._addmm_activation(autocast(linear.bias), x, autocast(weight).t())
        return x


def precision_of(x: Tensor) -> str:
    """What float32 products of x are to be computed in; for other dtypes it says nothing."""
    return "tf32" if _has_tf32(x) and _setting() != "highest" else "ieee"


@torch.compiler.assume_constant_result  # whose change compiles anew
def _setting() -> str:
    return torch.get_float32_matmul_precision()


def _has_tf32(x: Tensor) -> bool:
    return x.is_cuda


def autocast(x: Tensor) -> Tensor:
    """x in the dtype of torch.autocast, if that is on: an op of several dtypes then casts the others to it."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


@torch.compiler.assume_constant_result
def _fits(shapes: Sequence[Sequence[int]], dtype: torch.dtype, precision: str) -> bool:
    """Whether an MLP with weights of these shapes fits on the chip at any number of rows, as a compiled graph has."""
    many = 1 << 20
    widths = "-".join(map(str, [shapes[0][1], *(shape[0] for shape in shapes)]))
    return all(tile(many, widths, dtype, precision)[1].fits for tile in (forward_tile, backward_tile))
