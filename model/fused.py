"""A DLRM's arches by fused kernels: the modules, parameters and results of model.arches', fewer kernels, fewer bytes.

    DenseArch          kernels.fused_mlp          every layer in one kernel
    InteractionArch    kernels.dot_interaction    dot; its rows are filled up, so that they are aligned for their reader
                       kernels.lookup_interact    each, where it is faster with the look-ups in it (`looks_up`)
                       c alone                    outer: c cᵀ is not written, the first layer of the top MLP forms it;
                                                  in full float32 it is, for cuBLAS, which is faster
    OverArch           kernels.fused_mlp          every layer in one kernel; of outer those behind the first, which is
                       kernels.outer_linear

An MLP too wide for one kernel, or in full float32, is a matrix product a layer, with bias and ReLU in one pass, as
kernels.FusedMLP has it; but in full float32 a training step that is no CUDA graph takes one kernel (`pack`).
Where one kernel of all arches is faster, it computes the model without gradients (`whole`), and the forward of a step
that computes its MLPs' gradients at its end (`train_whole`).
Float32 products are as exact as PyTorch's own (`torch.set_float32_matmul_precision`, which model.train sets), and under
torch.autocast the kernels compute in its dtype.

On a CPU the kernels are PyTorch's operations, and the arches compute as those of model.arches do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

import kernels
from kernels.dispatch.refusals import autocasts
from kernels.hooks import has_hooks
from kernels.ops.dlrm.choice import design_for, is_faster, is_faster_kept
from kernels.ops.dlrm.eager import PAD_TO
from kernels.ops.dlrm.op import dlrm_forward_kept, nvrtc_runs
from kernels.ops.dlrm.pair import Pairs
from kernels.ops.dlrm.tile import TYPES
from kernels.ops.fused_mlp.module import autocast, is_chosen, is_plain, mlp, precision_of
from kernels.ops.fused_mlp.packed import PackedMLP, is_packed, packed_together
from kernels.ops.fused_mlp.packing import widths_of
from kernels.ops.lookup_interact.choice import fits, why_in_two
from model.arches import DenseArch, InteractionArch, OverArch, outer_product
from model.config import Interaction, Precision
from model.tables import FusedTables


class Fused:
    """What the arches share. backend: of the kernels; "auto" fuses CUDA tensors, any other name all. packed: the layers
    as one tensor that an optimizer trains in their parameters' place (`pack`); None where each is trained itself."""

    backend = "auto"
    packed: PackedMLP | None = None

    def fuses(self, x: Tensor) -> bool:
        """Whether the kernels take x: not a CPU's, by "auto", nor in an arch with another layer (LoRA's) or activation
        than it was built with, or with hooks (pruning)."""
        if self.backend == "auto" and not x.is_cuda:
            return False
        return self.is_as_built()

    def is_as_built(self) -> bool:
        """Whether a call of the arch is one of the layers that it was built of, and does no more than they do."""
        chain = getattr(self, "mlp", None)
        if chain is None:  # the interaction's
            return True
        if type(chain).forward is not nn.Sequential.forward or has_hooks(chain) or len(chain) % 2:
            return False
        kinds = itertools.cycle((nn.Linear, nn.ReLU))
        return all(type(layer) is kind and is_plain(layer) for layer, kind in zip(self.layers(), kinds, strict=False))

    def layers(self) -> list[nn.Module]:
        """The arch's layers, in order, with the ReLU behind each."""
        return []

    def linears(self) -> list[nn.Module]:
        return self.layers()[::2]


class FusedDenseArch(Fused, DenseArch):
    """The bottom MLP in one kernel."""

    def layers(self) -> list[nn.Module]:
        return list(self.mlp)

    def forward(self, dense: Tensor) -> Tensor:
        if not self.fuses(dense):
            return super().forward(dense)
        linears = self.linears()
        if self.packed is not None and self.packed.takes(linears, dense, self.backend):
            return self.packed(dense, final_activation="relu", backend=self.backend)
        return mlp(dense, *parameters(linears), final_activation="relu", backend=self.backend)


