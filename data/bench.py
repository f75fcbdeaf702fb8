"""What preprocessing and reading cost: `python -m data.bench`. Ratios to plain baselines, measured in one run.

Rows are synthetic, with Criteo's full cardinalities (data.synthetic). Baselines, each the straightforward way:

preprocessing   one process: pandas.read_csv, int(value, 16) for each value, value_counts for each feature,
                to_parquet; and the same converting distinct values only.
reading         a map-style Dataset that indexes one row at a time, behind a DataLoader with num_workers=0.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset

from data.cli import Parser, user_errors
from data.criteo import COLUMNS, DENSE, LABEL, MISSING, SPARSE, CriteoBatches, read_metadata
from data.preprocess import preprocess
from data.synthetic import main as synthetic

BATCH = 2048


def baseline_preprocess(file: Path, out: Path, *, distinct_only: bool) -> None:
    """pandas in one process: the first 6/7, 1/14 and 1/14 of the rows to Parquet, and the ids by frequency to JSON."""
    frame = pd.read_csv(file, sep="\t", header=None, names=list(COLUMNS), dtype=dict.fromkeys(SPARSE, str))

    def number(value: str | float) -> int:
        return int(value, 16) if isinstance(value, str) else MISSING

    for name in SPARSE:
        if distinct_only:
            frame[name] = frame[name].map({value: number(value) for value in frame[name].unique()})
        else:
            frame[name] = frame[name].map(number)
    rows = len(frame)
    splits = {"train": frame[: rows * 6 // 7], "validation": frame[rows * 6 // 7 : rows * 13 // 14]}
    splits["test"] = frame[rows * 13 // 14 :]
    metadata = {}
    for name in SPARSE:
        counts = splits["train"][name].value_counts()
        ids = [value for value in counts.index.tolist() if value != MISSING]
        metadata[name] = {"cardinality": len(ids), "tokenizer_values": ids}
    for split, part in splits.items():
        (out / split).mkdir(parents=True)
        part.astype(dict.fromkeys(DENSE, "Int64")).to_parquet(out / split / "part.parquet", index=False)
    (out / "metadata.json").write_text(json.dumps(metadata))


class RowDataset(Dataset):
    """One row an item, from tensors that are in memory and transformed already."""

    def __init__(self, directory: Path):
        frame = pq.read_table(directory, columns=list(COLUMNS)).to_pandas()
        dense = np.log1p(frame[list(DENSE)].fillna(0).to_numpy(np.float32).clip(min=0))
        self.labels = torch.from_numpy(frame[LABEL].to_numpy(np.float32))
        self.dense = torch.from_numpy(dense)
        self.sparse = torch.from_numpy(frame[list(SPARSE)].to_numpy(np.int64, copy=True))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.labels[row], self.dense[row], self.sparse[row]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def same_result(ours: Path, baseline: Path) -> None:
    """Raise unless both directories hold the same rows and the same ids for each feature."""
    for split in ("train", "validation", "test"):
        a, b = (pq.read_table(d / split, columns=list(COLUMNS)).to_pandas().astype("Int64") for d in (ours, baseline))
        if not a.equals(b):
            raise AssertionError(f"{split}: the baseline's rows differ")
    a, b = read_metadata(ours), read_metadata(baseline)
    for name in SPARSE:
        if set(a[name].tokenizer_values) != set(b[name].tokenizer_values):
            raise AssertionError(f"{name}: the baseline's ids differ")


def rows_per_second(batches: Iterable, limit_s: float) -> float:
    """Rows a second over one pass, or over as much of it as comes within limit_s seconds."""
    rows, start = 0, time.perf_counter()
    for labels, _, _ in batches:
        rows += len(labels)
        if time.perf_counter() - start > limit_s:
            break
    return rows / (time.perf_counter() - start)


def peak_memory(file: Path, out: Path) -> int:
    """Peak resident bytes of `python -m data.preprocess` on the file, in a process of its own."""
    # The kernel's own high-water mark of this process image: getrusage's would begin at that of the parent.
    code = (
        "import re, sys; from data.preprocess import main; main(sys.argv[1:]);"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(file), "--out", str(out)],
        capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return int(child.stdout.split()[-1]) * 1024


@contextlib.contextmanager
def timed_table(title: str) -> Iterator[Callable[[str, float, str], None]]:
    print(f"\n{title}")
    yield lambda name, value, unit: print(f"  {name:<58} {value:>12,.2f} {unit}", flush=True)


def bench_preprocess(file: Path, rows: int, directory: Path, repeats: int) -> None:
    with timed_table(f"preprocessing {rows:,} rows, full cardinalities (best of {repeats})") as row:
        def best(name: str, work: Callable[[Path], object]) -> float:
            return min(seconds(lambda i=i: work(directory / f"{name}{i}")) for i in range(repeats))

        ours = best("ours", lambda out: preprocess([file], out))
        naive = best("each", lambda out: baseline_preprocess(file, out, distinct_only=False))
        distinct = best("distinct", lambda out: baseline_preprocess(file, out, distinct_only=True))
        same_result(directory / "ours0", directory / "each0")
        same_result(directory / "ours0", directory / "distinct0")
        row("data.preprocess", ours, f"s   {rows / ours:,.0f} rows/s")
        row("pandas, int(value, 16) for each value", naive, "s")
        row("pandas, int(value, 16) for each distinct value", distinct, "s")
        row("ratio, each value", naive / ours, "×   (the aim: at least 4)")
        row("ratio, each distinct value", distinct / ours, "×")


def bench_memory(small: Path, large: Path, rows: tuple[int, int], directory: Path) -> None:
    with timed_table("peak memory of preprocessing") as row:
        peaks, ids = [], []
        for name, file in (("small", small), ("large", large)):
            peaks.append(peak_memory(file, directory / f"memory-{name}"))
            ids.append(sum(f.cardinality for f in read_metadata(directory / f"memory-{name}").values()))
        for n, peak, distinct in zip(rows, peaks, ids, strict=True):
            row(f"{n:,} rows, {distinct:,} distinct ids", peak / 1e6, "MB")
        limit = 1.2 * peaks[0] + 32 * (ids[1] - ids[0])
        row("limit: the first + 20 % + 32 bytes a further distinct id", limit / 1e6, "MB")
        row("the second, of its limit", peaks[1] / limit, "    (the aim: at most 1)")


def bench_reading(directory: Path, repeats: int, limit_s: float) -> None:
    with timed_table(f"reading, batch {BATCH} (best of {repeats})") as row:
        dataset = RowDataset(directory)
        for shuffle, aim in ((True, 15), (False, 20)):
            name = "shuffled" if shuffle else "in order"
            rates = [
                (
                    rows_per_second(DataLoader(dataset, BATCH, shuffle=shuffle, num_workers=0), limit_s),
                    rows_per_second(CriteoBatches(directory, BATCH, shuffle=shuffle), limit_s),
                )
                for _ in range(repeats)
            ]
            rate, ours = map(max, zip(*rates, strict=True))
            row(f"{name}: map-style Dataset, one row an item", rate, "rows/s")
            row(f"{name}: CriteoBatches", ours, "rows/s")
            row(f"{name}: ratio", ours / rate, f"×   (the aim: at least {aim})")


def main(arguments: list[str] | None = None) -> None:
    parser = Parser(prog="python -m data.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="default: %(default)s; memory also at four times")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement; the best counts")
    parser.add_argument("--seconds", type=float, default=4, help="at most, for each way of reading")
    parser.add_argument("--scratch", type=Path, help="where to put some gigabytes; default: the temporary directory")
    options = parser.parse_args(arguments)
    with user_errors("data.bench"), tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        directory = Path(scratch)
        files = {}
        for factor in (1, 4):
            out, rows = directory / f"raw{factor}", factor * options.rows
            with contextlib.redirect_stdout(sys.stderr):
                synthetic(["--rows", str(rows), "--out", str(out), "--full-cardinalities", "--format", "tsv"])
            files[factor] = out / "train.txt"
        bench_preprocess(files[1], options.rows, directory, options.repeats)
        bench_memory(files[1], files[4], (options.rows, 4 * options.rows), directory)
        bench_reading(directory / "memory-large" / "train", options.repeats, options.seconds)


if __name__ == "__main__":
    main()
