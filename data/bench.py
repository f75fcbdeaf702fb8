"""What preprocessing and reading cost: `python -m data.bench`. Ratios to plain ways of doing it, by turns in one run.

Rows are synthetic, with Criteo's full cardinalities (data.synthetic). The peers, each the straightforward way:

preprocessing   20 lines of polars, with either of its engines, each in a process of its own, as ours is.
reading         a map-style Dataset that indexes one row at a time, behind a DataLoader with num_workers=0;
                tensors in memory, indexed a batch at a time: by a DataLoader with a BatchSampler, as PyTorch's
                documentation has it, and without any loader, which is what a gather from memory alone costs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from data.cli import Parser, user_errors
from data.criteo import COLUMNS, DENSE, LABEL, MISSING, SPARSE, SPLITS, CriteoBatches, read_metadata
from data.synthetic import main as synthetic

BATCH = 2048
MANY_WORKERS = 16
BAD_EVERY = 100_000  # lines


def with_polars(file: str, out: str, engine: str) -> None:
    """Raw rows to what data.preprocess writes, as a user of polars would: engine "in-memory" or "streaming"."""
    schema = {LABEL: pl.Int8} | dict.fromkeys(DENSE, pl.Int64) | dict.fromkeys(SPARSE, pl.String)
    raw = pl.scan_csv(file, separator="\t", has_header=False, schema=schema, quote_char=None)
    rows = raw.with_columns(pl.col(SPARSE).str.to_integer(base=16, dtype=pl.Int64).fill_null(MISSING))
    if engine == "in-memory":
        rows = rows.collect(engine=engine).lazy()
    n = rows.select(pl.len()).collect(engine=engine).item()
    ends = (0, n * 6 // 7, n * 13 // 14, n)
    for split, start, end in zip(SPLITS, ends, ends[1:], strict=False):
        part = rows.slice(start, end - start)
        part.sink_parquet(f"{out}/{split}/0.parquet", compression="uncompressed", engine=engine, mkdir=True)
    train = rows.slice(0, ends[1]) if engine == "in-memory" else pl.scan_parquet(f"{out}/train/0.parquet")
    for name in SPARSE:
        counts = train.filter(pl.col(name) != MISSING).group_by(pl.col(name).alias("id")).len("count")
        counts = counts.sort("count", "id", descending=[True, False])
        counts.sink_parquet(f"{out}/ids/{name}.parquet", compression="uncompressed", engine=engine, mkdir=True)


def same_result(ours: Path, theirs: Path) -> None:
    """Raise unless both directories hold the same rows and the same ids, in one order, for each feature."""
    for split in SPLITS:
        a, b = (pl.read_parquet(d / split / "*.parquet", columns=list(COLUMNS)) for d in (ours, theirs))
        if not a.equals(b):
            raise AssertionError(f"{split}: the peer's rows differ")
    for name in SPARSE:
        a, b = (pl.read_parquet(d / "ids" / f"{name}.parquet") for d in (ours, theirs))
        if not a["id"].cast(pl.Int64).equals(b["id"].cast(pl.Int64)):
            raise AssertionError(f"{name}: the peer's ids differ")


def run(code: str, *arguments: str | Path) -> tuple[float, int]:
    """(seconds, peak resident bytes) of Python code, from its `go()`, in a process of its own."""
    # The kernel's own high-water mark of this process image: getrusage's would begin at that of the parent.
    program = (
        "import re, sys, time\n"
        "begun = 0\n"
        "def go():\n    global begun; begun = time.perf_counter()\n"
        f"{code}\n"
        "spent = time.perf_counter() - begun\n"
        "print(spent, re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if child.returncode:
        raise RuntimeError(child.stderr)
    seconds, kilobytes = child.stdout.split()[-2:]
    return float(seconds), int(kilobytes) * 1024


def run_ours(file: Path, out: Path, options: tuple[str, ...] = ()) -> tuple[float, int]:
    return run("from data.preprocess import main; go(); main(sys.argv[1:])", file, "--out", out, *options)


def run_polars(file: Path, out: Path, engine: str) -> tuple[float, int]:
    return run("from data.bench import with_polars; go(); with_polars(*sys.argv[1:])", file, out, engine)


class RowDataset(Dataset):
    """One row an item, from tensors that are in memory and transformed already."""

    def __init__(self, directory: Path):
        table = pl.read_parquet(directory / "*.parquet", columns=list(COLUMNS))
        dense = table.select(DENSE).fill_null(0).cast(pl.Float32).to_numpy().clip(min=0)
        self.labels = torch.from_numpy(table[LABEL].cast(pl.Float32).to_numpy(writable=True))
        self.dense = torch.from_numpy(np.ascontiguousarray(np.log1p(dense)))
        self.sparse = torch.from_numpy(np.ascontiguousarray(table.select(SPARSE).to_numpy()))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int | list[int] | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.labels[row], self.dense[row], self.sparse[row]

    def loader(self, shuffle: bool) -> DataLoader:
        """The same rows, an item a batch."""
        rows = RandomSampler(self) if shuffle else SequentialSampler(self)
        return DataLoader(self, batch_size=None, sampler=BatchSampler(rows, BATCH, drop_last=False))

    def batches(self, shuffle: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """The same, without a loader."""
        order = torch.randperm(len(self)) if shuffle else torch.arange(len(self))
        return (self[rows] for rows in order.split(BATCH))


def rows_per_second(batches: Iterable, limit_s: float) -> float:
    """Rows a second over one pass, or over as much of it as comes within limit_s seconds."""
    rows, start = 0, time.perf_counter()
    for labels, _, _ in batches:
        rows += len(labels)
        if time.perf_counter() - start > limit_s:
            break
    return rows / (time.perf_counter() - start)


def row(name: str, value: float, unit: str) -> None:
    print(f"  {name:<58} {value:>12,.2f} {unit}", flush=True)


def with_bad_lines(file: Path, bad: Path) -> None:
    """A copy in which one line of BAD_EVERY has a category that is not hexadecimal."""
    with file.open("rb") as good, bad.open("wb") as out:
        for number, line in enumerate(good, 1):
            out.write(line[:-2] + b"g\n" if number % BAD_EVERY == 0 else line)


def bench_preprocess(file: Path, rows: int, directory: Path, repeats: int) -> None:
    print(f"\npreprocessing {rows:,} rows, full cardinalities ({repeats} turns; the fastest)")
    bad = directory / "bad.txt"
    with_bad_lines(file, bad)
    ways = {
        "data.preprocess": partial(run_ours, file),
        "polars, in memory": partial(run_polars, file, engine="in-memory"),
        "polars, streaming": partial(run_polars, file, engine="streaming"),
        f"ours, one bad line in {BAD_EVERY:,}, skipped": partial(run_ours, bad, options=("--on-bad-line=skip",)),
        f"ours, {MANY_WORKERS} workers asked for": partial(run_ours, file, options=(f"--workers={MANY_WORKERS}",)),
    }
    results: dict[str, list[tuple[float, int]]] = {name: [] for name in ways}
    for i in range(repeats):
        for k, (name, way) in enumerate(ways.items()):
            results[name].append(way(directory / f"{k}-{i}"))
    for k in (1, 2):
        same_result(directory / "0-0", directory / f"{k}-0")
    times = {name: min(seconds for seconds, _ in result) for name, result in results.items()}
    for name, result in results.items():
        peak = max(peak for _, peak in result)
        row(name, times[name], f"s   {rows / times[name]:,.0f} rows/s, peak {peak / 1e6:,.0f} MB")
    ours, in_memory, streaming, skipping, _ = times.values()
    row("ours, of the faster engine's time", ours / min(in_memory, streaming), "×   (the aim: at most 1.15, 1,000 MB)")
    row("with bad lines, of the time without", skipping / ours, "×   (the aim: at most 1.3)")


def bench_memory(small: Path, large: Path, rows: tuple[int, int], directory: Path) -> None:
    print("\npeak memory of preprocessing")
    peaks, ids = [], []
    for name, file in (("small", small), ("large", large)):
        peaks.append(run_ours(file, directory / f"memory-{name}")[1])
        ids.append(sum(f.cardinality for f in read_metadata(directory / f"memory-{name}").values()))
    for n, peak, distinct in zip(rows, peaks, ids, strict=True):
        row(f"{n:,} rows, {distinct:,} distinct ids", peak / 1e6, "MB")
    limit = 1.2 * peaks[0] + 32 * (ids[1] - ids[0])
    row("limit: the first + 20 % + 32 bytes a further distinct id", limit / 1e6, "MB")
    row("the second, of its limit", peaks[1] / limit, "    (the aim: at most 1)")


def bench_reading(directory: Path, repeats: int, limit_s: float) -> None:
    print(f"\nreading, batch {BATCH} ({repeats} turns; the fastest)")
    dataset = RowDataset(directory)
    for shuffle, aim in ((True, 15), (False, 20)):
        name = "shuffled" if shuffle else "in order"
        rates = [
            (
                rows_per_second(DataLoader(dataset, BATCH, shuffle=shuffle, num_workers=0), limit_s),
                rows_per_second(dataset.loader(shuffle), limit_s),
                rows_per_second(dataset.batches(shuffle), limit_s),
                rows_per_second(CriteoBatches(directory, BATCH, shuffle=shuffle), limit_s),
            )
            for _ in range(repeats)
        ]
        one, batched, gathered, ours = map(max, zip(*rates, strict=True))
        row(f"{name}: map-style Dataset, one row an item", one, "rows/s")
        row(f"{name}: tensors in memory, a batch an item", batched, "rows/s")
        row(f"{name}: the same without a loader", gathered, "rows/s")
        row(f"{name}: CriteoBatches", ours, "rows/s")
        row(f"{name}: ratio to one row an item", ours / one, f"×   (the aim: at least {aim})")
        row(f"{name}: ratio to a batch an item", ours / batched, "×   (the aim: at least 2)")


def main(arguments: list[str] | None = None) -> None:
    parser = Parser(prog="python -m data.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=3_000_000, help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each measurement; the best counts")
    parser.add_argument("--seconds", type=float, default=4, help="at most, for each way of reading")
    parser.add_argument("--scratch", type=Path, help="where to put some gigabytes; default: the temporary directory")
    options = parser.parse_args(arguments)
    with user_errors("data.bench"), tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        directory = Path(scratch)
        sizes = (max(options.rows // 4, 1), options.rows)
        files = [directory / f"raw{rows}" / "train.txt" for rows in sizes]
        for rows, file in zip(sizes, files, strict=True):
            with contextlib.redirect_stdout(sys.stderr):
                synthetic(["--rows", str(rows), "--out", str(file.parent), "--full-cardinalities", "--format", "tsv"])
        bench_preprocess(files[1], options.rows, directory, options.repeats)
        bench_memory(*files, sizes, directory)
        bench_reading(directory / "0-0" / "train", options.repeats, options.seconds)


if __name__ == "__main__":
    main()
