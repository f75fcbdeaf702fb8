"""By what a package computes a model, on a device and in a precision: what `model.export` compiles for `Served`.

    fp32   CPU   `InSlices`; other interactions than dot: `Served` as it is
           GPU   `OneKernel` where kernels.dlrm_forward takes the model, in full float32 a small one; else `Served`
    tf32   GPU   `OneKernel`
    bf16   GPU   `OneKernel`; else `InHalf`: bags of ids, other interactions than dot, MLPs too wide for one kernel

So do `model.predict` and the evaluation choose (model.fused), but for many rows, which go there in parts: by ops of
Triton, or launched from Python, that a package's library does not have. A package is for any number of rows, and its
other form is what Inductor makes of the parts. Beside that one kernel is faster of 1 to 65,536 rows, as an H200's
records have it (tests/test_choices_bench.py). Nor is a large batch cut: 2,048 rows of `main` in tf32 take 32.5 µs, and
65,536, which are 32 times as many, 690.

As torch.autocast has it, in bf16 the dense parts are bfloat16, and the embeddings are when they meet them: the tables
of `OneKernel` are cast, which gives the same numbers, and those of `InHalf` stay float32, in which bags are summed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from data.cli import UserError
from kernels.device.launch import architecture, shared_memory
from kernels.hooks import has_hooks
from kernels.ops.dlrm.packaged import NAME, Program, declare
from kernels.ops.fused_mlp.module import is_plain
from model.arches import DenseArch, InteractionArch, OverArch
from model.config import Interaction, Precision
from model.device import check_precision
from model.fused import FusedDenseArch, FusedInteractionArch, FusedOverArch
from model.serving.served import Served, as_trained

PLAIN_ARCHES = (DenseArch, FusedDenseArch), (InteractionArch, FusedInteractionArch), (OverArch, FusedOverArch)


class OneKernel(Served):
    """A `Served` whose dense parts, look-ups and interaction are one kernel, for one id a feature.

    rows: the tables, of the program's dtype; laid_out: the MLPs' weights and biases as the kernel takes them. `op` is
    what launches it: `kernels.ops.dlrm.packaged.declare` gives it, once the package's library is loaded.
    """

    def __init__(self, served: Served, program: Program) -> None:
        nn.Module.__init__(self)
        _take(served, self)
        weights, biases = _parameters(served)
        self.program = program
        self.register_buffer("rows", served.rows.to(program.dtype))
        self.register_buffer("laid_out", program.lay_out(weights, biases).to(served.rows.device))

    def load(self, op: str) -> None:
        """The library with the op is loaded."""
        self.op = declare(op, self.program)

    def forward(self, counts: Tensor, ids: Tensor) -> Tensor:
        """As `Served.forward`."""
        dense = as_trained(counts).to(self.rows.dtype)
        logits = self.op(dense, self.rows, self._rows(ids), self.laid_out)
        return torch.sigmoid(logits.squeeze(1).float())


class InSlices(Served):
    """A `Served` with dot whose pairs are slices, one a vector. By index, Inductor's C++ reads and checks two indices
    for each pair that it copies; the numbers are the same."""

    def __init__(self, served: Served) -> None:
        nn.Module.__init__(self)
        _take(served, self)
        self.register_buffer("rows", served.rows)
        self.dense_arch, self.over_arch = served.dense_arch, served.over_arch
        plain = served.interaction_arch
        self.interaction_arch = _SlicedArch(plain.interaction, plain.num_features, plain.embedding_dim)


class _SlicedArch(InteractionArch):
    """The same features."""

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        vectors = torch.cat([dense.unsqueeze(1), sparse], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        return torch.cat([dense, *(products[:, i, :i] for i in range(1, self.num_features + 1))], dim=1)


class InHalf(Served):
    """A `Served` whose dense parts are bfloat16, an operation after the other."""

    def __init__(self, served: Served) -> None:
        nn.Module.__init__(self)
        _take(served, self)
        self.register_buffer("rows", served.rows)
        for name in ("dense_arch", "interaction_arch", "over_arch"):
            setattr(self, name, copy.deepcopy(getattr(served, name)).to(torch.bfloat16))

    def forward(self, counts: Tensor, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        """As `Served.forward`."""
        embeddings = self._embeddings(ids, offsets, counts.shape[0]).bfloat16()
        features = self.interaction_arch(self.dense_arch(as_trained(counts).bfloat16()), embeddings)
        return torch.sigmoid(self.over_arch(features).squeeze(1).float())


def form(served: Served, precision: Precision, device: torch.device | None = None) -> Served:
    """What a package of this precision computes, for the device, by default the model's. It shares the model's tensors.

    UserError: the device or the model has no form in this precision.
    """
    device = served.rows.device if device is None else device
    check(device, precision)
    if device.type == "cpu":
        arch = served.interaction_arch
        is_plain_dot = type(arch) is InteractionArch and arch.interaction is Interaction.DOT and not has_hooks(arch)
        return InSlices(served).eval() if is_plain_dot else served
    program = _program(served, precision, device)
    if isinstance(program, Program):
        return OneKernel(served, program).eval()
    if precision is Precision.TF32:
        # A product of PyTorch's is in TF32 by a switch of the process that serves, which is not the package's to set.
        raise UserError(f"--precision tf32: {program}; export in bf16 or fp32")
    return InHalf(served).eval() if precision is Precision.BF16 else served


def check(device: torch.device, precision: Precision) -> None:
    """Raise UserError if no package for the device is in this precision."""
    if device.type == "cpu" and precision is not Precision.FP32:
        raise UserError(f"--precision {precision}: of a package for a GPU (--device cuda); one for the CPU is fp32")
    check_precision(device, precision)


def _program(served: Served, precision: Precision, device: torch.device) -> Program | str:
    """The one kernel; or why there is none."""
    arches = served.dense_arch, served.interaction_arch, served.over_arch
    if served.pooling != "none":
        return "bags of ids are not looked up by the one kernel, which takes one id a feature"
    if not all(type(arch) in plain for arch, plain in zip(arches, PLAIN_ARCHES, strict=True)) or not _is_plain(served):
        return "a layer is another than the one kernel has"
    if served.interaction_arch.interaction is not Interaction.DOT:
        return f"the one kernel has the interaction dot, and the model's is {served.interaction_arch.interaction}"
    dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
    widths = [[linears[0].in_features, *(linear.out_features for linear in linears)] for linears in _linears(served)]
    program = Program.of(
        *widths, served.heights_of_tables, dtype, "tf32" if precision is Precision.TF32 else "ieee",
        architecture(device), shared_memory(device),
    )
    return program if isinstance(program, Program) else f"{NAME.removesuffix('_laid_out')}: {program}"


def _linears(served: Served) -> tuple[Sequence[nn.Linear], Sequence[nn.Linear]]:
    """The bottom MLP's layers and the top's."""
    return [*served.dense_arch.mlp][::2], [*[*served.over_arch.mlp][::2], served.over_arch.logit]


def _is_plain(served: Served) -> bool:
    linears = [linear for mlp in _linears(served) for linear in mlp]
    between = [*[*served.dense_arch.mlp][1::2], *[*served.over_arch.mlp][1::2]]
    plain = all(type(linear) is nn.Linear and is_plain(linear) and linear.bias is not None for linear in linears)
    return plain and all(type(activation) is nn.ReLU for activation in between)


def _parameters(served: Served) -> tuple[list[Tensor], list[Tensor]]:
    linears = [linear for mlp in _linears(served) for linear in mlp]
    return [linear.weight for linear in linears], [linear.bias for linear in linears]


def _take(served: Served, to: Served) -> None:
    """What looks ids up, in both."""
    for name in ("pooling", "modulus", "features", "hash_size", "heights_of_tables"):
        setattr(to, name, getattr(served, name))
    for name, buffer in served.named_buffers(recurse=False):
        if name != "rows":
            to.register_buffer(name, buffer)
