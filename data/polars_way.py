"""The peers of data.bench: raw rows to Parquet as somebody who knows polars writes it.

Nothing but polars is imported, for a process of theirs is measured from its start.
"""

from __future__ import annotations

import polars as pl

LABEL, DENSE, SPARSE = "labels", [f"DENSE_{i}" for i in range(13)], [f"SPARSE_{i}" for i in range(26)]


def ten_lines(file: str, out: str) -> None:
    """The rows in one file, and the ids of each feature with their counts: no splits, nothing checked."""
    schema = {LABEL: pl.Int8} | dict.fromkeys(DENSE, pl.Int64) | dict.fromkeys(SPARSE, pl.String)
    rows = pl.scan_csv(file, separator="\t", has_header=False, schema=schema, quote_char=None)
    rows = rows.with_columns(pl.col(SPARSE).str.to_integer(base=16, dtype=pl.Int64))
    rows.sink_parquet(f"{out}/rows.parquet", mkdir=True)
    for name in SPARSE:
        counts = pl.scan_parquet(f"{out}/rows.parquet").select(pl.col(name).value_counts(sort=True))
        counts.sink_parquet(f"{out}/ids/{name}.parquet", mkdir=True)


def all_lines(file: str, out: str, engine: str) -> None:
    """What data.preprocess writes, unchecked: engine "in-memory" or "streaming"."""
    schema = {LABEL: pl.Int8} | dict.fromkeys(DENSE, pl.Int64) | dict.fromkeys(SPARSE, pl.String)
    raw = pl.scan_csv(file, separator="\t", has_header=False, schema=schema, quote_char=None)
    rows = raw.with_columns(pl.col(SPARSE).str.to_integer(base=16, dtype=pl.Int64).fill_null(-1))
    if engine == "in-memory":
        rows = rows.collect(engine=engine).lazy()
    n = rows.select(pl.len()).collect(engine=engine).item()
    ends = (0, n * 6 // 7, n * 13 // 14, n)
    for split, start, end in zip(("train", "validation", "test"), ends, ends[1:], strict=False):
        part = rows.slice(start, end - start)
        part.sink_parquet(f"{out}/{split}/0.parquet", compression="uncompressed", engine=engine, mkdir=True)
    train = rows.slice(0, ends[1]) if engine == "in-memory" else pl.scan_parquet(f"{out}/train/0.parquet")
    for name in SPARSE:
        counts = train.filter(pl.col(name) != -1).group_by(pl.col(name).alias("id")).len("count")
        counts = counts.sort("count", "id", descending=[True, False])
        counts.sink_parquet(f"{out}/ids/{name}.parquet", compression="uncompressed", engine=engine, mkdir=True)
