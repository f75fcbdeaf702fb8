"""What a data set's metadata says of its ids: counted in the training split, the most frequent ones first.

    DIR/metadata.json            {"rows": {"train": n, …}, "SPARSE_i": {"cardinality": n, "present": n}}
    DIR/ids/SPARSE_i.parquet     id uint32, count int64: the `cardinality` ids, most frequent first, equal counts by id

With another schema than Criteo's the JSON has {"rows": …, "schema": what its TOML says, "features": {NAME: …}}.
`present`: training rows in which the feature is not missing, of a list its entries. Where ids were written modulo N the
JSON has "hash_size": N, and the ids listed are those results. `data.metadata.read_metadata` reads it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from data.ahead import in_order
from data.cli import UserError
from data.merge import SCHEMA, WINDOW, Counts, merged
from data.output import written_beside
from data.schema import CRITEO, IDS, Schema

T, R = TypeVar("T"), TypeVar("R")

# Files whose ids are in memory at a time, and features counted at a time: they bound the memory of counting, whatever
# the number of rows.
FILES = 64
ROWS = 70_000  # of a file, about
WORKERS = 2
BYTES_AN_ID = 97  # that counting takes at its peak, of those held (`most`)


class Run(Protocol):
    """Calls the function with each of the items, several at once; returns what it returned, in their order."""

    def __call__(self, function: Callable[[T], R], items: list[T], what: str) -> list[R]: ...


def in_threads(workers: int) -> Run:
    def run(function: Callable[[T], R], items: list[T], what: str) -> list[R]:
        return list(in_order([partial(function, item) for item in items], workers, ahead=len(items)))

    return run


def write_metadata(
    directory: Path, rows: dict[str, int], *, min_count: int = 1, hash_size: int | None = None, workers: int = WORKERS,
    schema: Schema = CRITEO, most: int | None = None, run: Run | None = None, scratch: Path | None = None,
) -> None:
    """Count the ids of directory/train/*.parquet and write metadata.json and ids/ into `directory`.

    rows: of each split. min_count: ids seen less often are left out. hash_size: what the ids were taken modulo.
    most: counts that a feature's task holds at a time; where it has more, its ids are counted range by range, each of
        which reads the column. A task's memory is then BYTES_AN_ID of them, whatever the number of ids.
    run: where; default: on so many threads, at most WORKERS. scratch: a directory for what is half-written.
    """
    run = run or in_threads(min(workers, WORKERS))
    scratch = scratch or directory / "counts"
    scratch.mkdir(exist_ok=True)
    (directory / "ids").mkdir()
    counting = _Counting(directory, scratch, sum(1 for _ in (directory / "train").iterdir()), min_count, most)
    done: list[_Range] = []
    todo = [_Range(name) for name in schema.sparse]
    while todo:
        counted = run(counting.count, todo, "count ids")
        done += [range_ for range_ in counted if isinstance(range_, _Range)]
        todo = [range_ for narrower in counted if isinstance(narrower, list) for range_ in narrower]
    done.sort(key=lambda range_: range_.low)
    ranges = [[range_ for range_ in done if range_.name == name] for name in schema.sparse]
    run(counting.merge, [of_one for of_one in ranges if len(of_one) > 1], "order ids")
    metadata: dict[str, object] = {"rows": rows}
    if hash_size is not None:
        metadata["hash_size"] = hash_size
    features = {
        of_one[0].name: {key: sum(getattr(range_, key) for range_ in of_one) for key in ("cardinality", "present")}
        for of_one in ranges
    }
    metadata |= features if schema.content is None else {"schema": schema.content, "features": features}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in metadata.items())
    (directory / "metadata.json").write_text(f"{{\n{lines}\n}}\n")
    shutil.rmtree(scratch)


@dataclass(frozen=True)
class _Range:
    """The ids of a feature from low up to high, and when they are counted, what the metadata says of them."""

    name: str
    low: int = 0
    high: int = IDS
    cardinality: int = 0
    present: int = 0

    def __str__(self) -> str:
        return f"the ids of {self.name}"


@dataclass(frozen=True)
class _Counting:
    """What is told to each task, whichever range it counts. files: how many there are in directory/train."""

    directory: Path
    scratch: Path
    files: int
    min_count: int
    most: int | None

    def count(self, range_: _Range) -> _Range | list[_Range]:
        """The range, counted and written; or, if it has too many ids, narrower ones."""
        name, low, high = range_.name, range_.low, range_.high
        counts = frequent_ids(self._files(), name, low, high, self.most)
        if isinstance(counts, list):
            return [_Range(name, *bounds) for bounds in pairwise([low, *counts, high])]
        present = counts["count"].sum()
        counts = counts.filter(pl.col("count") >= self.min_count)
        if (low, high) == (0, IDS):
            self._write(name, [counts.to_arrow()])
        else:
            Counts.write(counts, self._part(range_))
        return replace(range_, cardinality=len(counts), present=present)

    def merge(self, ranges: list[_Range]) -> None:
        """Write a feature's ids from its ranges, in ascending order of ids."""
        self._write(ranges[0].name, merged([Counts(self._part(range_)) for range_ in ranges]))

    def _files(self) -> list[Path]:
        """Those of the training split. On a network's file system another machine may see a file late."""
        for _ in range(600):
            files = sorted((self.directory / "train").iterdir())
            if len(files) == self.files:
                return files
            time.sleep(0.1)
        raise UserError(f"{self.directory}/train: {len(files)} files are seen from here, and there are {self.files}")

    def _write(self, name: str, tables: Iterable[pa.Table]) -> None:
        with (
            written_beside(self.directory / "ids" / f"{name}.parquet", self.scratch) as path,
            # Counts repeat, so a dictionary shrinks them; ids do not.
            pq.ParquetWriter(path, SCHEMA, compression="none", use_dictionary=["count"]) as file,
        ):
            for table in tables:
                file.write_table(table, WINDOW)

    def _part(self, range_: _Range) -> Path:
        return self.scratch / f"{range_.name}-{range_.low}.ids"


def frequent_ids(
    files: list[Path], name: str, low: int = 0, high: int = IDS, most: int | None = None
) -> pl.DataFrame | list[int]:
    """(id UInt32, count Int64): the distinct ids of column `name` from low up to high, most frequent first, equal
    counts by id.

    most: counts that are held at a time. If there are more: ids in ascending order that cut the range into so many
    as are likely to have few enough each.
    """
    known = pl.DataFrame(schema={"id": pl.UInt32, "count": pl.Int64})
    new: list[pl.DataFrame] = []
    # Of files as data.preprocess writes them these have at most a quarter of `most`.
    at_a_time = FILES if most is None else max(1, min(FILES, most // (4 * ROWS)))
    for start in range(0, len(files), at_a_time):
        ids = _ids(files[start : start + at_a_time], name, low, high)
        # Sorting 32-bit numbers takes numpy a fifth of the time of any hash table.
        distinct, times = np.unique(ids, return_counts=True)
        new.append(pl.DataFrame({"id": distinct, "count": times}))
        held = sum(map(len, new))
        # Added up when they have become as many as the known ones, so that an id is added up O(log) times.
        if held >= len(known) or (most is not None and len(known) + held > most * 3 // 4):
            known, new = _sum(known, new), []
            if most is not None and len(known) > most // 2 and high - low > 1:
                # As if all files had as many new ids as these. They have fewer, for ids repeat.
                ranges = max(2, -(-len(known) * len(files) // (most // 2 * min(start + at_a_time, len(files)))))
                cuts = known["id"].gather(np.arange(1, ranges) * len(known) // ranges).unique().sort()
                return [cut for cut in cuts.to_list() if cut > low]
    return _sum(known, new).sort("count", descending=True, maintain_order=True)


def _sum(known: pl.DataFrame, new: list[pl.DataFrame]) -> pl.DataFrame:
    """Counts added up by id, sorted by id."""
    parts = [counts for counts in (known, *new) if len(counts)]
    if len(parts) < 2:
        return parts[0] if parts else known
    return pl.concat(parts).group_by("id").agg(pl.col("count").sum()).sort("id")


def _ids(files: list[Path], name: str, low: int, high: int) -> np.ndarray:
    """uint32: the column's values that are present, from low up to high."""
    column = pl.scan_parquet(files, glob=False).select(name)
    if isinstance(column.collect_schema()[name], pl.List):
        column = column.explode(name)
    present = column.filter((pl.col(name) >= low) & (pl.col(name) < high)).cast(pl.UInt32)
    return present.collect(engine="streaming")[name].to_numpy()
