"""Raw files to Parquet: `python -m data.preprocess INPUT… --out DIR`; others than Criteo's by their `--schema`.

Reads what data.raw describes and writes what data.dataset describes.
"""

from __future__ import annotations

if __name__ == "__main__":
    from data.cli import run

    run("data.preprocess")

import os
import re
import sys
import threading
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from loguru import logger
from tqdm import tqdm

from data.cli import Parser, UserError, user_errors
from data.cluster import Workers, machine_memory, memory_of
from data.cluster import cluster as dask_cluster
from data.cluster import processes as dask_processes
from data.dataset import Ends, write_dataset
from data.files import by_numbers, check_once, out_of_order
from data.parse import parse
from data.pieces import Task, write_pieces
from data.raw import SPLIT, Block, LineError, blocks, check_file, pieces
from data.schema import CRITEO, IDS, SPLITS, Schema, read_schema
from data.vocabulary import BYTES_AN_ID
from data.vocabulary import WORKERS as COUNTING

# Bytes that a process takes beside the counts of ids: of one that does one task at a time, and of one with threads.
PROCESS, THREADS = 600 << 20, 900 << 20
LEAST = 1 << 20  # ids that are counted at a time


@dataclass
class Report:
    """What a run has read so far; shared by the threads that parse."""

    rows: int = 0
    bad: int = 0
    bar: tqdm | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rows: int, bad: list[LineError], read: int, further: int = 0) -> None:
        """further: bad lines without an error."""
        with self.lock:
            for error in bad[: max(0, 10 - self.bad)]:
                logger.warning("skipped {}", error)
            self.rows += rows
            self.bad += len(bad) + further
            if self.bar is not None:
                self.bar.update(read)
                rate = self.rows / max(self.bar.format_dict["elapsed"], 1e-9)
                self.bar.set_postfix_str(f"{self.rows:,} rows, {rate:,.0f} rows/s")


