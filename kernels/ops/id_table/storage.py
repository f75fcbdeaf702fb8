"""The tensors that id tables are stored in: made, filled, moved to larger ones, counted.

Storage is (tags, slots, bucket_offsets, seeds), as `table_lookup` takes it; eager.py says what stands where.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from .eager import BUCKET_SLOTS, EMPTY, FIRST_TAG
from .op import CLAIM

Storage = tuple[Tensor, Tensor, Tensor, Tensor]


def starts(counts: Sequence[int]) -> Tensor:
    """int64 [T + 1]: 0, and the sums of the counts so far."""
    return torch.from_numpy(np.cumsum([0, *counts], dtype=np.int64))


def empty(buckets: Sequence[int], seeds: Tensor) -> Storage:
    """Storage without ids, with so many buckets for each table, on seeds' device."""
    offsets = starts(buckets)
    with torch.inference_mode(False):  # it may be written outside of that mode later
        slots = torch.zeros((BUCKET_SLOTS * int(offsets[-1]), 2), dtype=torch.int64, device=seeds.device)
        tags = torch.zeros(len(slots), dtype=torch.uint8, device=seeds.device)
        return tags, slots, offsets.to(seeds.device), seeds


def fill(storage: Storage, ids: Tensor, table_ids: Tensor, rows: Tensor, backend: str) -> None:
    """Give ids that the storage does not have these rows. ValueError: an id that is given twice, with its table."""
    where = CLAIM.call(backend, *storage, ids, table_ids)
    row_of_slot = storage[1][:, 1]
    again = (row_of_slot[where] != -1 - torch.arange(len(ids), device=ids.device)).nonzero()[:, 0]
    if len(again):
        raise ValueError(f"table {int(table_ids[again[0]])}: id {int(ids[again[0]])} is given twice")
    row_of_slot[where] = rows


def moved(storage: Storage, buckets: Sequence[int], anew: Collection[int], backend: str) -> Storage:
    """Other storage with the same ids: the tables `anew` with so many buckets, free of erased slots; the others copied,
    whose numbers of buckets must be the same."""
    result = empty(buckets, storage[3])
    for table in range(len(buckets)):
        target = _slots_of(result, table)
        if table in anew:
            known = items(storage, table)
            table_ids = torch.full_like(known[:, 0], table, dtype=torch.int32)
            fill(result, known[:, 0].contiguous(), table_ids, known[:, 1], backend)
        else:
            for new, old in zip(result[:2], storage[:2], strict=True):
                new[target] = old[_slots_of(storage, table)]
    return result


def items(storage: Storage, table: int) -> Tensor:
    """(id, row) of each id of a table, int64 [n, 2], as they lie in the storage."""
    these = _slots_of(storage, table)
    return storage[1][these][storage[0][these] >= FIRST_TAG]


def _slots_of(storage: Storage, table: int) -> slice:
    first, end = storage[2][table : table + 2].tolist()
    return slice(BUCKET_SLOTS * first, BUCKET_SLOTS * end)


def tables_of(storage: Storage, slots: Tensor) -> Tensor:
    """The table of each of these slots, int64."""
    return torch.searchsorted(storage[2], slots // BUCKET_SLOTS, right=True) - 1


def count(storage: Storage) -> tuple[Tensor, Tensor, Tensor]:
    """For each table, int64 [T]: the number of its ids; of its slots at which no search ends (those of ids, and erased
    ones); its greatest row, 0 without ids."""
    tags, slots, _, seeds = storage
    used = (tags != EMPTY).nonzero()[:, 0]
    known = used[tags[used] >= FIRST_TAG]
    filled, tables = tables_of(storage, used), tables_of(storage, known)
    last = torch.zeros_like(seeds).scatter_reduce_(0, tables, slots[known, 1], "amax")
    return tables.bincount(minlength=len(seeds)), filled.bincount(minlength=len(seeds)), last