class FusedInteractionArch(Fused, InteractionArch):
    """The interaction in one kernel, as `FusedOverArch` reads it: dot [B, out_features or a few zeros more], outer
    c [B, (F + 1) D], fm and cat as ever."""

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        if not self.fuses(dense) or self.interaction in (Interaction.FM, Interaction.CAT):
            return super().forward(dense, sparse)
        if self.interaction is Interaction.DOT:
            return kernels.dot_interaction(autocast(dense), sparse, PAD_TO, backend=self.backend)
        return torch.cat([dense, sparse.flatten(1)], dim=1)


class FusedOverArch(Fused, OverArch):
    """The top MLP in one kernel; with outer in two, of which the first forms c cᵀ as it goes."""

    def __init__(self, in_features: int, widths: Sequence[int]):
        super().__init__(in_features, widths)
        self.in_features = in_features

    def layers(self) -> list[nn.Module]:
        return [*self.mlp, self.logit]

    def forward(self, features: Tensor) -> Tensor:
        if not self.fuses(features):
            # What the plain interaction gives, made of what the fused one gave.
            plain = outer_product(features) if self._is_root(features) else features[:, : self.in_features]
            return super().forward(plain)
        linears = self.linears()
        if self.packed is not None and self.packed.takes(linears, features, self.backend):
            return self.packed(features, backend=self.backend)
        if self._is_root(features):
            first = linears.pop(0)
            activation = "relu" if linears else "identity"
            features = kernels.outer_linear(
                autocast(features), first.weight, first.bias, activation, precision_of(features), backend=self.backend
            )
        return mlp(features, *parameters(linears), backend=self.backend) if linears else features

    def _is_root(self, features: Tensor) -> bool:
        """Whether the first layer is of c cᵀ, and the features are c, which has two numbers or more."""
        return features.shape[1] ** 2 == self.in_features


def is_whole(model: nn.Module, dense: Tensor) -> bool:
    """Whether `whole` computes a DLRM for such dense features: without gradients, one that `_may_be_whole` and that one
    kernel computes faster than its parts."""
    return not torch.is_grad_enabled() and _may_be_whole(model, dense) and is_faster(*_described(model, dense))


def _may_be_whole(model: nn.Module, dense: Tensor) -> bool:
    """Whether a DLRM has fused kernels and the interaction dot, as it was built and without hooks, and no autocast."""
    parts = bottom, tables, interaction, top = (
        model.dense_arch, model.sparse_arch, model.interaction_arch, model.over_arch
    )
    as_built = FusedDenseArch, FusedInteractionArch, FusedOverArch  # a class of a reader's own may compute more
    if (type(bottom), type(interaction), type(top)) != as_built or is_compiling():
        return False
    if interaction.interaction is not Interaction.DOT or autocasts(dense):
        return False
    arches = bottom, interaction, top
    if any(map(has_hooks, (*parts, tables.tables))) or not all([arch.fuses(dense) for arch in arches]):
        return False
    backends = {arch.backend for arch in arches}
    if not backends <= {"auto", "cuda"} or ("auto" in backends and not nvrtc_runs()):
        return False
    linears = bottom.linears(), top.linears()
    if any([linear.bias is None for linear in (*linears[0], *linears[1])]):  # == of a tensor takes the host 20 µs
        return False
    if getattr(tables.tables, "out_of_range", "error") != "error":  # of ids, which their own look-up takes otherwise
        return False
    return dense.dtype in TYPES and dense.dtype == tables.tables.weight.dtype


def _described(model: nn.Module, dense: Tensor) -> tuple:
    """A model that may be whole, as `design_for` takes it."""
    arches, rows = (model.dense_arch, model.over_arch), dense.shape[0]
    weights = [tuple([linear.weight.shape for linear in arch.linears()]) for arch in arches]
    return *weights, len(model.sparse_arch.tables), False, dense.dtype, precision_of(dense), dense.device, rows


