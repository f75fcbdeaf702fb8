"""out[b, f] = Σ (or mean) of the rows of table f that bag (b, f) names, table by table in PyTorch: the reference.

Bytes are those of embedding_bags: the distinct rows in, the ids and offsets in, the output out. Eager writes each
table's look-ups, B · D, and reads them again to lay them side by side; and it launches two kernels or more a table,
one in the op's place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...dispatch import checks

OP = "embedding_bags_apart"


def embedding_bags_apart(
    tables: Sequence[Tensor],
    indices: Sequence[Tensor],
    offsets: Sequence[Tensor] | None = None,
    mode: str = "sum",
    include_last_offset: bool = False,
) -> Tensor:
    """The arguments are those of the public function → [B, F, D], contiguous.

    A bad id or offset raises at once, which takes a synchronisation. Where there are no values to look at
    (`checks.has_no_values`), as while torch.compile traces this, it is left to PyTorch's own operators.
    """
    if not checks.has_no_values(tables[0]):
        for feature in range(len(tables)):
            if offsets:
                check_offsets(OP, feature, offsets[feature], len(indices[feature]), include_last_offset)
            check_ids(OP, feature, indices[feature], tables[feature].shape[0])
    rows = offsets[0].shape[0] - int(include_last_offset) if offsets else indices[0].shape[0]
    # Where F.embedding_bag's backward reads what is not there, on a GPU, or leaves its result as it finds it.
    if not tables[0].shape[1] or (not checks.has_no_values(tables[0]) and rows == 0):
        nothing = torch.stack([table.sum() for table in tables]).sum()  # of which each table has zeros for a gradient
        return nothing + tables[0].new_zeros(rows, len(tables), tables[0].shape[1])
    if not offsets:
        return torch.stack([F.embedding(ids, table) for ids, table in zip(indices, tables, strict=True)], 1)
    pooled = [
        F.embedding_bag(ids, table, bounds.to(ids.dtype), mode=mode, include_last_offset=include_last_offset)
        for ids, table, bounds in zip(indices, tables, offsets, strict=True)
    ]
    return torch.stack(pooled, 1)


def check_offsets(op: str, feature: int, offsets: Tensor, ids: int, has_last: bool) -> None:
    """Raise ValueError, naming the position, unless a table's offsets go from 0 to the number of ids and never fall."""
    wide = offsets.long()
    if not wide.numel():
        return
    bad = (wide < 0) | (wide > ids)
    bad[0] |= wide[0] != 0
    bad[1:] |= wide.diff() < 0
    if has_last:
        bad[-1] |= wide[-1] != ids
    if bad.any():
        position = int(bad.nonzero()[0])
        raise ValueError(bad_offset(op, feature, position, int(wide[position])))


def check_ids(op: str, feature: int, ids: Tensor, rows: int) -> None:
    """Raise IndexError, naming the position, unless a table of so many rows has all ids."""
    bad = (ids < 0) | (ids >= rows)
    if bad.any():
        position = int(bad.nonzero()[0])
        raise IndexError(bad_id(op, feature, position, int(ids[position])))


def bad_offset(op: str, feature: int, position: int, value: int) -> str:
    """What is said of an offset that cannot be."""
    expected = "must begin with 0, never fall, and not pass the number of ids, where include_last_offset ends"
    return f"{op}: offsets[{feature}] {expected}; offsets[{feature}][{position}] is {value}"


def bad_id(op: str, feature: int, position: int, value: int) -> str:
    """What is said of an id that its table does not have."""
    return f"{op}: id {value}, at position {position} of indices[{feature}], is out of range for tables[{feature}]"