def preprocess(
    inputs: list[Path],
    out: Path,
    *,
    schema: Schema | None = None,
    split: str | None = None,
    seed: int = 0,
    min_count: int = 1,
    hash_size: int | None = None,
    on_bad_line: str = "raise",
    order: str = "warn",
    workers: int | None = None,
    processes: int | None = None,
    cluster: str | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> tuple[dict[str, int], int]:
    """Raw files, in the order given, to a data set in `out`; returns the rows of each split and the lines skipped.

    schema: of the files; without one they are of Criteo's forms.
    split: "order", "random" or "days": all files but the last are for training, the first half of its rows for
        validation and the rest for testing. Default: as the schema says, "order" without one.
    seed, min_count, hash_size, workers: see data.dataset.write_dataset.
    on_bad_line: "raise", or "skip" to leave out lines that are not of the format and count them.
    processes, cluster: so many processes, or those of Dask's scheduler at this address, do it instead of threads. The
        files that they write are the same, byte for byte.
    memory: bytes that a process may take (a cluster's: a worker's thread). The ids of a feature that has too many for
        it are counted range by range, each of which reads the column. Default: no bound for threads, else 0.6 of what
        the machine or the worker has.
    order: "warn" or "raise" where the split is by order or days and the files are not in that of the numbers in their
        names, as a shell has day_10 before day_2; "given": any order is right; "numbers": sort them so.

    Raises UserError naming file, line and field, and for a file that is named twice.
    """
    if on_bad_line not in ("raise", "skip"):
        raise ValueError(f"on_bad_line: expected 'raise' or 'skip', got {on_bad_line!r}")
    if order not in ("warn", "raise", "given", "numbers"):
        raise ValueError(f"order: expected 'warn', 'raise', 'given' or 'numbers', got {order!r}")
    inputs = [Path("/dev/stdin" if str(file) == "-" else file) for file in inputs]
    if inputs.count(Path("/dev/stdin")) > 1:
        raise UserError("-: stdin is named twice, and can be read once")
    for file in inputs:
        check_file(file)
    check_once(inputs)
    if any(not file.is_file() for file in inputs) and (processes or cluster):
        raise UserError("a pipe is read once, by one process: name files, or leave --processes and --cluster out")
    by = split or (schema.split.by if schema else "order")
    if by == "days" and len(inputs) < 2:
        raise UserError("--split days: expected files for training and one to hold out, found one file")
    if order == "numbers":
        inputs = _sorted(inputs)
    elif order != "given" and by in ("order", "days") and (wrong := out_of_order(inputs)):
        wrong += (
            "; a split by order holds out the last rows: name the files in that order, or say --order numbers (sort "
            "them so) or --order given (as they are)"
        )
        if order == "raise":
            raise UserError(wrong)
        logger.warning("{}", wrong)
    if by == "files":
        _check_names(inputs, schema)
    settings = {
        "split": {"column": "given", "files": "given", "days": "order"}.get(by, by), "seed": seed,
        "min_count": min_count, "hash_size": hash_size, "schema": schema or CRITEO,
    }
    report = Report()
    # What comes through a pipe has no size.
    total = sum(file.stat().st_size for file in inputs) if all(file.is_file() for file in inputs) else None
    bar = partial(  # disable=None: no bar where stderr is no terminal
        tqdm, total=total, unit="B", unit_scale=True, unit_divisor=1024, desc="preprocess",
        disable=None if progress else True,
    )
    if memory and not cluster:
        _check_there(memory, machine_memory(), "this machine")
        if processes and processes * memory > machine_memory():
            logger.warning("--memory: {} processes may take more, together, than this machine has", processes)
    if processes or cluster:
        tasks = _tasks(inputs, schema, by)
        ends = partial(_ends_of_days, inputs[-1], [task.name for task in tasks]) if by == "days" else None
        if processes:  # before they are started
            _check_memory(memory or memory_of(processes), PROCESS, "--memory" if memory else f"--processes {processes}")
        opened = dask_processes(processes, progress) if processes else dask_cluster(cluster, progress)
        with bar() as report.bar:
            rows = write_pieces(
                tasks, out, opened, report.add, skips=on_bad_line == "skip", ends=ends,
                most=partial(_most_of, memory), **settings,
            )
    else:
        files: list[Path] = []  # of each chunk
        most = None if memory is None else _most(memory, THREADS, "--memory", "this process") // COUNTING
        with bar() as report.bar:
            rows = write_dataset(
                _chunks(inputs, schema, by, on_bad_line, report, files), out, workers=workers,
                ends=partial(_ends_of_days, inputs[-1], files) if by == "days" else None, most=most, **settings,
            )
    for name, number in rows.items():
        if not number and by == "column":
            logger.warning("no row is for {}: no text of column {} says so", name, schema.split.column)
    return rows, report.bad


def _sorted(files: list[Path]) -> list[Path]:
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: expected a file, for --order numbers goes by names")
    return by_numbers(files)


def _check_names(files: list[Path], schema: Schema) -> None:
    """Raise UserError if a split by files gets none."""
    positions = {schema.split.of(file.name) for file in files}
    for position, name in enumerate(SPLITS):
        if position not in positions:
            patterns = ", ".join(getattr(schema.split, name, ["every other name"]))
            raise UserError(f"schema: [split] {name}: expected a file among the inputs for {patterns}, found none")


def _check_memory(memory: int, fixed: int, whose: str) -> None:
    """Raise UserError if so many bytes, of which `fixed` are needed for all else, hold too few counts of ids."""
    least = fixed + LEAST * BYTES_AN_ID
    if memory < least:
        raise UserError(f"{whose}: expected at least {least / 2**30:.2f} GiB, got {memory / 2**30:.2f}")


def _check_there(memory: int, limit: int, whose: str) -> None:
    """Raise UserError if --memory is more than there is."""
    if memory > limit:
        raise UserError(
            f"--memory: expected at most {limit / 2**30:.2f} GiB, what {whose} has, got {memory / 2**30:.2f}"
        )


def _most_of(memory: int | None, workers: Workers) -> int:
    """How many counts a task of these workers may hold, of --memory's bytes or of theirs."""
    if memory and workers.limit:
        _check_there(memory, workers.limit, f"each thread of a worker of {workers.name}")
    whose = "--memory" if memory else workers.name
    return _most(memory or workers.memory, PROCESS, whose, f"each task on {workers.name}")


def _most(memory: int, fixed: int, whose: str, who: str) -> int:
    """How many counts of ids may be held, with the arguments of `_check_memory`; says it."""
    _check_memory(memory, fixed, whose)
    most = (memory - fixed) // BYTES_AN_ID
    logger.info("{} takes at most {:.2f} GiB: it counts {:,} ids at a time", who, memory / 2**30, most)
    return most


def _chunks(
    inputs: list[Path], schema: Schema | None, by: str, on_bad_line: str, report: Report, files: list[Path]
) -> Iterator[Callable[[], pa.Table]]:
    """files: the file of each chunk that is given is appended."""
    for file in inputs:
        for block in blocks(file, schema=schema, split=by == "column"):
            files.append(file)
            yield partial(_table, block, on_bad_line, report, schema.split.of(file.name) if by == "files" else None)


def _tasks(inputs: list[Path], schema: Schema | None, by: str) -> list[Task]:
    found = [(file, piece) for file in inputs for piece in pieces(file, schema, split=by == "column")]
    return [
        Task(
            number, replace(piece, file=Path(os.path.abspath(file))), file,
            schema.split.of(file.name) if by == "files" else None,
        )
        for number, (file, piece) in enumerate(found)
    ]


def _ends_of_days(last: Path, files: list[Path], sizes: list[int]) -> Ends:
    """last: the file that is held out. files: that the rows are of."""
    train = sum(size for file, size in zip(files, sizes, strict=True) if file != last)
    if sum(sizes) and train in (0, sum(sizes)):
        wrong = f"{last}, which is held out, has no rows" if train else f"no file but {last} has rows"
        raise UserError(f"--split days: {wrong}")
    return train, train + (sum(sizes) - train) // 2


def _table(block: Block, on_bad_line: str, report: Report, split: int | None) -> pa.Table:
    """The block's rows; split: the one that all of them are of, if the file says it."""
    bad: list[str] = []
    table = parse(block, None if on_bad_line == "raise" else bad)
    report.add(table.num_rows, bad, block.read)
    if split is not None:
        table = table.append_column(pa.field(SPLIT, pa.int8()), pa.array(np.full(len(table), split, np.int8)))
    return table


def _bytes(text: str) -> int:
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([KMGT])i?B?", text)
    if not size:
        raise ArgumentTypeError(f"expected a size as 900MiB or 4GiB, got {text!r}")
    return int(float(size[1]) * 1024 ** (1 + "KMGT".index(size[2])))


def main(arguments: list[str] | None = None) -> None:
    parser = Parser(prog="python -m data.preprocess", description="Raw files to Parquet.")
    parser.add_argument(
        "inputs", nargs="+", type=Path, metavar="INPUT",
        help="train.txt, day_N or CSV; plain or .gz; a pipe too, as - or /dev/stdin",
    )
    parser.add_argument(
        "--schema", metavar="NAME|FILE",
        help="of the columns, in TOML (data/README.md), or one of data/schemas; default: Criteo's forms",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="must not exist, or be empty")
    parser.add_argument(
        "--split", choices=("order", "random", "days"),
        help="default: as the schema says, else order; days: the last file is for validation and testing",
    )
    parser.add_argument("--seed", type=int, default=0, help="of --split random")
    parser.add_argument("--min-count", type=int, default=1, help="leave rarer ids out of the metadata")
    parser.add_argument("--hash-size", type=int, metavar="N", help="write ids modulo N, as for the Terabyte logs")
    parser.add_argument("--on-bad-line", choices=("raise", "skip"), default="raise", help="default: %(default)s")
    parser.add_argument(
        "--order", choices=("given", "numbers"), default="raise",
        help="of files: as they are named, or by the numbers in their names (default: an error, where a split by order "
        "would hold out others than the last numbers)",
    )
    parser.add_argument("--workers", type=int, help="threads, at most 4; default: one more than cores")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--processes", type=int, metavar="N", help="of Dask, not threads; the same files")
    where.add_argument("--cluster", metavar="ADDRESS", help="of Dask's scheduler, as tcp://HOST:8786")
    parser.add_argument(
        "--memory", type=_bytes, metavar="SIZE",
        help="what a process may take, as 4GiB, however many ids there are; a cluster's: a worker's thread",
    )
    options = parser.parse_args(arguments)
    if options.workers is not None and (options.processes or options.cluster):
        parser.error("argument --workers: they are threads, and --processes and --cluster have none")
    if options.cluster == "":  # of a variable that is not set
        parser.error("argument --cluster: expected an address, got none")
    for name, least, most in (
        ("min_count", 1, None), ("seed", 0, None), ("workers", 1, None), ("processes", 1, None), ("hash_size", 1, IDS)
    ):
        value = getattr(options, name)
        if value is not None and (value < least or (most and value > most)):
            range_ = f"{least} to {most}" if most else f"at least {least}"
            parser.error(f"argument --{name.replace('_', '-')}: expected {range_}, got {value}")
    settings = {key: value for key, value in vars(options).items() if key not in ("inputs", "out", "schema")}
    with user_errors("data.preprocess"):
        logger.remove()
        tqdm.get_lock()  # now: of a signal that comes while the first message makes it, nothing would be left
        logger.add(lambda message: tqdm.write(message, file=sys.stderr, end=""), format="{level}: {message}")
        schema = read_schema(options.schema) if options.schema else None
        rows, bad = preprocess(options.inputs, options.out, schema=schema, progress=True, **settings)
        if bad:
            print(f"skipped {bad:,} bad lines")
        print(", ".join(f"{name}: {n:,} rows" for name, n in rows.items()), f"→ {options.out}")
