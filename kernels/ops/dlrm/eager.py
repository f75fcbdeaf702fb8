"""out = top([d; v_i · v_j for i = 1 … F, j = 0 … i - 1]) in plain PyTorch: the reference.

A composite: of the references of fused_mlp, dot_interaction and embedding_bags_apart.

    d = v_0 = bottom(dense)        v_f = Σ of the rows of table f that the bag of the row names        [B, D] each

Bytes, of B rows and N ids. Fused: dense, ids and offsets, N rows of D elements, the weights once, out. Eager goes
through memory with what each layer gives, twice; with the vectors T [B, F + 1, D], four times; with T Tᵀ
[B, F + 1, F + 1], twice; with the pairs, twice.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ...dispatch import checks
from ..dot_interaction.eager import dot_interaction
from ..embedding_bags_apart.eager import check_ids, check_offsets
from ..fused_mlp.eager import ACTIVATIONS, fused_mlp
from ..fused_mlp.packing import padded, views

OP = "dlrm_forward"
PAD_TO = 8  # numbers that what the top MLP reads is filled up to, where it is kept


def dlrm_forward(
    dense: Tensor,
    tables: Sequence[Tensor],
    indices: Sequence[Tensor],
    offsets: Sequence[Tensor],
    bottom_weights: Sequence[Tensor],
    bottom_biases: Sequence[Tensor],
    top_weights: Sequence[Tensor],
    top_biases: Sequence[Tensor],
    bottom_activation: str = "relu",
    bottom_final: str = "relu",
    top_activation: str = "relu",
    top_final: str = "identity",
    precision: str = "ieee",
) -> Tensor:
    """The arguments are those of the public function, with no offsets for one id a row → [B, N], contiguous. precision
    is for PyTorch's own switch to say here (torch.backends.cuda.matmul.fp32_precision).

    A bad id or bad offsets raise at once, which takes a synchronisation; where there are no values to look at
    (`checks.has_no_values`) nothing is raised.
    """
    vector = fused_mlp(dense, bottom_weights, bottom_biases, bottom_activation, bottom_final)
    sparse = [
        looked_up(feature, table, ids, offsets[feature] if offsets else None, dense.shape[0])
        for feature, (table, ids) in enumerate(zip(tables, indices, strict=True))
    ]
    together = dot_interaction(vector, torch.stack(sparse, 1))
    return fused_mlp(together, top_weights, top_biases, top_activation, top_final)


def dlrm_forward_kept(
    dense: Tensor,
    tables: Sequence[Tensor],
    indices: Sequence[Tensor],
    bottom: Tensor,
    top: Tensor,
    bottom_widths: str,
    top_widths: str,
    bottom_activation: str = "relu",
    bottom_final: str = "relu",
    top_activation: str = "relu",
    top_final: str = "identity",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(out, bottom_values, vector, features, top_values), as op.py declares them."""
    vector, bottom_values = _with_values(dense, bottom, bottom_widths, bottom_activation, bottom_final)
    sparse = [looked_up(feature, table, indices[feature], None, len(dense)) for feature, table in enumerate(tables)]
    features = dot_interaction(vector, torch.stack(sparse, 1), PAD_TO)
    out, top_values = _with_values(features, top, top_widths, top_activation, top_final)
    return out, bottom_values, vector, features, top_values


def _with_values(x: Tensor, packed: Tensor, widths: str, activation: str, final: str) -> tuple[Tensor, Tensor]:
    """(the MLP of x, what its layers but the last give, one behind the other)"""
    value, values, parameters = x, [x[:, :0]], views(packed, widths)
    for i, (weight, bias) in enumerate(parameters):
        value = F.linear(value[:, : weight.shape[1]], weight, bias)
        value = ACTIVATIONS[activation if i + 1 < len(parameters) else final](value)
        values.append(F.pad(value, (0, padded(value.shape[1]) - value.shape[1])))
    return value.contiguous(), torch.cat(values[:-1], 1)


def looked_up(feature: int, table: Tensor, ids: Tensor, offsets: Tensor | None, rows: int) -> Tensor:
    """The rows of a table that ids [B] name; with offsets [B] or [B + 1], the sums of the bags of ids [N] → [B, D]."""
    ids = ids.long()
    if not checks.has_no_values(ids):
        check_ids(OP, feature, ids, table.shape[0])
    if offsets is None:
        return F.embedding(ids, table)
    has_last = bool(offsets.shape[0] != rows)  # while it is traced a symbol
    if not checks.has_no_values(offsets):
        check_offsets(OP, feature, offsets, ids.shape[0], has_last)
    return F.embedding_bag(ids, table, offsets.long(), mode="sum", include_last_offset=has_last)
