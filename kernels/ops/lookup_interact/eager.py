"""out, by kind, the look-ups first, in plain PyTorch: the reference.

    dot    [t_0, t_i · t_j for j < i, zeros]            D + F (F + 1) / 2 numbers of a row
    fm     [t_0, ½ ((Σ t_i)² − Σ t_i²), zeros]          2 D: Σ t_i ⊙ t_j for j < i, a factorization machine's pairs
    flat   [t_0, t_1, …, t_F, zeros]                    (F + 1) D

t_0 is a row's dense vector, t_f the sum of the rows of table f that its bag names: embedding_bags first, and then
dot_interaction, or what is below.

Bytes, with E = B · F · D elements of vectors. Two kernels write E once and read it once, besides what one kernel moves:
the rows that ids name, the ids and dense in, out out (`forward_bytes`). Of 65,536 rows of 26 tables of 16 float32
numbers E is 109 MB, and all the rest, with every row read from memory, 223 MB for dot, 135 for fm and 240 for flat.
Gradients of dot and fm look vectors up again; flat's are columns of out's gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dot_interaction import eager as interaction
from ..embedding_bags import eager as bags

KINDS = ("dot", "fm", "flat")


def width(features: int, columns: int, pad_to: int = 1, kind: str = "dot") -> int:
    """W, the width of a row of the output."""
    wide = {"dot": interaction.width(features, columns), "fm": 2 * columns, "flat": (features + 1) * columns}[kind]
    return (wide + pad_to - 1) // pad_to * pad_to


def interact(dense: Tensor, sparse: Tensor, pad_to: int = 1, kind: str = "dot") -> Tensor:
    """dense [B, D] and sparse [B, F, D] of one dtype → [B, W], contiguous."""
    if kind == "dot":
        return interaction.dot_interaction(dense, sparse, pad_to)
    vectors = torch.cat([dense.unsqueeze(1), sparse], dim=1)
    out = torch.cat([dense, pairs_by_column(vectors)], dim=1) if kind == "fm" else vectors.flatten(1)
    missing = -out.shape[1] % pad_to
    return F.pad(out, (0, missing)) if missing else out


def pairs_by_column(vectors: Tensor) -> Tensor:
    """[B, V, D] → [B, D], Σ t_i ⊙ t_j for j < i (Rendle 2010, "Factorization Machines"); of halves in float32."""
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    return ((wide.sum(1).square() - wide.square().sum(1)) / 2).to(vectors.dtype)


def lookup_interact(
    dense: Tensor,
    tables: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    pad_to: int = 1,
    precision: str = "ieee",
    kind: str = "dot",
) -> Tensor:
    """The arguments are those of the public function → [B, W], contiguous. precision does not count: PyTorch's products
    go by torch.set_float32_matmul_precision."""
    vectors = bags.embedding_bags(tables, row_offsets, indices, offsets)
    shape = dense.shape[0], row_offsets.shape[0] - 1, dense.shape[1]  # which offsets of no table do not say
    return interact(dense, vectors.view(shape), pad_to, kind)


def lookup_interact_gradients(
    grad_out: Tensor,
    dense: Tensor,
    tables: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    precision: str = "ieee",
    kind: str = "dot",
) -> tuple[Tensor, Tensor]:
    """The arguments are those of the public function → [B, D], [B, F, D], contiguous. An id of no row counts as zeros.

    With T a row's vectors: of dot (G + Gᵀ) T, where G is the strictly lower triangular matrix of the pairs' gradients;
    of fm h ⊙ (Σ t_i − T), where h is that of the pairs; of flat grad_out itself."""
    (rows, columns), features = dense.shape, row_offsets.shape[0] - 1
    vectors = bags.embedding_bags(tables, row_offsets, indices, offsets, out_of_range="zero")
    vectors = torch.cat([dense.unsqueeze(1), vectors.view(rows, features, columns)], dim=1)
    if kind != "dot":
        return gradients_by_column(grad_out, vectors, kind)
    i, j = interaction.pairs(features, grad_out.device)
    pairs = grad_out.new_zeros(rows, features + 1, features + 1)
    pairs[:, i, j] = grad_out[:, columns : columns + features * (features + 1) // 2]
    grads = (pairs + pairs.transpose(1, 2)) @ vectors
    return grads[:, 0] + grad_out[:, :columns], grads[:, 1:].contiguous()


def gradients_by_column(grad_out: Tensor, vectors: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Of fm and flat, with vectors [B, F + 1, D]; of halves in float32."""
    columns = vectors.shape[2]
    if kind == "flat":
        grads = grad_out[:, : vectors.shape[1] * columns].reshape(vectors.shape)
        return grads[:, 0].contiguous(), grads[:, 1:].contiguous()
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    grads = grad_out[:, columns : 2 * columns].unsqueeze(1) * (wide.sum(1, keepdim=True) - wide)
    of_dense = grads[:, 0] + grad_out[:, :columns]
    return of_dense.to(grad_out.dtype), grads[:, 1:].to(grad_out.dtype).contiguous()


def forward_bytes(
    dense: Tensor, tables: Tensor, row_offsets: Tensor, indices: Tensor, pad_to: int = 1, kind: str = "dot"
) -> int:
    """Bytes that a forward must move: the distinct rows that one id a feature names, the ids and dense in, out out."""
    rows, columns = dense.shape
    features = indices.shape[1]
    looked_up = bags.forward_bytes(tables, row_offsets, indices) - rows * features * columns * tables.itemsize
    return looked_up + rows * (columns + width(features, columns, pad_to, kind)) * dense.itemsize


def gradient_bytes(
    dense: Tensor, tables: Tensor, row_offsets: Tensor, indices: Tensor, pad_to: int = 1, kind: str = "dot"
) -> int:
    """Bytes that the gradients must move: out's gradient in, and what a forward reads, which flat does not; dense's and
    the vectors' out."""
    rows, columns = dense.shape
    written = rows * (indices.shape[1] + 1) * columns * dense.itemsize
    if kind == "flat":
        return 2 * written
    return forward_bytes(dense, tables, row_offsets, indices, pad_to, kind) + written
