"""Click logs as Parquet, Criteo's and those of another schema, as batches for training.

One row is one displayed ad. Criteo's columns, of the Kaggle Display Advertising Challenge (2014) and the Terabyte logs:
a click label, 13 counts (`I1..I13`, here `DENSE_0..12`) and 26 hashed categories (`C1..C26`, here `SPARSE_0..25`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import IterableDataset, get_worker_info

from data.ahead import one_ahead
from data.cli import UserError
from data.files import parquet_files
from data.formats import HEAD, other_format
from data.rows import Held, empty_arrays, fill_arrays, joined, lists_of, take, tensors
from data.schema import COLUMNS, CRITEO, DENSE, IDS, LABEL, MISSING, SCHEMA, SPARSE, SPLITS, Schema

__all__ = ["COLUMNS", "CRITEO", "DENSE", "IDS", "LABEL", "MISSING", "SCHEMA", "SPARSE", "SPLITS", "CriteoBatches"]

# Rows decoded at a time. 16,384 rows of 26 ids are 3.4 MB: the row-major copy stays in cache.
_DECODE_ROWS = 1 << 14
_MAPPED_BYTES = 1 << 26


@dataclass(frozen=True)
class _RowGroup:
    file: int
    index: int
    first: int  # of this row group's rows, counted over all files
    rows: int


class CriteoBatches(IterableDataset):
    """Batches streamed from Parquet: `(labels f32 [B], dense f32 [B, 13], sparse i64 [B, 26])`.

    schema: of the columns; Criteo's 13 counts and 26 categories if it is not given. If it has lists, a batch is
        `(labels, dense, ids i64 [N], offsets i64 [F B + 1])`: see data.rows.tensors.
    path: a Parquet file, or a directory of them, read in the order of the numbers in their names (data.files).
    batch_size: rows a batch; the last of a shard holds the rest, or is left out with `drop_last`.
    shuffle: row groups in a random order, then rows at random within a window of `window` rows. The order depends on
        (seed, epoch, shard) alone; `set_epoch` chooses the epoch.
    rank, world_size: this process reads the rank-th of world_size disjoint, equal (±1 row) shards. A DataLoader's
        workers divide the shard further, so each row comes exactly once whatever num_workers is.
    window: rows held to shuffle within; memory is bounded by two windows of about 270 bytes a row.
    transform: apply log(1 + max(x, 0)) to the dense values.
    fill: what a missing dense value becomes, before the transform.
    labelled: False reads no label column, so that there need not be one; the labels are NaN.

    Use it alone or as `DataLoader(batches, batch_size=None)`. The next window is read in a thread while this one is
    used. Extra columns are ignored; dense and label columns may be of any numeric type, sparse of any integer type.

    Raises UserError, naming file and column: no Parquet file, a missing column, a wrong type, a label that is neither
    0 nor 1, an id outside [-1, 2^32), a dense value that is infinite. NaN is a missing one, as pandas writes it.
    """

    def __init__(
        self,
        path: str | Path,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        window: int = 1 << 18,
        drop_last: bool = False,
        transform: bool = True,
        fill: float = 0.0,
        labelled: bool = True,
        schema: Schema = CRITEO,
    ):
        super().__init__()
        for name, value in (("batch_size", batch_size), ("window", window), ("world_size", world_size)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank: expected 0 ≤ rank < world_size = {world_size}, got {rank}")
        if seed < 0:
            raise ValueError(f"seed: expected at least 0, got {seed}")
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.rank, self.world_size, self.window = rank, world_size, window
        self.drop_last, self.transform, self.fill = drop_last, transform, fill
        self.schema = schema
        self.columns = (*((LABEL,) if labelled else ()), *schema.dense, *schema.sparse)
        # In shared memory, so that set_epoch also reaches a DataLoader's persistent workers.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

        self.files = parquet_files(Path(path))
        self._footers = [_checked_footer(file, self.columns, schema) for file in self.files]
        self._row_groups, total = [], 0
        for file, footer in enumerate(self._footers):
            for index in range(footer.num_row_groups):
                rows = footer.row_group(index).num_rows
                self._row_groups.append(_RowGroup(file, index, total, rows))
                total += rows
        self._total = total

    @property
    def num_rows(self) -> int:
        """Rows of this rank's shard."""
        start, stop = self._shard(1, 0)
        return stop - start

    @property
    def num_batches(self) -> int:
        """Batches of this rank's shard when it is read by one worker."""
        return self.num_rows // self.batch_size if self.drop_last else -(-self.num_rows // self.batch_size)

    def digest(self) -> str:
        """A hash of the files' footers, which say how many rows there are, how many bytes each column takes and what
        range its values have: other rows, or the same ones in another order, hardly ever agree in all of that. The rows
        are not read."""
        digest = hashlib.sha256()
        for file in self.files:
            with file.open("rb") as content:
                content.seek(-8, os.SEEK_END)
                content.seek(-8 - int.from_bytes(content.read(4), "little"), os.SEEK_END)
                digest.update(content.read())
        return digest.hexdigest()

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass: a function of (seed, epoch)."""
        if epoch < 0:
            raise ValueError(f"epoch: expected at least 0, got {epoch}")
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return self.batches_from(0)

    def batches_from(self, batch: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """What iterating gives from this batch on, counted from 0. Row groups that only earlier batches need are not
        read."""
        worker = get_worker_info()
        workers, worker_id = (worker.num_workers, worker.id) if worker else (1, 0)
        start, stop = self._shard(workers, worker_id)
        if batch and batch * self.batch_size >= stop - start:
            return
        random = np.random.default_rng((self.seed, int(self._epoch), start, stop)) if self.shuffle else None
        groups = [g for g in self._row_groups if g.first < stop and g.first + g.rows > start]
        if random:
            groups = [groups[i] for i in random.permutation(len(groups))]
        # Without shuffling nothing is gained by a window larger than a few decoded pieces.
        window_rows = min(self.window if random else 4 * _DECODE_ROWS, self.window, stop - start)
        # The batch begins `first` rows into a window; those before it are whole, and their order was drawn too.
        windows, first = divmod(batch * self.batch_size, max(window_rows, 1))
        for _ in range(windows if random else 0):
            random.permutation(window_rows)

        rest = None
        for window in one_ahead(self._windows(groups, start, stop, window_rows, windows * window_rows)):
            rows = len(window[0])
            order = random.permutation(rows) if random else np.arange(rows)
            if rest is not None:  # complete the batch that the last window began
                first = min(self.batch_size - len(rest[0]), rows)
                rest = joined(rest, take(window, order[:first]))
                if len(rest[0]) == self.batch_size:
                    yield tensors(rest, self.schema)
                    rest = None
            whole = rows - (rows - first) % self.batch_size
            for i in range(first, whole, self.batch_size):
                yield tensors(take(window, order[i : i + self.batch_size]), self.schema)
            if whole < rows:
                rest = take(window, order[whole:])
            first = 0
        if rest is not None and not self.drop_last:
            yield tensors(rest, self.schema)

    def _shard(self, workers: int, worker: int) -> tuple[int, int]:
        shards, shard = self.world_size * workers, self.rank * workers + worker
        return self._total * shard // shards, self._total * (shard + 1) // shards

    def _windows(
        self, groups: list[_RowGroup], start: int, stop: int, rows: int, skipped: int
    ) -> Iterator[Held]:
        """Those of the row groups' rows that are within start to stop, but for the first ones, `rows` at a time.

        Two sets of arrays take turns, for fresh memory costs more than decoding: once the next window is given, the one
        before it is written over.
        """
        buffers = [empty_arrays(rows, self.schema) for _ in range(2)]
        lists: list[pa.Table] = []
        # Decoding and filling overlap too: each takes about as long as the other.
        parts = (
            (group, *part)
            for group, begin in _after(groups, start, stop, skipped) for part in self._decode(group, begin, stop)
        )
        filled = 0
        for group, first, part in one_ahead(parts):
            offset = 0
            while offset < part.num_rows:
                n = min(part.num_rows - offset, rows - filled)
                piece = tuple(array[filled : filled + n] for array in buffers[0])
                rows_read = part.slice(offset, n)
                fill_arrays(piece, rows_read, self.schema, self.transform, self.fill)
                if self.schema.lists:
                    lists.append(lists_of(rows_read, self.schema))
                self._check(rows_read, piece, lists[-1:], group, first + offset)
                filled, offset = filled + n, offset + n
                if filled == rows:
                    yield *buffers[0], pa.concat_tables(lists).combine_chunks() if lists else None
                    buffers.reverse()
                    filled, lists = 0, []
        if filled:
            held = pa.concat_tables(lists).combine_chunks() if lists else None
            yield *(array[:filled] for array in buffers[0]), held

    def _decode(self, group: _RowGroup, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(index of the first row over all files, rows) for the row group's rows within start to stop."""
        path, footer, first = self.files[group.file], self._footers[group.file], group.first
        # Mapped pages are the fastest way in; a row group too large for that comes through a buffer, piece by piece.
        large = footer.row_group(group.index).total_byte_size > _MAPPED_BYTES
        access = {"buffer_size": 1 << 20} if large else {"memory_map": True}
        try:
            with pq.ParquetFile(path, metadata=footer, **access) as file:
                for part in file.iter_batches(_DECODE_ROWS, row_groups=[group.index], columns=list(self.columns)):
                    low, high = max(start - first, 0), min(stop - first, part.num_rows)
                    if low < high:
                        yield first + low, part.slice(low, high - low)
                    first += part.num_rows
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: cannot be read as Parquet: {error}") from error

    def _check(
        self, part: pa.RecordBatch, arrays: tuple[np.ndarray, np.ndarray, np.ndarray], lists: list[pa.Table],
        group: _RowGroup, first: int,
    ) -> None:
        """Raise UserError for the first thing wrong in arrays and lists, which were made of the part's rows."""
        labels, dense, sparse = arrays

        def wrong_at(row: int, name: str, expected: str, shown: object) -> NoReturn:
            row += first - next(g.first for g in self._row_groups if g.file == group.file)
            raise UserError(
                f"{self.files[group.file]}: row {row}, column {name}: expected {expected}, found {shown}"
            )

        for table in lists:
            for name in self.schema.lists:
                column = table.column(name).combine_chunks()
                if (wrong := _no_id(column.flatten().to_numpy())).any():
                    entry = int(wrong.argmax())
                    row = int(np.searchsorted(np.cumsum(column.value_lengths().to_numpy()), entry, side="right"))
                    wrong_at(row, name, "an id in [-1, 2^32)", part.column(name).flatten()[entry])
        for names, wrong, expected in (
            ((LABEL,), (labels != 0) & (labels != 1) & (LABEL in self.columns), "0 or 1"),
            (self.schema.dense, np.isinf(dense), "a finite number"),
            (self.schema.singles, _no_id(sparse), "an id in [-1, 2^32)"),
        ):
            if wrong.any():
                row, column = np.argwhere(wrong.reshape(len(labels), -1))[0].tolist()
                value = part.column(names[column])[row].as_py()
                if names is self.schema.dense and np.isfinite(value):
                    expected = "a number within float32, at most 3.4e38"
                wrong_at(row, names[column], expected, "nan" if value is None else value)