def whole(model: nn.Module, dense: Tensor, rows: Tensor) -> Tensor:
    """The logits [B, 1] of a DLRM in one kernel. rows: int64 [B, F], each of its own table."""
    tables = model.sparse_arch.tables
    bottom, top = parameters(model.dense_arch.linears()), parameters(model.over_arch.linears())
    return kernels.dlrm_forward(
        dense, list(tables.weight.split(tables.rows)), rows, None, *bottom, *top, precision=precision_of(dense),
        backend="cuda",
    )


def trains_whole(model: nn.Module, dense: Tensor) -> bool:
    """Whether `train_whole` computes a DLRM for such dense features: in a step that computes its MLPs' gradients at its
    end (`fusing_gradients`), one that may be whole, of a batch that pairs of multiprocessors take, and faster."""
    arches, tables = (model.dense_arch, model.over_arch), model.sparse_arch.tables
    if is_compiling() or not all([isinstance(arch, Fused) and arch.packed is not None for arch in arches]):
        return False
    bottom, top = (arch.packed for arch in arches)
    if not (bottom.leaves_operands and top.leaves_operands):
        return False
    if not _may_be_whole(model, dense) or dense.requires_grad or type(tables) is not FusedTables:
        return False
    if not tables.training:
        return False
    for arch in arches:
        if not (arch.packed.takes(arch.linears(), dense, arch.backend) and arch.packed.leaves(dense)):
            return False
    if not is_faster_kept(bottom.widths, top.widths, len(tables), dense.shape[0], dense.device):
        return False
    shape = len(tables), tables.weight.shape[1], dense.dtype, precision_of(dense), dense.device
    return isinstance(design_for(*_described(model, dense)), Pairs) and fits(*shape)


def train_whole(model: nn.Module, dense: Tensor, rows: Tensor) -> Tensor:
    """The logits [B, 1] of a DLRM in one kernel, which keeps what the backwards of its parts read. rows: as in `whole`.
    Vectors meet in tf32, as products of `whole` do, where the interaction's own kernel takes full float32."""
    bottom, top, tables = model.dense_arch.packed, model.over_arch.packed, model.sparse_arch.tables
    with torch.no_grad():
        out, bottom_values, vector, features, top_values = dlrm_forward_kept(
            dense, tables.weight.split(tables.rows), rows, bottom.buffer, top.buffer, bottom.widths, top.widths,
            "relu", "relu", "relu", "identity", backend="cuda",
        )
    vector = bottom(dense, final_activation="relu", known=(vector, bottom_values))
    # Ids are sorted beside the backward, not beside this kernel, which takes all multiprocessors.
    features = tables.interact(vector, rows, None, PAD_TO, precision_of(dense), "cuda", known=(features,))
    return top(features, known=(out, top_values))


# Of each interaction what kernels.lookup_interact computes, and to a multiple of how many columns rows are filled up:
# outer's first layer takes c as it is.
LOOKED_UP = {
    Interaction.DOT: ("dot", PAD_TO), Interaction.FM: ("fm", PAD_TO), Interaction.CAT: ("flat", PAD_TO),
    Interaction.OUTER: ("flat", 1),
}  # fmt: skip


def looks_up(model: nn.Module, dense: Tensor, bags: bool) -> bool:
    """Whether the interaction of a DLRM with `FusedTables` looks the tables up itself, for such dense features: one
    that is as it was built and without hooks, and where one kernel is faster than two. An interaction's backend
    "cuda" asks for it wherever there is such a kernel, for the memory that it saves: [B, F, D] numbers of a step."""
    interaction, arch = model.interaction_arch, model.sparse_arch
    tables = arch.tables
    if type(interaction) is not FusedInteractionArch:
        return False
    if type(tables) is not FusedTables or any(map(has_hooks, (interaction, arch, tables))):
        return False
    if interaction.backend not in ("auto", "cuda") or not interaction.fuses(dense) or tables.out_of_range != "error":
        return False
    weight, precision = tables.weight, precision_in_one(dense, tables.weight)
    if dense.dtype != weight.dtype and not autocasts(dense):
        return False  # of which the interaction speaks
    shape, (kind, _) = (len(tables), weight.shape[1], weight.dtype, precision), LOOKED_UP[interaction.interaction]
    if interaction.backend == "cuda":
        return fits(*shape, weight.device, kind)
    return not why_in_two(dense.shape[0], *shape, bags, torch.is_grad_enabled(), weight.device, kind)


