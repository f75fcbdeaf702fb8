"""Writing a preprocessed data set: Parquet splits and metadata, complete or not at all.

    DIR/{train,validation,test}/*.parquet    the columns of data.criteo.SCHEMA, and any further ones
    DIR/metadata.json                        {"SPARSE_i": {"cardinality": n, "tokenizer_values": [ids]}}
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.cli import UserError
from data.criteo import SPARSE

SPLITS = ("train", "validation", "test")
ROW_GROUP = 1 << 16
# Ids counted at a time: bounds the memory of counting, whatever the number of rows.
_COUNT_CHUNK = 1 << 20


def write_dataset(
    chunks: Iterable[Callable[[], pa.Table]],
    out: str | Path,
    *,
    split: str = "order",
    seed: int = 0,
    min_count: int = 1,
    workers: int | None = None,
) -> dict[str, int]:
    """Write the rows of `chunks` to directory `out`; returns the rows of each split.

    chunks: functions that make one table each, in file order. They run on `workers` threads (default: all cores), a
        few ahead of the one being consumed, so memory is bounded by the size of a chunk.
    split: "order": the first 6/7 of the rows are train, then 1/14 validation, 1/14 test; "random": each row goes to
        one of them with these probabilities, drawn from (seed, chunk).
    min_count: ids seen less often in the training split are left out of the metadata.

    `out` appears by one rename at the end. Raises UserError if it exists and is not an empty directory, or if there
    are no rows; whatever `chunks` raises passes through, and then nothing is left behind.
    """
    if split not in ("order", "random"):
        raise ValueError(f"split: expected 'order' or 'random', got {split!r}")
    if min_count < 1:
        raise ValueError(f"min_count: expected at least 1, got {min_count}")
    workers = workers or os.cpu_count() or 1
    with complete_directory(out) as directory, ThreadPoolExecutor(workers) as pool:
        for name in SPLITS:
            (directory / name).mkdir()
        if split == "order":
            rows = _write_in_order(chunks, directory, pool, workers)
        else:
            rows = _write_at_random(chunks, directory, pool, workers, seed)
        _write_metadata(directory, pool, min_count)
    return rows


@contextmanager
def complete_directory(out: str | Path) -> Iterator[Path]:
    """A temporary directory beside `out` that becomes `out` if the block ends well, and is removed otherwise."""
    out = Path(out).absolute()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out}: already exists; remove it or name another directory")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp's 0o700 is for secrets
        temporary.rename(out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _in_order(pool: ThreadPoolExecutor, workers: int, tasks: Iterable[Callable]) -> Iterator:
    """Results of `tasks` in their order, at most 2·workers of them begun and not yet consumed."""
    running: deque = deque()
    try:
        for task in tasks:
            running.append(pool.submit(task))
            if len(running) >= 2 * workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for future in running:
            future.cancel()


def _write(table: pa.Table, path: Path) -> int:
    # Hashes do not compress, and what repeats is dictionary-encoded already: without a codec reading is faster.
    pq.write_table(table, path, row_group_size=ROW_GROUP, compression="none")
    return table.num_rows


def _part(directory: Path, split: str, index: int) -> Path:
    return directory / split / f"part-{index:05d}.parquet"


def _write_in_order(chunks, directory: Path, pool: ThreadPoolExecutor, workers: int) -> dict[str, int]:
    # Where the splits end is known only when all rows are read: write parts first, then move each to its split.
    parts = directory / "parts"
    parts.mkdir()
    tasks = (
        lambda i=i, chunk=chunk: _write(chunk(), _part(directory, "parts", i)) for i, chunk in enumerate(chunks)
    )
    sizes = list(_in_order(pool, workers, tasks))
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


def _write_at_random(chunks, directory: Path, pool: ThreadPoolExecutor, workers: int, seed: int) -> dict[str, int]:
    def task(i: int, chunk: Callable[[], pa.Table]) -> list[int]:
        table = chunk()
        drawn = np.random.default_rng((seed, i)).integers(14, size=table.num_rows)
        chosen = np.searchsorted([11, 12], drawn)  # 0..11 train, 12 validation, 13 test
        return [_write(table.filter(pa.array(chosen == k)), _part(directory, name, i)) for k, name in enumerate(SPLITS)]

    tasks = (lambda i=i, chunk=chunk: task(i, chunk) for i, chunk in enumerate(chunks))
    totals = np.zeros(len(SPLITS), dtype=np.int64)
    for sizes in _in_order(pool, workers, tasks):
        totals += sizes
    if not totals.sum():
        raise UserError("no rows in the input")
    return dict(zip(SPLITS, totals.tolist(), strict=True))


def _write_metadata(directory: Path, pool: ThreadPoolExecutor, min_count: int) -> None:
    files = sorted((directory / "train").iterdir())
    with (directory / "metadata.json").open("w") as out:
        for i, ids in enumerate(pool.map(lambda name: _frequent_ids(files, name, min_count), SPARSE)):
            out.write(f'{"," if i else "{"}\n"{SPARSE[i]}": {{"cardinality": {len(ids)}, "tokenizer_values": [')
            for k in range(0, len(ids), _COUNT_CHUNK):  # piecewise: ten million Python ints are 400 MB
                out.write((", " if k else "") + json.dumps(ids[k : k + _COUNT_CHUNK].tolist())[1:-1])
            out.write("]}")
        out.write("\n}\n")


def _frequent_ids(files: list[Path], column: str, min_count: int) -> np.ndarray:
    """uint32: the column's ids seen at least min_count times, most frequent first, equal counts by id."""
    # Sorted runs (ids, counts), each more than twice the next: every id is merged O(log) times.
    runs: list[tuple[np.ndarray, np.ndarray]] = []
    for values in _column(files, column):
        runs.append(np.unique(values[values >= 0].astype(np.uint32), return_counts=True))
        while len(runs) > 1 and len(runs[-2][0]) <= 2 * len(runs[-1][0]):
            runs.append(_merge(runs.pop(-2), runs.pop()))
    while len(runs) > 1:
        runs.append(_merge(runs.pop(-2), runs.pop()))
    ids, counts = runs[0] if runs else (np.empty(0, np.uint32), np.empty(0, np.int64))
    kept = counts >= min_count
    ids, counts = ids[kept], counts[kept]
    return ids[np.argsort(-counts, kind="stable")]


def _merge(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The union of two runs of sorted distinct ids, counts added."""
    (ids, counts), (more_ids, more_counts) = a, b
    if not len(ids):
        return b
    position = np.searchsorted(ids, more_ids)
    known = ids[np.minimum(position, len(ids) - 1)] == more_ids
    counts[position[known]] += more_counts[known]
    new = ~known
    return np.insert(ids, position[new], more_ids[new]), np.insert(counts, position[new], more_counts[new])


def _column(files: list[Path], column: str) -> Iterator[np.ndarray]:
    """The column's values over all files, in arrays of at least _COUNT_CHUNK values but for the last."""
    held: list[np.ndarray] = []
    for file in files:
        values = pq.read_table(file, columns=[column], use_threads=False, pre_buffer=False).column(0)
        held.extend(chunk.to_numpy() for chunk in values.chunks)
        if sum(map(len, held)) >= _COUNT_CHUNK:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)