def _after(groups: list[_RowGroup], start: int, stop: int, skipped: int) -> Iterator[tuple[_RowGroup, int]]:
    """The row groups from the one on in which the first `skipped` rows within start to stop end, and where to begin."""
    for group in groups:
        begin = max(start, group.first)
        rows = min(stop, group.first + group.rows) - begin
        if skipped < rows:
            yield group, begin + skipped
        skipped = max(skipped - rows, 0)


def _no_id(ids: np.ndarray) -> np.ndarray:
    # One comparison for both ends: as unsigned, -1 + 1 is 0 and anything below wraps to the far end.
    return (ids + 1).view(np.uint64) > IDS


def _no_parquet(path: Path) -> str | None:
    """What else the file is, and what to do with it, if that is known."""
    try:
        with path.open("rb") as file:
            return other_format(file.read(HEAD), text=True)
    except OSError:
        return None


def _checked_footer(file: Path, columns: tuple[str, ...], of: Schema) -> pq.FileMetaData:
    try:
        footer = pq.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file}: {_no_parquet(file) or f'cannot be read as Parquet: {error}'}") from None
    schema = footer.schema.to_arrow_schema()
    for name in columns:
        if name not in schema.names:
            label = f"{LABEL}, " if LABEL in columns else ""
            names = f"{DENSE[0]} to {SPARSE[-1]}" if of is CRITEO else ", ".join([*of.dense, *of.sparse])
            raise UserError(f"{file}: column {name} is missing; expected {label}{names}")
        if schema.names.count(name) > 1:
            raise UserError(f"{file}: column {name} is there {schema.names.count(name)} times; expected once")
        kind = schema.field(name).type
        if name in of.lists:
            is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
            if not (is_list and pa.types.is_integer(kind.value_type)):
                raise UserError(f"{file}: column {name}: expected lists of an integer type, found {kind}")
            continue
        integer, is_id = pa.types.is_integer(kind), name in of.sparse
        if not (integer if is_id else integer or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            expected = "an integer type" if is_id else "a numeric type"
            raise UserError(f"{file}: column {name}: expected {expected}, found {kind}")
    return footer
