"""What DLRM's blocks compute and move: FLOPs, bytes as PyTorch moves them, bytes if each block were one kernel.

FLOPs are those that are needed: 2 for each weight and row, and 2 D for each pair of vectors, once. Pointwise work is
not counted. Bytes:

    eager   each operator reads its arguments and writes its result; of a table, the rows that it takes
    fused   a block's inputs, its weights, and of its tables the rows that it takes, read once; its result, written once
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from kernels.ops.dot_interaction import eager as dot
from kernels.ops.fused_mlp import eager as mlp
from lessons.shared.records import FLOAT32, TF32, Record, yardstick
from model.config import DLRMConfig, Interaction
from model.dlrm import DLRM, DenseArch
from model.profiling.operators import Operator, Operators

if TYPE_CHECKING:
    import pandas

FP32_TFLOPS, TF32_TFLOPS = FLOAT32 / 1e12, TF32 / 1e12  # an H200's, by its datasheet
BYTES = 4  # of a float32
ID_BYTES = 8


@dataclass(frozen=True)
class Cost:
    """One block's FLOPs; eager's operators with their bytes; the bytes that one kernel would move."""

    flops: int
    operators: tuple[Operator, ...]
    fused: int

    @property
    def eager(self) -> int:
        return sum(operator.read + operator.written for operator in self.operators)

    def intensity(self, fused: bool) -> float:
        """FLOPs a byte."""
        return self.flops / (self.fused if fused else self.eager)


def blocks(config: DLRMConfig, rows: int) -> dict[str, Cost]:
    """The four blocks of a DLRM of dot interaction with a table a feature, and the whole, for a batch. Nothing is
    computed: it runs on the meta device."""
    if config.interaction is not Interaction.DOT or config.sparse_gradients:
        raise ValueError("costs are counted of the dot interaction, with a table a feature")
    model = DLRM(config).to("meta")
    dense = torch.empty(rows, config.bottom[0], device="meta")
    ids = torch.empty(rows, len(config.cardinalities), dtype=torch.int64, device="meta")
    features, width = ids.shape[1], config.embedding_dim
    top = (dot.width(features, width), *config.top)
    x, bottom = _seen(model.dense_arch, dense)
    embeddings, look_ups = _seen(model.sparse_arch, ids)
    met, interaction = _seen(model.interaction_arch, x, embeddings)
    logit, over = _seen(model.over_arch, met)
    weights = mlp.parameters(config.bottom) + mlp.parameters(top)
    found = {
        "bottom MLP": Cost(mlp.forward_flops(rows, config.bottom), bottom, mlp_bytes(rows, config.bottom, fused=True)),
        "look-ups": Cost(0, look_ups, ids.nbytes + 2 * embeddings.nbytes),
        "interaction": Cost(
            dot.forward_flops(rows, features, width), interaction, x.nbytes + embeddings.nbytes + met.nbytes
        ),
        "top MLP": Cost(mlp.forward_flops(rows, top), over, mlp_bytes(rows, top, fused=True)),
    }
    needed = dense.nbytes + ids.nbytes + embeddings.nbytes + BYTES * weights + logit.nbytes
    whole = tuple(itertools.chain.from_iterable(cost.operators for cost in found.values()))
    return found | {"whole model": Cost(sum(cost.flops for cost in found.values()), whole, needed)}


def mlp_bytes(rows: int, widths: Sequence[int], fused: bool) -> int:
    """Bytes that linear layers with a relu after each move."""
    if fused:
        return mlp.forward_bytes(rows, widths, torch.float32)
    _, operators = _seen(DenseArch(widths).to("meta"), torch.empty(rows, widths[0], device="meta"))
    return sum(operator.read + operator.written for operator in operators)


def ridge() -> float:
    """FLOPs a byte at which the float32 limit and the memory's meet."""
    return FP32_TFLOPS / yardstick()


def interaction_recorded(implementation: str, rows: int = 65536) -> pandas.Series:
    """The H200's record of the interaction of 26 embeddings of 16 numbers, float32: us_p50, flops, …"""
    labels = {"form": "functional", "rows": rows, "columns": 16, "dtype": "float32", "implementation": implementation}
    return Record("dot_interaction").one("bandwidth", **labels)


@torch.no_grad()
def _seen(module: nn.Module, *inputs: torch.Tensor) -> tuple[torch.Tensor, tuple[Operator, ...]]:
    with Operators(least=True) as operators:
        out = module(*inputs)
    return out, tuple(operators.seen)
