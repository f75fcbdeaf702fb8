"""What a data set's metadata says of its ids: counted in the training split, the most frequent ones first.

    DIR/metadata.json            {"rows": {"train": n, …}, "SPARSE_i": {"cardinality": n, "present": n}}
    DIR/ids/SPARSE_i.parquet     id uint32, count int64: the `cardinality` ids, most frequent first, equal counts by id

With another schema than Criteo's the JSON has {"rows": …, "schema": what its TOML says, "features": {NAME: …}}.
`present`: training rows in which the feature is not missing, of a list its entries. Where ids were written modulo N the
JSON has "hash_size": N, and the ids listed are those results. `data.metadata.read_metadata` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from data.ahead import in_order
from data.schema import CRITEO, Schema

# Files whose ids are in memory at a time, and features counted at a time: they bound the memory of counting, whatever
# the number of rows.
FILES = 64
WORKERS = 2


def write_metadata(
    directory: Path, rows: dict[str, int], *, min_count: int = 1, hash_size: int | None = None, workers: int = WORKERS,
    schema: Schema = CRITEO,
) -> None:
    """Count the ids of directory/train/*.parquet and write metadata.json and ids/ into `directory`.

    rows: of each split. min_count: ids seen less often are left out. hash_size: what the ids were taken modulo.
    """
    files = sorted((directory / "train").iterdir())
    metadata: dict[str, object] = {"rows": rows}
    if hash_size is not None:
        metadata["hash_size"] = hash_size
    (directory / "ids").mkdir()
    tasks = [partial(_list_ids, directory, files, min_count, name) for name in schema.sparse]
    features = dict(zip(schema.sparse, in_order(tasks, min(workers, WORKERS), ahead=len(tasks)), strict=True))
    metadata |= features if schema.content is None else {"schema": schema.content, "features": features}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in metadata.items())
    (directory / "metadata.json").write_text(f"{{\n{lines}\n}}\n")


def _list_ids(directory: Path, files: list[Path], min_count: int, name: str) -> dict[str, int]:
    counts = frequent_ids(files, name)
    present = counts["count"].sum()
    counts = counts.filter(pl.col("count") >= min_count)
    # Counts repeat, so a dictionary shrinks them; ids do not.
    pq.write_table(
        counts.to_arrow(), directory / "ids" / f"{name}.parquet", compression="none", use_dictionary=["count"]
    )
    return {"cardinality": len(counts), "present": present}


def frequent_ids(files: list[Path], name: str) -> pl.DataFrame:
    """(id UInt32, count Int64): the distinct ids of column `name`, most frequent first, equal counts by id."""
    known = pl.DataFrame(schema={"id": pl.UInt32, "count": pl.Int64})
    new: list[pl.DataFrame] = []
    for ids in _ids(files, name):
        # Sorting 32-bit numbers takes numpy a fifth of the time of any hash table.
        distinct, times = np.unique(ids, return_counts=True)
        new.append(pl.DataFrame({"id": distinct, "count": times}))
        # Added up when they have become as many as the known ones, so that an id is added up O(log) times.
        if sum(map(len, new)) >= len(known):
            known, new = _sum(known, new), []
    return _sum(known, new).sort("count", descending=True, maintain_order=True)


def _sum(known: pl.DataFrame, new: list[pl.DataFrame]) -> pl.DataFrame:
    """Counts added up by id, sorted by id."""
    parts = [counts for counts in (known, *new) if len(counts)]
    if len(parts) < 2:
        return parts[0] if parts else known
    return pl.concat(parts).group_by("id").agg(pl.col("count").sum()).sort("id")


def _ids(files: list[Path], name: str) -> Iterator[np.ndarray]:
    """uint32: the column's values that are present, those of FILES files at a time."""
    for start in range(0, len(files), FILES):
        column = pl.scan_parquet(files[start : start + FILES], glob=False).select(name)
        if isinstance(column.collect_schema()[name], pl.List):
            column = column.explode(name)
        present = column.filter(pl.col(name) >= 0).cast(pl.UInt32).collect(engine="streaming")
        yield present[name].to_numpy()
