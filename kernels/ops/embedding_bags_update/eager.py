"""The backward of embedding_bags and an optimizer's update in one: the reference, in plain PyTorch.

    g[r]  = Σ over the occurrences n of row r, in ascending order, of weight[n] · grad[bag of n]        (float32)
    sgd               tables[r] -= lr · g[r]
    adagrad           state[r] += g[r]²                    tables[r] -= lr · g[r] / (√state[r] + eps)
    rowwise adagrad   state[r] += mean over D of g[r]²     tables[r] -= lr · g[r] / (√state[r] + eps)

for the rows r that occur and no others; weight is per_sample_weights, for a mean 1 / the bag's length, else 1. Here as
a sparse gradient, coalesced, and the formulas of torch.optim's SGD and Adagrad for sparse gradients.

Bytes, with N ids in `bags` bags, U distinct rows of D elements of `size` bytes: `necessary_bytes`. This reference moves
some 5 times as many: it writes a gradient row an occurrence, sorts, and reads and writes what it has sorted.
"""

import torch
from torch import Tensor


def embedding_bags_sgd_(
    tables: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
) -> Tensor:
    """tables [R, D] updated in place and returned; grad [B, F, D] is that of embedding_bags' output."""
    updates = row_gradients(tables, row_offsets, indices, grad, offsets, mode, per_sample_weights, padding_idx)
    return update_(tables, None, *updates, learning_rate, "sgd")


def embedding_bags_adagrad_(
    tables: Tensor, state: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None, eps: float = 1e-10,
) -> Tensor:
    """The same by Adagrad; state [R, D] float32 is updated too."""
    updates = row_gradients(tables, row_offsets, indices, grad, offsets, mode, per_sample_weights, padding_idx)
    return update_(tables, state, *updates, learning_rate, "adagrad", eps)


def embedding_bags_rowwise_adagrad_(
    tables: Tensor, state: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None, eps: float = 1e-10,
) -> Tensor:
    """The same by Adagrad with one number of state a row: state [R] float32."""
    updates = row_gradients(tables, row_offsets, indices, grad, offsets, mode, per_sample_weights, padding_idx)
    return update_(tables, state, *updates, learning_rate, "rowwise_adagrad", eps)


def embedding_bags_add(
    tables: Tensor, row_offsets: Tensor, indices: Tensor, bag_grad: Tensor, offsets: Tensor | None,
    per_sample_weights: Tensor | None, learning_rate: float | Tensor, pooling: str, padding_idx: int,
) -> None:
    """SGD as the op of op.py takes it, which writes tables; a padding_idx below 0 is none."""
    padding = None if padding_idx < 0 else padding_idx
    arguments = tables, row_offsets, indices, bag_grad, learning_rate, offsets, pooling, per_sample_weights, padding
    embedding_bags_sgd_(*arguments)


def row_gradients(
    tables: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, offsets: Tensor | None, mode: str,
    per_sample_weights: Tensor | None, padding_idx: int | None,
) -> tuple[Tensor, Tensor]:
    """The distinct rows that occur, int64 [U], ascending, and their gradients [U, D] in the dtype computed in."""
    dtype = torch.promote_types(tables.dtype, torch.float32)
    batch, features, _ = grad.shape
    ids = indices.reshape(-1).long()
    position = torch.arange(len(ids), device=ids.device)
    weights = None if per_sample_weights is None else per_sample_weights.reshape(-1).to(dtype)
    kept = torch.ones_like(ids, dtype=torch.bool) if padding_idx is None else ids != padding_idx
    if offsets is None:
        bag, feature = position, position % max(features, 1)
    else:  # bag f · B + b of the ids is row b · F + f of the gradient
        bag = torch.searchsorted(offsets.long(), position, right=True) - 1
        kept &= (bag >= 0) & (bag < features * batch)
        bag = bag.clamp(0, max(features * batch - 1, 0))
        if mode == "mean":
            lengths = torch.zeros(features * batch, device=ids.device, dtype=dtype).index_add_(0, bag, kept.to(dtype))
            weights = 1 / lengths[bag]
        feature, bag = bag // max(batch, 1), bag % max(batch, 1) * features + bag // max(batch, 1)
    first, end = row_offsets[feature], row_offsets[feature + 1]
    kept &= (ids >= 0) & (ids < end - first) & (first >= 0) & (first + ids < len(tables))
    rows, values = (first + ids)[kept], grad.flatten(0, 1).to(dtype)[bag[kept]]
    if weights is not None:
        values = values * weights[kept, None]
    summed = torch.sparse_coo_tensor(
        rows[None], values, tables.shape, device=tables.device, check_invariants=False
    ).coalesce()
    return summed.indices()[0], summed.values()


def embedding_bags_update(
    tables: Tensor, state: Tensor, row_keys: Tensor, id_positions: Tensor, bag_grad: Tensor, bags: Tensor | None,
    lengths: Tensor | None, id_weights: Tensor | None, learning_rate: float | Tensor, rule: str, eps: float = 0.0,
    chunk: int = 0,
) -> None:
    """What a kernel does with sorted ids: the arguments are those of op.py's declaration; tables, state are written."""
    dtype = torch.promote_types(tables.dtype, torch.float32)
    found = row_keys % 2 == 1
    position, rows = id_positions[found].long(), row_keys[found] // 2
    values = bag_grad[position if bags is None else bags[position].long()].to(dtype)
    if id_weights is not None:
        values = values * id_weights[position, None].to(dtype)
    if lengths is not None:
        values = values / lengths[position, None]
    rows, segments = torch.unique_consecutive(rows, return_inverse=True)
    gradients = values.new_zeros(len(rows), tables.shape[1]).index_add_(0, segments, values)
    update_(tables, state, rows.long(), gradients, learning_rate, rule, eps)


def update_(
    tables: Tensor, state: Tensor | None, rows: Tensor, gradients: Tensor, learning_rate: float | Tensor, rule: str,
    eps: float = 0.0,
) -> Tensor:
    """The rule, for these distinct rows [U] with gradients [U, D]."""
    step = gradients
    if rule != "sgd":
        squares = gradients.square()
        total = state[rows] + (squares.mean(1) if rule == "rowwise_adagrad" else squares)
        state[rows] = total
        root = total.sqrt() + eps
        step = gradients / (root[:, None] if rule == "rowwise_adagrad" else root)
    tables[rows] = (tables[rows].to(gradients.dtype) - learning_rate * step).to(tables.dtype)
    return tables


def necessary_bytes(
    rule: str, ids: int, id_bytes: int, bags: int, distinct_rows: int, width: int, dtype: torch.dtype
) -> int:
    """Bytes that an update must move: ids and the gradient once in, each distinct row and its state in and out."""
    state = {"sgd": 0, "adagrad": 4 * width, "rowwise_adagrad": 4}[rule]
    return ids * id_bytes + bags * width * dtype.itemsize + 2 * distinct_rows * (width * dtype.itemsize + state)
