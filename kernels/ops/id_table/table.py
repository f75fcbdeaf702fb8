"""IdTable: exact maps from 64-bit ids to rows, many in one storage. What a look-up costs stands in table.cuh."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from numbers import Real

import numpy as np
import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from ...dispatch import checks
from ...dispatch.address import address
from ...dtypes import INTEGERS
from . import storage as stored
from .eager import BUCKET_SLOTS, EMPTY, FIRST_TAG
from .op import CLAIM, ERASE, table_lookup
from .vocabularies import read as vocabularies_of

MOST_BUCKETS = 2**31 - 1  # of a table: the hash's upper 32 bits choose one
MOST_ROW = 2**63 - 2  # the next one is an int64 too


class IdTable(nn.Module):
    """T tables from int64 ids of any value to rows from 1 on; row 0 is that of every id that a table does not have.

    Args:
        vocabularies: for each table the ids it begins with, int32 or int64 [n], all different: the k-th id has row k,
            from 1. Hashes of 64 bits that NumPy has as uint64 are ids by their bits: .view("int64").
        capacity: how many ids each table has room for before it must grow; default: its vocabulary.
        load_limit: the part of a table's slots that may be taken, at most 1. It grows when more would be. At 7/8 an id
            takes 19.4 bytes, and a search seldom leaves its first bucket; a full table's searches are long, but right.
        seeds: a number for each table, which its hash is made of; default: different ones.
        device: where the storage is made.
        backend: of `insert` and `erase`: as `table_lookup`'s.

    `insert` and `erase` wait for the GPU; a look-up does not, and can be captured in a CUDA graph, which sees what is
    inserted later. A table that grew or was loaded has other storage: capture anew. A graph that was captured through
    `forward` or `storage` goes on reading the storage that it knows, which the table keeps for it, and answers as the
    table was when it left that storage. (Whoever captures a compiled function keeps what `storage` gives.)

    An insertion, erasure or `load` that is broken off (by Ctrl-C, or for lack of memory) is done or undone, id by id,
    when the table is next changed; until then a look-up takes an id that has no row yet for one that is not there.
    Where a slot is found for an id hangs on the order in which a GPU's threads come; what look-ups return, and
    state_dict, do not.

    One thread may change a table at a time. All but `forward` and `storage` counts as a change, `sizes`, state_dict and
    repr too. Beside it other threads may look ids up, on any CUDA stream: storage that is replaced stays in memory
    until the streams that look-ups were called on are done with it (for a compiled function its caller keeps what
    `storage` gives). A look-up finds the table as it was before a `load` or as it is after it, and a new id with its
    row or not at all. An erased id may be given the row of the new id that takes its slot: keep look-ups that erased
    ids may be among apart from `insert`.

    Distributed training: each process has a table of its own. An id has the same row in all of them if all insert the
    same ids in the same order. DistributedDataParallel must leave the tables alone: `broadcast_buffers=False`, or
    `_set_params_and_buffers_to_ignore_for_model` with the names of their buffers. By default it writes rank 0's storage
    over that of the others at every forward, and their sizes and next rows stay what they were.

    A table takes its ids along wherever a model is moved. On the device meta, as within `torch.device("meta")`, it
    keeps them on the CPU, looks up shapes alone, and can load a state_dict, but not be changed otherwise.
    to_empty(device=…), or load_state_dict with assign=True, makes it a table like any other.

    state_dict has the ids and rows, not the storage: `ids` and `rows` int64 [n], by table and row; `offsets` [T + 1],
    where each table's begin; `next_rows` [T]. A table of any capacity loads it.
    """

    STATE = ("ids", "rows", "offsets", "next_rows")  # the names in `state`

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
        if not isinstance(load_limit, Real):
            raise TypeError(f"IdTable: load_limit must be a number; got {type(load_limit).__name__}")
        if not 0 < load_limit <= 1:
            raise ValueError(f"IdTable: load_limit must be above 0 and at most 1; got {load_limit}")
        ids = vocabularies_of(vocabularies)
        capacity = _number_a_table("capacity", capacity, len(ids))
        seeds = _number_a_table("seeds", seeds, len(ids))
        checks.are_not_negative("IdTable", **{f"capacity[{t}]": number for t, number in enumerate(capacity or ())})
        CLAIM.call.chosen(backend, torch.empty(0, device="cpu"))  # that there is such a one
        self.load_limit, self.backend = load_limit, backend
        device = checks.a_device("IdTable", "device", device)
        real = torch.tensor(
            seeds or [*range(1, len(ids) + 1)], dtype=torch.int64, device="cpu" if device.type == "meta" else device
        )
        # On the device meta: storage with values, on the CPU, for when the table is made real.
        self._aside: stored.Storage | None = (None, None, None, real) if device.type == "meta" else None
        self.register_buffer("seeds", real.to(device), persistent=False)
        for name in ("tags", "slots", "bucket_offsets"):
            self.register_buffer(name, None, persistent=False)
        self._changed = False  # whether a change has begun that has not ended
        self._captured: dict[int, tuple[Tensor, ...]] = {}  # storage that CUDA graphs know, by its address
        sizes = [len(v) for v in ids]
        # The numbers of each table: its buckets, its ids, its slots at which no search ends (of ids, and erased ones),
        # and the row that the next new id gets.
        self._buckets = [self._buckets_for(max(n, c)) for n, c in zip(sizes, capacity or sizes, strict=True)]
        self._sizes, self._filled, self._next_rows = [0] * len(ids), [0] * len(ids), [1] * len(ids)
        ids = [torch.empty(0, dtype=torch.int64, device=real.device), *ids]
        rows = [torch.arange(1, len(v) + 1, dtype=torch.int64, device=real.device) for v in ids]
        ids = torch.cat([v.to(real.device, torch.int64) for v in ids])
        self._become(ids, torch.cat(rows), sizes, [n + 1 for n in sizes])

    # ------------------------------------------------------------------------------------------------------- look-ups

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_captured": {}}  # a copy is known to no graph

    def storage(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(tags, slots, bucket_offsets, seeds), as `table_lookup` takes them."""
        buffers = self._buffers  # read once: another thread may have others take its place (see _install)
        tensors = buffers["tags"], buffers["slots"], buffers["bucket_offsets"], buffers["seeds"]
        if _is_captured(tensors[0]):
            self._captured[address(tensors[2])] = tensors  # which has an address where there are no slots, too
        elif tensors[0].is_cuda and not is_compiling():
            # Whoever replaces the storage frees it on a stream of its own, and what this one reads of it is not to be
            # handed out before this one has done so.
            stream = torch.cuda.current_stream(tensors[0].device)
            for tensor in tensors:
                tensor.record_stream(stream)
        return tensors

    def _values(self) -> stored.Storage:
        """The storage; of a table on the device meta the one that has values."""
        return self.storage() if self._aside is None else self._aside

    @property
    def _real_seeds(self) -> Tensor:
        return self.seeds if self._aside is None else self._aside[3]

    def _apply(self, fn, recurse: bool = True) -> IdTable:
        """A table takes its ids along wherever a model is moved: to_empty writes nothing, and meta has no values."""
        self._mend()
        before = self._values()
        super()._apply(fn, recurse)
        if self.seeds.is_meta:
            self._aside = tuple(tensor.to("cpu") for tensor in before)
            return self
        for name, then in zip(("tags", "slots", "bucket_offsets", "seeds"), before, strict=True):
            now = self._buffers[name]
            if now.dtype != then.dtype:  # Module.type(dtype): ids stay integers
                self._buffers[name] = then.to(now.device)
            elif now is not then:
                now.copy_(then)
        self._aside = None
        return self

    def forward(self, ids: Tensor, table_ids: Tensor | None = None, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
        """(found bool, rows int64), like ids: `table_lookup`.

        Without table_ids, ids are of the only table; of T tables they are [B, T], a column for each.
        """
        return table_lookup(*self.storage(), ids, self._tables_of(ids, table_ids), backend=backend)

    def _tables_of(self, ids: Tensor, table_ids: Tensor | None) -> Tensor:
        checks.has_dtype("IdTable", "ids", ids, INTEGERS)
        if table_ids is not None:
            checks.has_dtype("IdTable", "table_ids", table_ids, INTEGERS)
            return table_ids
        tables = self.num_tables
        if tables == 1:
            return torch.zeros_like(ids, dtype=torch.int32)
        if ids.dim() != 2 or ids.shape[1] != tables:
            raise ValueError(
                f"table_ids must be given for ids {list(ids.shape)}: there are {tables} tables, and without table_ids "
                f"ids are [B, {tables}], a column for each"
            )
        return torch.arange(tables, dtype=torch.int32, device=ids.device).expand(ids.shape)

    def _check_changed_by(self, ids: Tensor, table_ids: Tensor) -> None:
        if self.seeds.is_meta:
            raise RuntimeError("IdTable: on the device meta no ids come or go: to_empty(device=…) makes the table real")
        for name, tensor in (("ids", ids), ("table_ids", table_ids)):
            if tensor.device != self.seeds.device:
                raise ValueError(
                    f"IdTable: {name} must be on the table's device, {self.seeds.device}; got {tensor.device}"
                )

    # --------------------------------------------------------------------------------------------- insertion, erasure

    @torch.no_grad()
    def insert(self, ids: Tensor, table_ids: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """Insert ids [n], int32 or int64, and return the rows that they have then, int64 [n].

        An id that its table has keeps its row. A new one gets that of `rows` (int64 [n], each above 0), or without them
        its table's next one, which no id had before, in the order of `ids`. If an id is given several times, the
        first counts.

        Raises:
            ValueError: ids that are not [n], a table that is not there, a row that is not from 1 to 2^63 - 2, given or
                next. TypeError: what is no tensor. The table is then as it was.
        """
        table_ids = self._tables_of(ids, table_ids)
        self._check_changed_by(ids, table_ids)
        if ids.dim() != 1 or table_ids.shape != ids.shape:
            raise ValueError(f"ids and table_ids must be [n]; got {list(ids.shape)} and {list(table_ids.shape)}")
        if not len(ids):
            return torch.zeros_like(ids, dtype=torch.int64)
        _within("table_ids", table_ids, 0, self.num_tables - 1)
        if rows is not None:
            if (rows := _integers("rows", rows)).shape != ids.shape:
                raise ValueError(f"rows must be [{len(ids)}], like ids; got {list(rows.shape)}")
            _within("rows", rows, 1, MOST_ROW)  # row 0 is that of ids that are not there
            rows = rows.to(ids.device)
        self._mend()
        self._make_room(ids, table_ids, numbered=rows is None)
        with self._changing():
            where = CLAIM.call(self.backend, *self.storage(), ids, table_ids)
            position = torch.arange(len(ids), device=ids.device)
            new = (self.slots[where, 1] == -1 - position).nonzero()[:, 0]
            tables = table_ids[new].long()
            counts = torch.bincount(tables, minlength=self.num_tables)
            numbers = self._numbers(tables, counts) if rows is None else rows[new]
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
        table_ids = self._tables_of(ids, table_ids)
        self._check_changed_by(ids, table_ids)
        with self._changing():
            where = ERASE.call(self.backend, *self.storage(), ids, table_ids)
            gone = where[where >= 0].unique()
            tables = stored.tables_of(self.storage(), gone)
            freed = tables[self.tags[gone] == EMPTY]
            for numbers, minus in ((self._sizes, tables), (self._filled, freed)):
                for table, count in enumerate(minus.bincount(minlength=self.num_tables).tolist()):
                    numbers[table] -= count
            return where >= 0

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What is done in here and does not end is mended by the next change, or whoever looks at the whole table."""
        self._mend()
        self._changed = True
        yield
        self._changed = False

    @torch.no_grad()
    def _mend(self) -> None:
        """After a change that was broken off: erase the ids that have no row, and count anew what there is."""
        if not self._changed:
            return
        left = ((self.tags >= FIRST_TAG) & (self.slots[:, 1] < 1)).nonzero()[:, 0]
        ERASE.call(self.backend, *self.storage(), self.slots[left, 0], stored.tables_of(self.storage(), left))
        sizes, filled, last = (numbers.tolist() for numbers in stored.count(self.storage()))
        next_rows = [max(had, row + 1) for had, row in zip(self._next_rows, last, strict=True)]
        self._sizes, self._filled, self._next_rows, self._changed = sizes, filled, next_rows, False

    # --------------------------------------------------------------------------------------------------- the storage

    @property
    def num_tables(self) -> int:
        """T."""
        return len(self._sizes)

    @property
    def sizes(self) -> list[int]:
        """The number of ids of each table."""
        self._mend()
        return list(self._sizes)

    @property
    def slots_of_tables(self) -> list[int]:
        """The number of slots of each table."""
        return [BUCKET_SLOTS * count for count in self._buckets]

    @property
    def load_factor(self) -> float:
        """The part of all slots that ids take."""
        return sum(self.sizes) / max(1, len(self.tags))

    @property
    def bytes(self) -> int:
        """The size of the storage."""
        return sum(tensor.nbytes for tensor in self.storage())

    def items(self, table: int) -> tuple[Tensor, Tensor]:
        """(ids, rows) of a table, int64 [n], by ascending row."""
        self._mend()
        table = checks.integer("IdTable", "table", table)
        if not 0 <= table < self.num_tables:
            raise ValueError(f"IdTable: table must be from 0 to {self.num_tables - 1}; got {table}")
        pairs = stored.items(self._values(), table)
        order = torch.argsort(pairs[:, 1], stable=True)
        return pairs[order, 0], pairs[order, 1]

    def _buckets_for(self, ids: int) -> int:
        buckets = math.ceil(ids / (self.load_limit * BUCKET_SLOTS))
        if buckets > MOST_BUCKETS:
            raise ValueError(f"a table holds up to {MOST_BUCKETS * BUCKET_SLOTS} slots; {ids} ids need more")
        return buckets

    def _install(self, storage: stored.Storage, **attributes: object) -> None:
        """Let the table have other storage, which is complete, and what goes with it."""
        names, buckets = ("tags", "slots", "bucket_offsets"), storage[2].diff().tolist()
        if self.seeds.is_meta:
            attributes["_aside"], storage = storage, tuple(tensor.to("meta") for tensor in storage)
        buffers = self._buffers | dict(zip(names, storage, strict=False))
        # One call, within which no signal is handled: the tags of one storage never lie beside the slots of another.
        self.__dict__.update(attributes, _buffers=buffers, _buckets=buckets)

    def _make_room(self, ids: Tensor, table_ids: Tensor, numbered: bool) -> None:
        """Grow the tables that would be filled beyond the limit. ValueError: new ids are to be numbered, and a table
        has fewer rows left."""

        def crowded(counts: list[int]) -> list[int]:
            return [
                table
                for table, count in enumerate(counts)
                if count and self._buckets_for(self._filled[table] + count) > self._buckets[table]
            ]

        def without_rows(counts: list[int]) -> list[int]:
            last = [row + count - 1 for row, count in zip(self._next_rows, counts, strict=True)]
            return [table for table, row in enumerate(last) if numbered and counts[table] and row > MOST_ROW]

        counts = torch.bincount(table_ids.long(), minlength=self.num_tables).tolist()
        if not crowded(counts) and not without_rows(counts):
            return
        found, _ = table_lookup(*self.storage(), ids, table_ids, backend=self.backend)
        new = torch.stack([table_ids[~found].long(), ids[~found].long()]).unique(dim=1)[0]
        counts = torch.bincount(new, minlength=self.num_tables).tolist()
        if ended := without_rows(counts):
            table, row = ended[0], self._next_rows[ended[0]]
            raise ValueError(
                f"table {table}: its next row is {row}, and rows go up to {MOST_ROW}; {counts[table]} new ids have no "
                "room"
            )
        if tables := crowded(counts):
            self._grow(tables, counts)

    def _grow(self, tables: list[int], counts: list[int]) -> None:
        """Make these tables anew, without what was erased and with room for `counts` more ids; the others are copied.

        A table gets twice its slots, unless what was erased was a quarter of what it may hold.
        """
        buckets = list(self._buckets)
        for table in tables:
            wanted = self._buckets_for(self._sizes[table] + counts[table])
            few = self._buckets_for(4 * (self._sizes[table] + counts[table]) // 3) <= buckets[table]
            twice = min(2 * buckets[table], MOST_BUCKETS)
            buckets[table] = max(wanted, buckets[table] if few or not self._sizes[table] else twice)
        storage = stored.moved(self.storage(), buckets, tables, self.backend)
        filled = [self._sizes[t] if t in tables else self._filled[t] for t in range(self.num_tables)]
        self._install(storage, _filled=filled)

    # ---------------------------------------------------------------------------------------------------- checkpoints

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, tensor in self.state().items():
            destination[prefix + name] = tensor

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        entries = {name: state_dict.get(prefix + name) for name in self.STATE}
        missing += [prefix + name for name, tensor in entries.items() if tensor is None]
        unexpected += [
            name for name in state_dict if strict and name.startswith(prefix)
            and name.removeprefix(prefix) not in entries and "." not in name.removeprefix(prefix)
        ]
        if any(tensor is None for tensor in entries.values()):
            return
        try:
            self.load(**entries)
        except (TypeError, ValueError) as error:
            errors.append(f"{prefix.removesuffix('.') or 'the table'}: {error}")
            return
        if self.seeds.is_meta and metadata.get("assign_to_params_buffers", False):
            self._apply(lambda tensor: torch.empty_like(tensor, device=entries["ids"].device))

    def state(self) -> dict[str, Tensor]:
        """What state_dict says of this table; of one on the device meta it is on the CPU."""
        device = self._real_seeds.device
        items = [self.items(table) for table in range(self.num_tables)]
        empty = torch.empty(0, dtype=torch.int64, device=device)
        return {
            "ids": torch.cat([empty, *(ids for ids, _ in items)]),
            "rows": torch.cat([empty, *(rows for _, rows in items)]),
            "offsets": stored.starts(self._sizes).to(device),
            "next_rows": torch.tensor(self._next_rows, dtype=torch.int64, device=device),
        }

    def load(self, ids: Tensor, rows: Tensor, offsets: Tensor, next_rows: Tensor) -> None:
        """Become the table whose `state` this is; as many slots as before, where they are enough, in new storage.

        Raises:
            ValueError: another number of tables, or what is no state: an id that its table has twice, a row that is not
                from 1 to its table's next row - 1, with table, id and row. The table is then as it was.
        """
        for name, tensor in (("ids", ids), ("rows", rows), ("offsets", offsets), ("next_rows", next_rows)):
            if _integers(name, tensor).is_meta:
                raise ValueError(f"{name} must have values; got a tensor on the device meta")
        count = self.num_tables
        if offsets.shape != (count + 1,) or next_rows.shape != (count,):
            shapes = f"offsets {list(offsets.shape)}, next_rows {list(next_rows.shape)}"
            raise ValueError(f"expected {count} tables; got {shapes}")
        starts, next_rows = offsets.tolist(), next_rows.tolist()
        sizes = [end - start for start, end in pairwise(starts)]
        rises = starts[0] == 0 and min([0, *sizes]) == 0 and starts[-1] == len(ids)
        if ids.dim() != 1 or ids.shape != rows.shape or not rises:
            raise ValueError(f"offsets must rise from 0 to the number of ids and rows, {len(ids)} and {len(rows)}")
        if low := [table for table, row in enumerate(next_rows) if row < 1]:
            raise ValueError(f"table {low[0]}: its next row must be above 0; got {next_rows[low[0]]}")
        ids, rows = (tensor.to(self._real_seeds.device, torch.int64) for tensor in (ids, rows))
        self._become(ids, rows, sizes, next_rows)

    @torch.no_grad()
    def _become(self, ids: Tensor, rows: Tensor, sizes: list[int], next_rows: list[int]) -> None:
        """Have these ids and no others, the first sizes[0] in the first table, and so on."""
        seeds = self._real_seeds
        device, backend = seeds.device, self.backend if self._aside is None else "auto"
        tables = torch.arange(len(sizes), dtype=torch.int32, device=device)
        tables = tables.repeat_interleave(torch.tensor(sizes, dtype=torch.int64, device=device), output_size=len(ids))
        wrong = (rows < 1) | (rows >= torch.tensor(next_rows, dtype=torch.int64, device=device)[tables])
        if len(wrong := wrong.nonzero()[:, 0]):
            table, number, row = (int(tensor[wrong[0]]) for tensor in (tables, ids, rows))
            raise ValueError(
                f"table {table}: id {number} has row {row}, which must be from 1 to {next_rows[table] - 1}, below the "
                "table's next row"
            )
        buckets = [max(had, self._buckets_for(n)) for had, n in zip(self._buckets, sizes, strict=True)]
        storage = stored.empty(buckets, seeds)
        stored.fill(storage, ids, tables, rows, backend)
        self._install(storage, _sizes=sizes, _filled=list(sizes), _next_rows=next_rows, _changed=False)

    def extra_repr(self) -> str:
        ids, size = sum(self.sizes), 1e-6 * self.bytes
        return f"{self.num_tables} tables, {ids} ids, load {self.load_factor:.2f}, {size:.4g} MB"


def _is_captured(tensor: Tensor) -> bool:
    """Whether what is done with the tensor now becomes part of a CUDA graph."""
    return tensor.is_cuda and not is_compiling() and torch.cuda.is_current_stream_capturing()


def _number_a_table(name: str, values: object, tables: int) -> list[int] | None:
    numbers = None if values is None else checks.integers("IdTable", name, values)
    if numbers is not None and len(numbers) != tables:
        raise ValueError(f"IdTable: {name} must have a number for each of {tables} tables; got {len(numbers)}")
    return numbers


def _within(name: str, tensor: Tensor, low: int, high: int) -> None:
    least, most = (int(edge) for edge in torch.aminmax(tensor))
    if least < low or most > high:
        raise ValueError(f"{name} must be from {low} to {high}; got {least if least < low else most}")


def _integers(name: str, tensor: Tensor) -> Tensor:
    """The tensor as int64, if it is one of integers."""
    checks.is_tensor("IdTable", name, tensor)
    if tensor.dtype not in INTEGERS:
        raise ValueError(f"{name} must be int32 or int64; got {checks.plain(tensor.dtype)}")
    return tensor.long()
