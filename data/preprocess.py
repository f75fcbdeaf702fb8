"""Raw files to Parquet: `python -m data.preprocess INPUT… --out DIR`; others than Criteo's by their `--schema`.

Reads what data.raw describes and writes what data.dataset describes.
"""

from __future__ import annotations

if __name__ == "__main__":
    from data.cli import run

    run("data.preprocess")

import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from loguru import logger
from tqdm import tqdm

from data.cli import Parser, UserError, user_errors
from data.dataset import write_dataset
from data.files import by_numbers, check_once, out_of_order
from data.parse import parse
from data.raw import SPLIT, Block, blocks, check_file
from data.schema import CRITEO, IDS, SPLITS, Schema, read_schema


@dataclass
class Report:
    """What a run has read so far; shared by the threads that parse."""

    rows: int = 0
    bad: int = 0
    bar: tqdm | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rows: int, bad: list[str], read: int) -> None:
        with self.lock:
            for message in bad[: max(0, 10 - self.bad)]:
                logger.warning("skipped {}", message)
            self.rows += rows
            self.bad += len(bad)
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
    progress: bool = False,
) -> tuple[dict[str, int], int]:
    """Raw files, in the order given, to a data set in `out`; returns the rows of each split and the lines skipped.

    schema: of the files; without one they are of Criteo's forms.
    split: "order" or "random"; default: as the schema says, "order" without one.
    seed, min_count, hash_size, workers: see data.dataset.write_dataset.
    on_bad_line: "raise", or "skip" to leave out lines that are not of the format and count them.
    order: "warn" or "raise" where the split is by order and the files are not in that of the numbers in their names,
        as a shell has day_10 before day_2; "given": any order is right; "numbers": sort them so.

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
    by = split or (schema.split.by if schema else "order")
    if order == "numbers":
        inputs = _sorted(inputs)
    elif order != "given" and by == "order" and (wrong := out_of_order(inputs)):
        wrong += (
            "; a split by order holds out the last rows: name the files in that order, or say --order numbers (sort "
            "them so) or --order given (as they are)"
        )
        if order == "raise":
            raise UserError(wrong)
        logger.warning("{}", wrong)
    if by == "files":
        _check_names(inputs, schema)
    report = Report()
    chunks = (
        partial(_table, block, on_bad_line, report, schema.split.of(file.name) if by == "files" else None)
        for file in inputs
        for block in blocks(file, schema=schema, split=by == "column")
    )
    # What comes through a pipe has no size.
    total = sum(file.stat().st_size for file in inputs) if all(file.is_file() for file in inputs) else None
    with tqdm(  # disable=None: no bar where stderr is no terminal
        total=total, unit="B", unit_scale=True, unit_divisor=1024, desc="preprocess", disable=None if progress else True
    ) as report.bar:
        rows = write_dataset(
            chunks, out, split="given" if by in ("column", "files") else by, seed=seed, min_count=min_count,
            hash_size=hash_size, workers=workers, schema=schema or CRITEO,
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


def _table(block: Block, on_bad_line: str, report: Report, split: int | None) -> pa.Table:
    """The block's rows; split: the one that all of them are of, if the file says it."""
    bad: list[str] = []
    table = parse(block, None if on_bad_line == "raise" else bad)
    report.add(table.num_rows, bad, block.read)
    if split is not None:
        table = table.append_column(pa.field(SPLIT, pa.int8()), pa.array(np.full(len(table), split, np.int8)))
    return table


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
    parser.add_argument("--split", choices=("order", "random"), help="default: as the schema says, else order")
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
    options = parser.parse_args(arguments)
    for name, least, most in (
        ("min_count", 1, None), ("seed", 0, None), ("workers", 1, None), ("hash_size", 1, IDS)
    ):
        value = getattr(options, name)
        if value is not None and (value < least or (most and value > most)):
            range_ = f"{least} to {most}" if most else f"at least {least}"
            parser.error(f"argument --{name.replace('_', '-')}: expected {range_}, got {value}")
    settings = {key: value for key, value in vars(options).items() if key not in ("inputs", "out", "schema")}
    with user_errors("data.preprocess"):
        logger.remove()
        logger.add(lambda message: tqdm.write(message, file=sys.stderr, end=""), format="{level}: {message}")
        schema = read_schema(options.schema) if options.schema else None
        rows, bad = preprocess(options.inputs, options.out, schema=schema, progress=True, **settings)
        if bad:
            print(f"skipped {bad:,} bad lines")
        print(", ".join(f"{name}: {n:,} rows" for name, n in rows.items()), f"→ {options.out}")