def look_up(model: nn.Module, dense: Tensor, rows: Tensor, offsets: Tensor | None) -> Tensor:
    """What the interaction of `looks_up` gives of the bottom MLP's dense [B, D] and the rows of the tables."""
    tables, arch = model.sparse_arch.tables, model.interaction_arch
    (kind, pad_to), precision = LOOKED_UP[arch.interaction], precision_in_one(dense, tables.weight)
    return tables.interact(
        dense.to(tables.weight.dtype), rows, offsets, pad_to, precision, arch.backend, kind=kind
    )


def precision_in_one(dense: Tensor, weight: Tensor) -> str:
    """What the products of float32 vectors are computed in. Under torch.autocast, for whose halves these would be
    rounded, they are not: in tf32 they are nearer, and no copy of them is in memory."""
    return "tf32" if autocasts(dense) and weight.dtype == torch.float32 else precision_of(dense)


def parameters(linears: Sequence[nn.Linear]) -> tuple[list[Tensor], list[Tensor]]:
    """(weights, biases) of the layers."""
    return [linear.weight for linear in linears], [linear.bias for linear in linears]


def pack(model: nn.Module, rows: int, precision: Precision, graph: bool) -> list[tuple[Fused, PackedMLP]]:
    """Lay out the MLPs of a fused DLRM that are one kernel each in a training step of so many rows, so that an
    optimizer can train their buffers, which are returned. graph: whether the step becomes a CUDA graph, which waits for
    no host: then full float32 goes layer by layer. The others (on a CPU, too wide for one kernel, in full float32 of
    more products than `is_packed` takes, the top MLP of `outer`) stay as they are."""
    arches = [model.dense_arch]
    if model.interaction_arch.interaction is not Interaction.OUTER:
        arches.append(model.over_arch)
    ids = [{*map(id, arch.parameters())} for arch in (model.dense_arch, model.over_arch)]
    is_tied = not ids[0].isdisjoint(ids[1])  # a parameter lies in one buffer
    chosen = []
    for arch in arches:
        arch.packed = None  # an earlier optimizer's, whose step did not end: gradients would go on to its buffer
        if not is_tied and _is_packed(arch, rows, precision, graph):
            chosen.append(arch)
        else:  # of an earlier optimizer's buffer: fused=True takes dense parameters alone, and on a CPU does not say so
            for parameter in arch.parameters():
                parameter.data = parameter.detach().contiguous()
    packed = packed_together([arch.linears() for arch in chosen]) if chosen else []
    return [*zip(chosen, packed, strict=True)]


def _is_packed(arch: Fused, rows: int, precision: Precision, graph: bool) -> bool:
    if not arch.is_as_built():
        return False
    if not all(parameter.requires_grad for parameter in arch.parameters()):
        return False
    weights, biases = parameters(arch.linears())
    if any([bias is None for bias in biases]) or len({*map(id, (*weights, *biases))}) < 2 * len(weights):
        return False
    dtype = torch.bfloat16 if precision is Precision.BF16 else weights[0].dtype
    arguments = rows, widths_of(weights), dtype, "tf32" if precision is Precision.TF32 else "ieee"
    device = weights[0].device
    if graph:
        return is_chosen(*arguments, True, device, arch.backend)
    return is_packed(*arguments, device, arch.backend)
