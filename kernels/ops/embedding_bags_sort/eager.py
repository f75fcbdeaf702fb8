"""The ids of embedding bags in the order of the rows that they name, in plain PyTorch: the reference.

    key[n] = 2 · (row_offsets[f] + id) + 1    for the id at position n, of table f
             2 · row_offsets[f + 1]           if the table has no such id, or it is padding: even, behind its table

and the positions sorted by key, stably: the occurrences of a row lie together, in ascending position. The bit that
tells a row from none costs the sort next to nothing, and what names no row stays with its table, so that the order is
the same whether all keys are sorted at once or each table's by themselves.

Bytes, with N ids of `size` bytes: ids in, keys and positions out: N · (size + 8), and what the sort moves: a radix sort
of 8 bits a pass reads and writes key and position in each, N · 16 · ⌈bits / 8⌉ with bits of 2 · rows + 1.
"""

import torch
from torch import Tensor

from ...dispatch.checks import has_no_values, rises


def embedding_bags_sort(
    indices: Tensor, row_offsets: Tensor, offsets: Tensor | None, rows: int, padding_idx: int = -1, mean: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The arguments are those of the public function → keys, positions, bags, lengths."""
    if row_offsets.is_cpu and not has_no_values(row_offsets):  # on a GPU it would be waited for
        rises("embedding_bags_sort", "row_offsets", row_offsets, rows)
    ids, features = indices.reshape(-1).long(), row_offsets.shape[0] - 1
    position = torch.arange(ids.numel(), device=ids.device)
    bags = lengths = ids.new_empty(0, dtype=torch.int32)
    kept = ids != padding_idx if padding_idx >= 0 else torch.ones_like(ids, dtype=torch.bool)
    inside = torch.ones_like(kept)
    if offsets is None:
        feature = position % max(features, 1)
    else:
        batch = (offsets.shape[0] - 1) // max(features, 1)
        bag = torch.searchsorted(offsets.long(), position, right=True) - 1
        inside = (bag >= 0) & (bag < features * batch)  # what lies in no bag, where offsets are wrong, names no row
        bag = bag.clamp(0, max(features * batch - 1, 0))
        if mean:
            counted = torch.zeros(max(features * batch, 1), dtype=torch.int32, device=ids.device)
            lengths = counted.index_add_(0, bag, (kept & inside).int())[bag]
        feature = bag // max(batch, 1)
        bags = ((bag - feature * batch) * features + feature).int()  # the row of the output [B, F, D]
    keys = torch.full_like(ids, 2 * rows)
    if features:
        first, end = row_offsets[feature].clamp(0, rows), row_offsets[feature + 1].clamp(0, rows)
        found = kept & inside & (ids >= 0) & (ids < end - first)
        keys = torch.where(found, 2 * (first + ids) + 1, torch.where(inside, 2 * end, 2 * rows))
    keys, order = torch.sort(keys.to(key_dtype(rows)), stable=True)
    return keys, order.int(), bags, lengths


def key_dtype(rows: int) -> torch.dtype:
    """The keys' dtype for so many rows: int32 where the largest key, 2 · rows, fits, else int64."""
    return torch.int32 if 2 * rows < 2**31 else torch.int64
