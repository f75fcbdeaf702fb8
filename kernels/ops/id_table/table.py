"""IdTable: exact maps from 64-bit ids to rows, many in one storage. What a look-up costs stands in table.cuh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from kernels.ops.id_table.eager import BUCKET_SLOTS, EMPTY, FIRST_TAG
from kernels.ops.id_table.op import CLAIM, ERASE, table_lookup

MOST_BUCKETS = 2**31 - 1  # of a table: the hash's upper 32 bits choose one


class IdTable(nn.Module):
    """T tables from int64 ids of any value to rows from 1 on; row 0 is that of every id that a table does not have.

    Args:
        vocabularies: for each table the ids it begins with, int64 [n], all different: the k-th id has row k, from 1.
        capacity: how many ids each table has room for before it must grow; default: its vocabulary.
        load_limit: the part of a table's slots that may be taken, at most 1. It grows when more would be. At 7/8 an id
            takes 19.4 bytes, and a search seldom leaves its first bucket; a full table's searches are long, but right.
        seeds: a number for each table, which its hash is made of; default: different ones.
        device: where the storage is made.
        backend: of `insert` and `erase`: as `table_lookup`'s.

    `insert` and `erase` wait for the GPU; a look-up does not, and can be captured in a CUDA graph, which sees what is
    inserted later. A table that grew or was loaded has other storage: capture anew. Where a slot is found for an id
    hangs on the order in which a GPU's threads come; what look-ups return, and state_dict, do not.

    state_dict has the ids and rows, not the storage: `ids` and `rows` int64 [n], by table and row; `offsets` [T + 1],
    where each table's begin; `next_rows` [T]. A table of any capacity loads it.
    """

    tags: Tensor
    slots: Tensor
    bucket_offsets: Tensor
    seeds: Tensor

    def __init__(
        self,
        vocabularies: Sequence[Sequence[int] | np.ndarray | Tensor],
        *,
        capacity: Sequence[int] | None = None,
        load_limit: float = 0.875,
        seeds: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if not 0 < load_limit <= 1:
            raise ValueError(f"load_limit must be above 0 and at most 1; got {load_limit}")
        ids = [torch.as_tensor(np.asarray(v) if not isinstance(v, Tensor) else v) for v in vocabularies]
        for name, given in (("capacity", capacity), ("seeds", seeds)):
            if given is not None and len(given) != len(ids):
                raise ValueError(f"{name} must have a number for each of {len(ids)} tables; got {len(given)}")
        self.load_limit, self.backend = load_limit, backend
        wanted = [max(len(v), c) for v, c in zip(ids, capacity or [0] * len(ids), strict=True)]
        seeds = range(1, len(ids) + 1) if seeds is None else seeds
        self._sizes = [0] * len(ids)  # ids of each table
        self._filled = [0] * len(ids)  # its slots at which no search ends: those of its ids, and erased ones
        self._next_rows = [1] * len(ids)
        self.register_buffer("seeds", torch.tensor([*seeds], dtype=torch.int64, device=device), persistent=False)
        for name in ("tags", "slots", "bucket_offsets"):
            self.register_buffer(name, torch.empty(0, device=device), persistent=False)
        self._make([self._buckets_for(n) for n in wanted])
        for table, vocabulary in enumerate(ids):
            if vocabulary.dim() != 1 or (vocabulary.dtype not in (torch.int64, torch.int32) and len(vocabulary)):
                raise ValueError(
                    f"vocabulary {table} must be int64 [n]; got {vocabulary.dtype}, shape {list(vocabulary.shape)}"
                )
            vocabulary = vocabulary.to(self.seeds.device, torch.int64)
            self.insert(vocabulary, torch.full_like(vocabulary, table, dtype=torch.int32))
            if self._sizes[table] != len(vocabulary):
                raise ValueError(
                    f"vocabulary {table}: {len(vocabulary)} ids, of which only {self._sizes[table]} are different"
                )

    # ------------------------------------------------------------------------------------------------------- look-ups

    def storage(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(tags, slots, bucket_offsets, seeds), as `table_lookup` takes them."""
        return self.tags, self.slots, self.bucket_offsets, self.seeds

    def forward(self, ids: Tensor, table_ids: Tensor | None = None, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
        """(found bool, rows int64), like ids: `table_lookup`. Without table_ids there must be one table."""
        return table_lookup(*self.storage(), ids, self._tables_of(ids, table_ids), backend=backend)

    def _tables_of(self, ids: Tensor, table_ids: Tensor | None) -> Tensor:
        if table_ids is not None:
            return table_ids
        if self.num_tables != 1:
            raise ValueError(f"table_ids must be given: there are {self.num_tables} tables")
        return torch.zeros_like(ids, dtype=torch.int32)

    # --------------------------------------------------------------------------------------------- insertion, erasure

    @torch.no_grad()
    def insert(self, ids: Tensor, table_ids: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """Insert ids [n], int32 or int64, and return the rows that they have then, int64 [n].

        An id that its table has keeps its row. A new one gets that of `rows` (int64 [n], each above 0), or without them
        its table's next one, which no id had before, in the order of `ids`. Of an id that is given several times the
        first counts.

        Raises:
            ValueError: ids that are not [n], a table that is not there, a row below 1.
        """
        table_ids = self._tables_of(ids, table_ids)
        if ids.dim() != 1 or table_ids.shape != ids.shape:
            raise ValueError(f"ids and table_ids must be [n]; got {list(ids.shape)} and {list(table_ids.shape)}")
        if rows is not None and (rows.shape != ids.shape or (len(rows) and int(rows.min()) < 1)):
            raise ValueError("rows must be like ids, and above 0: row 0 is that of ids that are not there")
        if not len(ids):
            return torch.zeros_like(ids, dtype=torch.int64)
        low, high = (int(edge) for edge in torch.aminmax(table_ids))
        if low < 0 or high >= self.num_tables:
            raise ValueError(f"table_ids must be from 0 to {self.num_tables - 1}; got {low if low < 0 else high}")
        self._make_room(ids, table_ids)
        where = CLAIM.call(self.backend, *self.storage(), ids, table_ids)
        position = torch.arange(len(ids), device=ids.device)
        new = (self.slots[where, 1] == -1 - position).nonzero()[:, 0]
        tables = table_ids[new].long()
        counts = torch.bincount(tables, minlength=self.num_tables)
        numbers = self._numbers(tables, counts) if rows is None else rows[new].to(torch.int64)
        self.slots[where[new], 1] = numbers
        most = torch.zeros_like(counts).scatter_reduce_(0, tables, numbers, "amax").tolist()
        for table, count in enumerate(counts.tolist()):
            self._sizes[table] += count
            self._filled[table] += count
            self._next_rows[table] = max(self._next_rows[table], most[table] + 1)
        return self.slots[where, 1]

    def _numbers(self, tables: Tensor, counts: Tensor) -> Tensor:
        """For each new id its table's next row, in order."""
        order = torch.argsort(tables, stable=True)
        first = counts.cumsum(0) - counts
        rank = torch.empty_like(tables)
        rank[order] = torch.arange(len(tables), device=tables.device) - first[tables[order]]
        return rank + torch.tensor(self._next_rows, device=tables.device)[tables]

    @torch.no_grad()
    def erase(self, ids: Tensor, table_ids: Tensor | None = None) -> Tensor:
        """Erase ids [n]; returns which of them were there, bool [n]. Their rows are not given to other ids."""
        where = ERASE.call(self.backend, *self.storage(), ids, self._tables_of(ids, table_ids))
        gone = where[where >= 0].unique()
        tables = self._tables_of_slots(gone)
        counts, free = (
            torch.bincount(t, minlength=self.num_tables).tolist() for t in (tables, tables[self.tags[gone] == EMPTY])
        )
        for table in range(self.num_tables):
            self._sizes[table] -= counts[table]
            self._filled[table] -= free[table]
        return where >= 0

    # --------------------------------------------------------------------------------------------------- the storage

    @property
    def num_tables(self) -> int:
        """T."""
        return len(self._sizes)

    @property
    def sizes(self) -> list[int]:
        """The number of ids of each table."""
        return list(self._sizes)

    @property
    def slots_of_tables(self) -> list[int]:
        """The number of slots of each table."""
        return [BUCKET_SLOTS * count for count in self._buckets]

    @property
    def load_factor(self) -> float:
        """The part of all slots that ids take."""
        return sum(self._sizes) / max(1, len(self.tags))

    @property
    def bytes(self) -> int:
        """Of the storage."""
        return sum(tensor.nbytes for tensor in self.storage())

    def items(self, table: int) -> tuple[Tensor, Tensor]:
        """(ids, rows) of a table, int64 [n], by ascending row."""
        first = BUCKET_SLOTS * sum(self._buckets[:table])
        these = slice(first, first + BUCKET_SLOTS * self._buckets[table])
        found = self.slots[these][self.tags[these] >= FIRST_TAG]
        order = torch.argsort(found[:, 1], stable=True)
        return found[order, 0], found[order, 1]

    def _tables_of_slots(self, slots: Tensor) -> Tensor:
        return torch.searchsorted(self.bucket_offsets, slots // BUCKET_SLOTS, right=True) - 1

    def _buckets_for(self, ids: int) -> int:
        buckets = math.ceil(ids / (self.load_limit * BUCKET_SLOTS))
        if buckets > MOST_BUCKETS:
            raise ValueError(f"a table holds up to {MOST_BUCKETS * BUCKET_SLOTS} slots; {ids} ids need more")
        return buckets

    def _make(self, buckets: list[int]) -> None:
        """Empty storage with so many buckets for each table."""
        device, offsets = self.seeds.device, _offsets(buckets)
        slots = torch.zeros((BUCKET_SLOTS * int(offsets[-1]), 2), dtype=torch.int64, device=device)
        self.tags = torch.zeros(len(slots), dtype=torch.uint8, device=device)
        self.bucket_offsets, self.slots, self._buckets = offsets.to(device), slots, buckets

    def _make_room(self, ids: Tensor, table_ids: Tensor) -> None:
        """Grow the tables that would be filled beyond the limit."""

        def crowded(counts: list[int]) -> list[int]:
            return [
                table
                for table, count in enumerate(counts)
                if count and self._buckets_for(self._filled[table] + count) > self._buckets[table]
            ]

        counts = torch.bincount(table_ids.long(), minlength=self.num_tables).tolist()
        if not crowded(counts):
            return
        found, _ = self(ids, table_ids, backend=self.backend)
        new = torch.stack([table_ids[~found].long(), ids[~found].long()]).unique(dim=1)[0]
        counts = torch.bincount(new, minlength=self.num_tables).tolist()
        tables = crowded(counts)
        if tables:
            self._grow(tables, counts)

    def _grow(self, tables: list[int], counts: list[int]) -> None:
        """Make these tables anew, without what was erased and with room for `counts` more ids; the others are copied.

        A table gets twice its slots, unless what was erased was a quarter of what it may hold.
        """
        buckets = list(self._buckets)
        for table in tables:
            wanted = self._buckets_for(self._sizes[table] + counts[table])
            few = self._buckets_for(4 * (self._sizes[table] + counts[table]) // 3) <= buckets[table]
            buckets[table] = max(wanted, buckets[table] if few or not self._sizes[table] else 2 * buckets[table])
        known = [(table, *self.items(table)) for table in tables]
        before, old_tags, old_slots = self._buckets, self.tags, self.slots
        self._make(buckets)
        source = target = 0
        for table in range(self.num_tables):
            size = BUCKET_SLOTS * before[table]
            if table not in tables:
                self.tags[target : target + size] = old_tags[source : source + size]
                self.slots[target : target + size] = old_slots[source : source + size]
            source, target = source + size, target + BUCKET_SLOTS * buckets[table]
        for table, ids, rows in known:
            table_ids = torch.full_like(ids, table, dtype=torch.int32)
            where = CLAIM.call(self.backend, *self.storage(), ids, table_ids)
            self.slots[where, 1] = rows
            self._filled[table] = len(ids)

    # ---------------------------------------------------------------------------------------------------- checkpoints

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, tensor in self.state().items():
            destination[prefix + name] = tensor

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        given = {name: state_dict.get(prefix + name) for name in self.state()}
        missing += [prefix + name for name, tensor in given.items() if tensor is None]
        unexpected += [
            name for name in state_dict if strict and name.startswith(prefix)
            and name.removeprefix(prefix) not in given and "." not in name.removeprefix(prefix)
        ]  # fmt: skip
        if any(tensor is None for tensor in given.values()):
            return
        try:
            self.load(**given)
        except ValueError as error:
            errors.append(f"{prefix.removesuffix('.') or 'the table'}: {error}")

    def state(self) -> dict[str, Tensor]:
        """What state_dict says of this table."""
        device = self.seeds.device
        items = [self.items(table) for table in range(self.num_tables)]
        empty = torch.empty(0, dtype=torch.int64, device=device)
        return {
            "ids": torch.cat([empty, *(ids for ids, _ in items)]),
            "rows": torch.cat([empty, *(rows for _, rows in items)]),
            "offsets": _offsets(self._sizes).to(device),
            "next_rows": torch.tensor(self._next_rows, dtype=torch.int64, device=device),
        }

    def load(self, ids: Tensor, rows: Tensor, offsets: Tensor, next_rows: Tensor) -> None:
        """Become the table whose `state` this is; as many slots as before, where they are enough, in new storage.

        Raises:
            ValueError: another number of tables, or what is no state; the table is then as it was.
        """
        count = self.num_tables
        starts = offsets.tolist()
        if offsets.shape != (count + 1,) or next_rows.shape != (count,):
            shapes = f"offsets {list(offsets.shape)}, next_rows {list(next_rows.shape)}"
            raise ValueError(f"expected {count} tables; got {shapes}")
        sizes = [end - start for start, end in pairwise(starts)]
        rises = starts[0] == 0 and min([0, *sizes]) == 0 and starts[-1] == len(ids)
        if ids.dim() != 1 or ids.shape != rows.shape or not rises:
            raise ValueError(f"offsets must rise from 0 to the number of ids and rows, {len(ids)} and {len(rows)}")
        if len(rows) and int(rows.min()) < 1:
            raise ValueError(f"rows must be above 0; got {int(rows.min())}")
        self._make([max(had, self._buckets_for(n)) for had, n in zip(self._buckets, sizes, strict=True)])
        self._sizes, self._filled = [0] * count, [0] * count
        ids, rows = (tensor.to(self.seeds.device, torch.int64) for tensor in (ids, rows))
        for table, (start, end) in enumerate(pairwise(starts)):
            these = ids[start:end]
            self.insert(these, torch.full_like(these, table, dtype=torch.int32), rows[start:end])
        self._next_rows = next_rows.tolist()

    def extra_repr(self) -> str:
        ids, size = sum(self._sizes), 1e-6 * self.bytes
        return f"{self.num_tables} tables, {ids} ids, load {self.load_factor:.2f}, {size:.4g} MB"


def _offsets(counts: Sequence[int]) -> Tensor:
    """int64 [T + 1]: 0, and the sums of the counts so far."""
    return torch.from_numpy(np.cumsum([0, *counts], dtype=np.int64))
