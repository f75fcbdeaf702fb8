"""What preprocessing and reading cost: `python -m data.bench`. Ratios to plain ways of doing it, by turns in one run.

Rows are synthetic, with Criteo's full cardinalities (data.synthetic), or those of --file. The peers, each the
straightforward way:

preprocessing   10 lines of polars, which write all rows to one file and the ids of each feature with their counts, and
                check nothing; and 20, with either of its engines, which write what ours does. Each is a process of its
                own, as ours is, and is measured as a whole: imports too.
reading         a map-style Dataset that indexes one row at a time, behind a DataLoader with num_workers=0;
                tensors in memory, indexed a batch at a time: by a DataLoader with a BatchSampler, as PyTorch's
                documentation has it, and without any loader, which is what a gather from memory alone costs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from data.cli import Parser, user_errors
from data.criteo import COLUMNS, DENSE, LABEL, SPARSE, SPLITS, CriteoBatches
from data.metadata import read_metadata
from data.synthetic import main as synthetic

BATCH = 2048
MANY_WORKERS = 16
BAD_EVERY = 100_000  # lines
OURS, TEN, BAD = "data.preprocess", "10 lines of polars", f"ours, one bad line in {BAD_EVERY:,}, skipped"
PARTS = ("preprocess", "memory", "reading")


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


@dataclass(frozen=True)
class Cost:
    """What a process costs from start to end: seconds, those of its threads added up (cpu), most resident bytes."""

    seconds: float
    cpu: float
    peak: int


def run(code: str, *arguments: str | Path) -> Cost:
    """What a process costs that runs this Python code."""
    # The kernel's own high-water mark of this process image: getrusage's would begin at that of the parent.
    program = (
        f"import re, sys\n{code}\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    child = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if child.returncode:
        raise RuntimeError(child.stderr)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Cost(seconds, cpu, int(child.stdout.split()[-1]) * 1024)


def run_ours(file: Path, out: Path, options: tuple[str, ...] = ()) -> Cost:
    return run("from data.preprocess import main; main(sys.argv[1:])", file, "--out", out, *options)


def run_polars(file: Path, out: Path, peer: str, *engine: str) -> Cost:
    return run(f"from data.polars_way import {peer}; {peer}(*sys.argv[1:])", file, out, *engine)


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
    print(f"\npreprocessing {rows:,} rows ({repeats} turns; the middle one, the most memory)")
    bad = directory / "bad.txt"
    with_bad_lines(file, bad)
    ways = {
        OURS: partial(run_ours, file),
        TEN: partial(run_polars, file, peer="ten_lines"),
        "20 lines of polars, in memory": lambda out: run_polars(file, out, "all_lines", "in-memory"),
        "20 lines of polars, streaming": lambda out: run_polars(file, out, "all_lines", "streaming"),
        BAD: partial(run_ours, bad, options=("--on-bad-line=skip",)),
        f"ours, {MANY_WORKERS} workers asked for": partial(run_ours, file, options=(f"--workers={MANY_WORKERS}",)),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for turn in range(repeats):
        for k, (name, way) in enumerate(ways.items()):
            out = directory / f"{k}-{turn}"
            costs[name].append(way(out))
            if turn:
                shutil.rmtree(out)
    for k in (2, 3):
        same_result(directory / "0-0", directory / f"{k}-0")
    for name, turns in costs.items():
        seconds, cpu = (median(getattr(cost, field) for cost in turns) for field in ("seconds", "cpu"))
        peak = max(cost.peak for cost in turns)
        row(name, seconds, f"s   {cpu:.2f} s of CPU, {rows / seconds:,.0f} rows/s, peak {peak / 1e6:,.0f} MB")
    for name, ours, theirs, aim in (
        ("ours, of ten lines of polars", OURS, TEN, 1.5), ("with bad lines, of ours without", BAD, OURS, 1.3)
    ):
        for field in ("seconds", "cpu"):
            ratios = [getattr(a, field) / getattr(b, field) for a, b in zip(costs[ours], costs[theirs], strict=True)]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}; the aim: at most {aim}"
            row(f"{name}: {'time' if field == 'seconds' else 'CPU'}", median(ratios), f"×   ({spread})")


def bench_memory(small: Path, large: Path, rows: tuple[int, int], directory: Path) -> None:
    print("\npeak memory of preprocessing")
    peaks, ids = [], []
    for name, file in (("small", small), ("large", large)):
        peaks.append(run_ours(file, directory / f"memory-{name}").peak)
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
    parser.add_argument("--file", type=Path, help="preprocess this one, Criteo's text, in place of synthetic rows")
    parser.add_argument("--only", choices=PARTS, help="one part; --file has no other than preprocess")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each measurement; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=4, help="at most, for each way of reading")
    parser.add_argument("--scratch", type=Path, help="where to put some gigabytes; default: the temporary directory")
    options = parser.parse_args(arguments)
    for name, least in (("rows", 4), ("repeats", 1)):
        if getattr(options, name) < least:
            parser.error(f"argument --{name}: expected at least {least}, got {getattr(options, name)}")
    if options.file and options.only not in (None, "preprocess"):
        parser.error(f"argument --only: {options.only} takes synthetic rows; leave --file out")
    with user_errors("data.bench"), tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        directory = Path(scratch)
        if options.file:
            with options.file.open("rb") as lines:
                rows = sum(1 for _ in lines)
            bench_preprocess(options.file, rows, directory, options.repeats)
            return
        parts = [options.only] if options.only else PARTS
        sizes = (options.rows // 4, options.rows)
        files = [directory / f"raw{rows}" / "train.txt" for rows in sizes]
        for rows, file in zip(sizes, files, strict=True):
            if rows == options.rows or "memory" in parts:
                with contextlib.redirect_stdout(sys.stderr):
                    wanted = ("--rows", str(rows), "--out", str(file.parent), "--full-cardinalities", "--format", "tsv")
                    synthetic([*wanted])
        if "preprocess" in parts:
            bench_preprocess(files[1], options.rows, directory, options.repeats)
        if "memory" in parts:
            bench_memory(*files, sizes, directory)
        if "reading" in parts:
            out = directory / "0-0"
            if not out.exists():
                run_ours(files[1], out)
            bench_reading(out / "train", options.repeats, options.seconds)


if __name__ == "__main__":
    main()
