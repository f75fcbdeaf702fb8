"""out = [t_0, t_i · t_j for j < i, zeros], the look-ups first, in plain PyTorch: the reference.

t_0 is a row's dense vector, t_f the sum of the rows of table f that its bag names: embedding_bags and dot_interaction,
one after the other.

Bytes, with E = B · F · D elements of vectors: what those two move, as their eager.py say. Two kernels write E once and
read it once. One kernel reads the rows that ids name, the ids and dense, and writes out: `forward_bytes`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..dot_interaction import eager as interaction
from ..embedding_bags import eager as bags

width = interaction.width


def lookup_interact(
    dense: Tensor,
    tables: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    pad_to: int = 1,
    precision: str = "ieee",
) -> Tensor:
    """The arguments are those of the public function → [B, W], contiguous. precision does not count: PyTorch's products
    go by torch.set_float32_matmul_precision."""
    vectors = bags.embedding_bags(tables, row_offsets, indices, offsets)
    shape = dense.shape[0], row_offsets.shape[0] - 1, dense.shape[1]  # which offsets of no table do not say
    return interaction.dot_interaction(dense, vectors.view(shape), pad_to)


def lookup_interact_gradients(
    grad_out: Tensor,
    dense: Tensor,
    tables: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    precision: str = "ieee",
) -> tuple[Tensor, Tensor]:
    """The arguments are those of the public function → [B, D], [B, F, D], contiguous: (G + Gᵀ) T, where T is a row's
    vectors and G the strictly lower triangular matrix of the pairs' gradients. An id of no row counts as zeros."""
    (rows, columns), features = dense.shape, row_offsets.shape[0] - 1
    vectors = bags.embedding_bags(tables, row_offsets, indices, offsets, out_of_range="zero")
    vectors = torch.cat([dense.unsqueeze(1), vectors.view(rows, features, columns)], dim=1)
    i, j = interaction.pairs(features, grad_out.device)
    pairs = grad_out.new_zeros(rows, features + 1, features + 1)
    pairs[:, i, j] = grad_out[:, columns : columns + features * (features + 1) // 2]
    grads = (pairs + pairs.transpose(1, 2)) @ vectors
    return grads[:, 0] + grad_out[:, :columns], grads[:, 1:].contiguous()


def forward_bytes(dense: Tensor, tables: Tensor, row_offsets: Tensor, indices: Tensor, pad_to: int = 1) -> int:
    """Bytes that a forward must move: the distinct rows that one id a feature names, the ids and dense in, out out."""
    rows, columns = dense.shape
    features = indices.shape[1]
    looked_up = bags.forward_bytes(tables, row_offsets, indices) - rows * features * columns * tables.itemsize
    return looked_up + rows * (columns + width(features, columns, pad_to)) * dense.itemsize


def gradient_bytes(dense: Tensor, tables: Tensor, row_offsets: Tensor, indices: Tensor, pad_to: int = 1) -> int:
    """Bytes that the gradients must move: out's gradient in, and what a forward reads; dense's and the vectors' out."""
    rows, columns = dense.shape
    written = rows * (indices.shape[1] + 1) * columns * dense.itemsize
    return forward_bytes(dense, tables, row_offsets, indices, pad_to) + written
