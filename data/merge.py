"""Counts of ids that were counted range by range, put in one order in little memory: a window of them at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from data.output import written_beside

WINDOW = 1 << 20  # ids
SCHEMA = pa.schema([("id", pa.uint32()), ("count", pa.int64())])
_Columns = tuple[np.ndarray, np.ndarray]  # ids, counts


class Counts:
    """(id, count) of a range of ids, most frequent first, equal counts by id: the ids in a file, uint32, and in memory
    the counts that there are, and behind how many ids each of them ends."""

    def __init__(self, path: Path):
        """path: what `write` was given."""
        self.path = path
        # Not np.load: it parses a header, which fails at times in several threads at once of Python 3.11's first
        # releases (https://github.com/python/cpython/issues/106905).
        self.counts, self.ends = np.fromfile(_runs_beside(path), np.int64).reshape(2, -1)

    @staticmethod
    def write(counts: pl.DataFrame, path: Path) -> None:
        runs = counts["count"].rle().struct.unnest().select("value", pl.col("len").cast(pl.Int64).cum_sum())
        with written_beside(path, path.parent) as partial:
            counts["id"].to_numpy().tofile(partial)
        with written_beside(_runs_beside(path), path.parent) as partial:
            runs.cast(pl.Int64).to_numpy().T.tofile(partial)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def count(self, position: int) -> int:
        return int(self.counts[np.searchsorted(self.ends, position, side="right")])

    def end_of(self, least: int) -> int:
        """How many ids have at least this count."""
        runs = int(np.searchsorted(-self.counts, -least, side="right"))
        return int(self.ends[runs - 1]) if runs else 0

    def read(self, start: int, end: int) -> _Columns:
        ids = np.fromfile(self.path, np.uint32, end - start, offset=start * np.uint32().nbytes)
        first, last = np.searchsorted(self.ends, (start, end), side="right")
        lengths = np.diff(np.clip(self.ends[first : last + 1], start, end), prepend=start)
        return ids, np.repeat(self.counts[first : last + 1], lengths)


def _runs_beside(path: Path) -> Path:
    return path.with_suffix(".runs")


def merged(parts: list[Counts]) -> Iterator[pa.Table]:
    """(id uint32, count int64), most frequent first, equal counts by id, in tables of WINDOW rows, at least one;
    the last has the rest. parts: in ascending order of their ids."""
    return _windows(_in_order(parts))


def _in_order(parts: list[Counts]) -> Iterator[_Columns]:
    step = max(1, WINDOW // len(parts))
    begun = [0] * len(parts)
    while any(start < len(part) for start, part in zip(begun, parts, strict=True)):
        # Of larger counts than this no part has more than `step`; those that are equal to it are in order already.
        ahead = [(part, start + step) for start, part in zip(begun, parts, strict=True) if start + step < len(part)]
        least = max((part.count(position) for part, position in ahead), default=0)
        larger = [part.end_of(least + 1) for part in parts]
        read = [part.read(*span) for part, *span in zip(parts, begun, larger, strict=True)]
        ids, counts = (np.concatenate(columns) for columns in zip(*read, strict=True))
        order = np.argsort(-counts, kind="stable")
        yield ids[order], counts[order]
        begun = [part.end_of(least) for part in parts]
        for part, start, end in zip(parts, larger, begun, strict=True):
            for span in pairwise([*range(start, end, WINDOW), end]):
                yield part.read(*span)


def _windows(parts: Iterable[_Columns]) -> Iterator[pa.Table]:
    held, rows = [(np.empty(0, np.uint32), np.empty(0, np.int64))], 0  # so there is a table, if of no rows
    for part in parts:
        start = 0
        while start < len(part[0]):
            held.append(tuple(column[start : start + WINDOW - rows] for column in part))
            start, rows = start + len(held[-1][0]), rows + len(held[-1][0])
            if rows == WINDOW:
                yield _table(held)
                held, rows = [], 0
    if held:
        yield _table(held)


def _table(parts: list[_Columns]) -> pa.Table:
    return pa.table([np.concatenate(columns) for columns in zip(*parts, strict=True)], schema=SCHEMA)
