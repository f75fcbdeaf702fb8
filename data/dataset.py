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
Ends = tuple[int, int]  # how many rows are train's, and how many are train's or validation's
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
    ends: Callable[[list[int]], Ends] | None = None,
    most: int | None = None,
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
    ends: of train and validation, with the split "order", if others than above; it is given the rows of each chunk.
    most: bounds the memory of counting; see data.vocabulary.write_metadata.

    `out` is complete when metadata.json stands in it: see data.output. Raises UserError if `out` cannot be used, before
    a chunk is asked for, or if there are no rows; whatever `chunks` raises passes through, and then nothing is left.
    """
    check_settings(split, min_count, hash_size)
    workers = min(workers or len(os.sched_getaffinity(0)) + 1, MAX_WORKERS)
    if hash_size is not None:
        chunks = (lambda chunk=chunk: hashed(chunk(), hash_size, schema) for chunk in chunks)
    with complete_directory(out) as directory:
        for name in SPLITS:
            (directory / name).mkdir()
        if split == "order":
            rows = _write_in_order(chunks, directory, workers, ends)
        else:
            chosen = partial(choose_drawn, seed) if split == "random" else _given
            rows = _write_chosen(chunks, directory, workers, chosen)
        write_metadata(
            directory, rows, min_count=min_count, hash_size=hash_size, workers=workers, schema=schema, most=most
        )
    return rows


def check_settings(split: str, min_count: int, hash_size: int | None) -> None:
    if split not in ("order", "random", "given"):
        raise ValueError(f"split: expected 'order', 'random' or 'given', got {split!r}")
    if min_count < 1:
        raise ValueError(f"min_count: expected at least 1, got {min_count}")
    if hash_size is not None and not 1 <= hash_size <= IDS:
        raise ValueError(f"hash_size: expected 1 to 2^32, got {hash_size}")


def hashed(table: pa.Table, hash_size: int, schema: Schema) -> pa.Table:
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


def write_table(table: pa.Table, path: Path) -> int:
    # Hashes do not compress, and what repeats is dictionary-encoded already: without a codec reading is faster.
    # Nobody looks for rows by value, so the smallest and largest of each column are not needed.
    pq.write_table(table, path, row_group_size=ROW_GROUP, compression="none", write_statistics=False)
    return table.num_rows


def part(directory: Path, split: str, index: int) -> Path:
    return directory / split / f"part-{index:05d}.parquet"


def _write_in_order(
    chunks: Iterable[Callable[[], pa.Table]], directory: Path, workers: int, ends: Callable[[list[int]], Ends] | None
) -> dict[str, int]:
    # Where the splits end is known only when all rows are read: write parts first, then move each to its split.
    scratch = directory / "parts"
    scratch.mkdir()
    tasks = (
        lambda i=i, chunk=chunk: write_table(chunk(), part(directory, "parts", i)) for i, chunk in enumerate(chunks)
    )
    sizes = list(in_order(tasks, workers, ahead=workers + 1))
    parts = [part(directory, "parts", i) for i in range(len(sizes))]
    rows = place_in_order(parts, sizes, directory, ends(sizes) if ends else None)
    shutil.rmtree(scratch)
    return rows


def place_in_order(parts: list[Path], sizes: list[int], directory: Path, ends: Ends | None = None) -> dict[str, int]:
    """Move the parts, of so many rows, to their splits; returns the rows of each split.

    ends: of train and of validation, in rows; default: 6/7 and 13/14 of them.
    """
    total = sum(sizes)
    if not total:
        raise UserError("no rows in the input")
    train, validation = ends or (total * 6 // 7, total * 13 // 14)
    start = 0
    for i, (path, size) in enumerate(zip(parts, sizes, strict=True)):
        low = 0
        for name, end in zip(SPLITS, (train, validation, total), strict=True):
            high = min(max(end - start, low), size)
            if (low, high) == (0, size) and size:
                path.rename(part(directory, name, i))
            elif low < high:
                write_table(pq.read_table(path).slice(low, high - low), part(directory, name, i))
            low = high
        start += size
    for name in SPLITS:
        if not any((directory / name).iterdir()):  # too few rows for this split: an empty table says so
            schema = pq.read_schema(next(file for name in SPLITS for file in (directory / name).iterdir()))
            write_table(schema.empty_table(), part(directory, name, 0))
    return dict(zip(SPLITS, (train, validation - train, total - validation), strict=True))


def choose_drawn(seed: int, chunk: int, table: pa.Table) -> tuple[np.ndarray, pa.Table]:
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
        tables = [table.filter(pa.array(chosen == k)) for k in range(len(SPLITS))]
        return [write_table(table, part(directory, name, i)) for name, table in zip(SPLITS, tables, strict=True)]

    tasks = (lambda i=i, chunk=chunk: task(i, chunk) for i, chunk in enumerate(chunks))
    totals = np.zeros(len(SPLITS), dtype=np.int64)
    for sizes in list(in_order(tasks, workers, ahead=workers + 1)):  # what interrupts it waits for the tasks
        totals += sizes
    if not totals.sum():
        raise UserError("no rows in the input")
    return dict(zip(SPLITS, totals.tolist(), strict=True))
