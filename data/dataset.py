"""Writing a preprocessed data set: Parquet splits and metadata, complete or not at all.

    DIR/{train,validation,test}/*.parquet    the columns of data.criteo.SCHEMA, and any further ones
    DIR/metadata.json, DIR/ids/*.parquet     see data.vocabulary
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from data.ahead import in_order
from data.cli import UserError
from data.output import complete_directory
from data.raw import SPLIT
from data.schema import CRITEO, IDS, SPLITS, Schema
from data.vocabulary import write_metadata

ROW_GROUP = 1 << 16
# A worker holds a chunk in several forms at once, some 100 MB for data.preprocess: more of them cost memory, and the
# libraries that they call use the other cores already.
MAX_WORKERS = 4


def write_dataset(
    chunks: Iterable[Callable[[], pa.Table]],
    out: str | Path,
    *,
    split: str = "order",
    seed: int = 0,
    min_count: int = 1,
    hash_size: int | None = None,
    workers: int | None = None,
    schema: Schema = CRITEO,
) -> dict[str, int]:
    """Write the rows of `chunks` to directory `out`; returns the rows of each split.

    chunks: functions that make one table each, in file order. They run on `workers` threads (at most MAX_WORKERS;
        default: one more than there are cores, for one of them reads or writes), a few ahead of the one being consumed,
        so memory is bounded by the size of a chunk.
    split: "order": the first 6/7 of the rows are train, then 1/14 validation, 1/14 test; "random": each row goes to
        one of them with these probabilities, drawn from (seed, chunk); "given": each row goes to the one whose position
        in SPLITS its column data.raw.SPLIT says, which is not written.
    schema: of the tables.
    min_count: ids seen less often in the training split are left out of the metadata.
    hash_size: write each id modulo this, and list the distinct results of the training split. With the hash `sorted`,
        which gives each result its own row, this is MLPerf's `max_ind_range`: no table has more rows than hash_size,
        small ones stay small, and only results collide. With the hash `modulus` rows collide once more, in the
        cardinality: of n results that are spread evenly 1 - 1/e, 63 %, of n rows are used.

    `out` is complete when metadata.json stands in it: see data.output. Raises UserError if `out` cannot be used, before
    a chunk is asked for, or if there are no rows; whatever `chunks` raises passes through, and then nothing is left.
    """
    if split not in ("order", "random", "given"):
        raise ValueError(f"split: expected 'order', 'random' or 'given', got {split!r}")
    if min_count < 1:
        raise ValueError(f"min_count: expected at least 1, got {min_count}")
    if hash_size is not None and not 1 <= hash_size <= IDS:
        raise ValueError(f"hash_size: expected 1 to 2^32, got {hash_size}")
    workers = min(workers or len(os.sched_getaffinity(0)) + 1, MAX_WORKERS)
    if hash_size is not None:
        chunks = (lambda chunk=chunk: _hashed(chunk(), hash_size, schema) for chunk in chunks)
    with complete_directory(out) as directory:
        for name in SPLITS:
            (directory / name).mkdir()
        if split == "order":
            rows = _write_in_order(chunks, directory, workers)
        else:
            chosen = partial(_drawn, seed) if split == "random" else _given
            rows = _write_chosen(chunks, directory, workers, chosen)
        write_metadata(directory, rows, min_count=min_count, hash_size=hash_size, workers=workers, schema=schema)
    return rows


def _hashed(table: pa.Table, hash_size: int, schema: Schema) -> pa.Table:
    def modulo(ids: pl.Expr) -> pl.Expr:
        return pl.when(ids >= 0).then(ids % hash_size).otherwise(ids)

    hashed = pl.from_arrow(table.select(schema.sparse)).select(
        *(modulo(pl.col(name)) for name in schema.singles),
        *(pl.col(name).list.eval(modulo(pl.element())) for name in schema.lists),
    )
    for name in schema.sparse:
        index = table.schema.get_field_index(name)
        field = table.schema.field(index)
        table = table.set_column(index, field, hashed[name].to_arrow().cast(field.type))
    return table


def _write(table: pa.Table, path: Path) -> int:
    # Hashes do not compress, and what repeats is dictionary-encoded already: without a codec reading is faster.
    # Nobody looks for rows by value, so the smallest and largest of each column are not needed.
    pq.write_table(table, path, row_group_size=ROW_GROUP, compression="none", write_statistics=False)
    return table.num_rows


def _part(directory: Path, split: str, index: int) -> Path:
    return directory / split / f"part-{index:05d}.parquet"


def _write_in_order(chunks: Iterable[Callable[[], pa.Table]], directory: Path, workers: int) -> dict[str, int]:
    # Where the splits end is known only when all rows are read: write parts first, then move each to its split.
    parts = directory / "parts"
    parts.mkdir()
    tasks = (
        lambda i=i, chunk=chunk: _write(chunk(), _part(directory, "parts", i)) for i, chunk in enumerate(chunks)
    )
    sizes = list(in_order(tasks, workers, ahead=workers + 1))
    total = sum(sizes)
    if not total:
        raise UserError("no rows in the input")
    train, validation = total * 6 // 7, total * 13 // 14
    ends = dict(zip(SPLITS, (train, validation, total), strict=True))
    start = 0
    for i, size in enumerate(sizes):
        part, low = _part(directory, "parts", i), 0
        for name, end in ends.items():
            high = min(max(end - start, low), size)
            if (low, high) == (0, size):
                part.rename(_part(directory, name, i))
            elif low < high:
                _write(pq.read_table(part).slice(low, high - low), _part(directory, name, i))
            low = high
        start += size
    for name in SPLITS:
        if not any((directory / name).iterdir()):  # too few rows for this split: an empty table says so
            schema = pq.read_schema(next((directory / "test").iterdir()))
            _write(schema.empty_table(), _part(directory, name, 0))
    shutil.rmtree(parts)
    return dict(zip(SPLITS, (train, validation - train, total - validation), strict=True))


def _drawn(seed: int, chunk: int, table: pa.Table) -> tuple[np.ndarray, pa.Table]:
    """For each row the position of its split, and the rows."""
    drawn = np.random.default_rng((seed, chunk)).integers(14, size=table.num_rows)
    return np.searchsorted([11, 12], drawn), table  # 0..11 train, 12 validation, 13 test


def _given(chunk: int, table: pa.Table) -> tuple[np.ndarray, pa.Table]:
    return table.column(SPLIT).to_numpy(), table.drop_columns([SPLIT])


def _write_chosen(
    chunks: Iterable[Callable[[], pa.Table]], directory: Path, workers: int,
    choose: Callable[[int, pa.Table], tuple[np.ndarray, pa.Table]],
) -> dict[str, int]:
    def task(i: int, chunk: Callable[[], pa.Table]) -> list[int]:
        chosen, table = choose(i, chunk())
        return [_write(table.filter(pa.array(chosen == k)), _part(directory, name, i)) for k, name in enumerate(SPLITS)]

    tasks = (lambda i=i, chunk=chunk: task(i, chunk) for i, chunk in enumerate(chunks))
    totals = np.zeros(len(SPLITS), dtype=np.int64)
    for sizes in list(in_order(tasks, workers, ahead=workers + 1)):  # what interrupts it waits for the tasks
        totals += sizes
    if not totals.sum():
        raise UserError("no rows in the input")
    return dict(zip(SPLITS, totals.tolist(), strict=True))
