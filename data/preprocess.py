"""Criteo's raw files to Parquet: `python -m data.preprocess INPUT… --out DIR`.

Reads Kaggle's train.txt, the Terabyte logs' day_N (tab-separated, no header: label, I1..I13, C1..C26), or CSV with a
header of these names; plain or gzip-compressed. What it writes: see data.dataset.

The input is cut into blocks of whole lines. Arrow parses a block at memory speed, on all cores; a block that it
rejects is read again line by line, to name the line and the field that are wrong.
"""

from __future__ import annotations

import gzip
import re
import sys
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from loguru import logger
from tqdm import tqdm

from data.cli import Parser, UserError, user_errors
from data.criteo import COLUMNS, DENSE, IDS, LABEL, MISSING, SCHEMA, SPARSE
from data.dataset import write_dataset

RAW = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
BLOCK = 1 << 25  # bytes of text parsed at a time, about 140,000 rows

_RAW_OF = dict(zip(COLUMNS, RAW, strict=True))
_WHOLE = re.compile(r"-?[0-9]+(\.0*)?")
_HEX = re.compile(r"[0-9a-fA-F]+")


@dataclass(frozen=True)
class Layout:
    """How a file's fields lie: the delimiter, and for each field its column of data.criteo (None: ignored)."""

    delimiter: str
    columns: tuple[str | None, ...]
    header: bool


@dataclass(frozen=True)
class _Block:
    file: Path
    layout: Layout
    line: int  # number of its first line in the file, from 1
    text: bytes
    read: int  # bytes of the file (compressed, if it is) that it stands for


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
    split: str = "order",
    seed: int = 0,
    min_count: int = 1,
    on_bad_line: str = "raise",
    workers: int | None = None,
    progress: bool = False,
) -> tuple[dict[str, int], int]:
    """Raw files, in the order given, to a data set in `out`; returns the rows of each split and the lines skipped.

    split, seed, min_count, workers: see data.dataset.write_dataset.
    on_bad_line: "raise", or "skip" to leave out lines that are not of the format and count them.

    Raises UserError naming file, line and field.
    """
    if on_bad_line not in ("raise", "skip"):
        raise ValueError(f"on_bad_line: expected 'raise' or 'skip', got {on_bad_line!r}")
    inputs = [Path(file) for file in inputs]
    for file in inputs:
        if not file.is_file():
            raise UserError(f"{file}: {'is not a file' if file.exists() else 'no such file'}")
    report = Report()
    chunks = (partial(_table, block, on_bad_line, report) for file in inputs for block in _blocks(file))
    if not progress:
        return write_dataset(chunks, out, split=split, seed=seed, min_count=min_count, workers=workers), report.bad
    total = sum(file.stat().st_size for file in inputs)
    with tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, desc="preprocess") as report.bar:
        return write_dataset(chunks, out, split=split, seed=seed, min_count=min_count, workers=workers), report.bad


def _blocks(file: Path) -> Iterator[_Block]:
    with file.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        try:
            first = stream.readline(1 << 20)
            if not first.strip():
                raise UserError(f"{file}: {'empty' if not first else 'line 1 is empty'}; expected Criteo rows")
            layout = _layout(file, first.decode("utf-8-sig", errors="replace").rstrip("\r\n"))
            line, text = (2, b"") if layout.header else (1, first.removeprefix(b"\xef\xbb\xbf"))
            done = 0
            while more := stream.read(BLOCK):
                text += more
                # Up to the last newline; what follows it belongs to the next block.
                cut = text.rfind(b"\n") + 1
                if not cut:
                    raise UserError(f"{file}:{line}: no end of line within {len(text):,} bytes; expected Criteo rows")
                block, text = text[:cut], text[cut:]
                read, done = raw.tell() - done, raw.tell()
                yield _Block(file, layout, line, block, read)
                line += block.count(b"\n")
            if text:
                yield _Block(file, layout, line, text, raw.tell() - done)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{file}: truncated or damaged gzip file: {error}") from None


def _layout(file: Path, first: str) -> Layout:
    delimiter = "\t" if "\t" in first else ","
    names = [name.strip().casefold() for name in first.split(delimiter)]
    if not {"label", "id", "i1"} & set(names):
        if delimiter == ",":
            raise UserError(
                f"{file}:1: expected tabs between fields or a CSV header label,I1,…,I13,C1,…,C26; found {_short(first)}"
            )
        return Layout(delimiter, COLUMNS, header=False)
    column_of = {raw.casefold(): column for column, raw in _RAW_OF.items()}
    columns: list[str | None] = []
    for name in names:
        if name != "id" and name not in column_of:
            raise UserError(f"{file}:1: unknown column {name!r}; expected label, I1 to I13, C1 to C26, and perhaps Id")
        if name in names[: len(columns)]:
            raise UserError(f"{file}:1: column {name!r} stands there twice")
        columns.append(column_of.get(name))
    missing = [_RAW_OF[column] for column in COLUMNS if column not in columns]
    if missing:
        hint = "; unlabelled data (Kaggle's test file) cannot be preprocessed" if missing == ["label"] else ""
        raise UserError(f"{file}:1: column {', '.join(missing)} is missing{hint}")
    return Layout(delimiter, tuple(columns), header=True)


class _Rejected(Exception):
    """A block that the fast parser cannot read."""


def _table(block: _Block, on_bad_line: str, report: Report) -> pa.Table:
    """The block's rows with data.criteo.SCHEMA."""
    bad: list[str] = []
    try:
        table = _parse(block.text, block.layout)
    except _Rejected as rejected:
        lines, bad = _examine(block, stop=on_bad_line == "raise")
        if bad and on_bad_line == "raise":
            raise UserError(bad[0]) from None
        try:
            table = _parse(b"".join(lines), block.layout)
        except _Rejected:
            last = block.line + block.text.count(b"\n")
            raise UserError(f"{block.file}: lines {block.line} to {last}: {rejected}") from None
    report.add(table.num_rows, bad, block.read)
    return table


def _parse(text: bytes, layout: Layout) -> pa.Table:
    if not text:
        return SCHEMA.empty_table()
    # Arrow reads 0x10 as a whole number, and a lone carriage return as the end of a line.
    if b"x" in text or b"X" in text or text.count(b"\r") != text.count(b"\r\n"):
        raise _Rejected("an x or a lone carriage return")
    try:
        raw = _read_csv(text, layout, pa.int64())
    except pa.ArrowInvalid:
        try:
            raw = _read_csv(text, layout, pa.string())
        except pa.ArrowInvalid as error:
            raise _Rejected(str(error)) from None
    if raw.num_rows != text.count(b"\n") + (not text.endswith(b"\n")):
        raise _Rejected("lines and rows differ in number")
    try:
        label = _whole(raw.column(LABEL))
        if label.null_count or not pc.all(pc.is_in(label, pa.array([0, 1], pa.int64()))).as_py():
            raise _Rejected("a label that is neither 0 nor 1")
        arrays = [label.cast(pa.int8()), *(_whole(raw.column(name)) for name in DENSE)]
    except pa.ArrowInvalid as error:
        raise _Rejected(str(error)) from None
    arrays += [pa.array(_hex_ids(raw.column(name).combine_chunks())) for name in SPARSE]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _read_csv(text: bytes, layout: Layout, count_type: pa.DataType) -> pa.Table:
    names = [column or "ignored" for column in layout.columns]
    types = {name: pa.string() for name in names} | {name: count_type for name in (LABEL, *DENSE)}
    return pyarrow.csv.read_csv(
        pa.BufferReader(text),
        # One block: the cores work on different blocks of the file already.
        read_options=pa.csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False),
        parse_options=pa.csv.ParseOptions(delimiter=layout.delimiter, quote_char=False, ignore_empty_lines=False),
        convert_options=pa.csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True, include_columns=list(COLUMNS)
        ),
    )


def _whole(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """int64; "260.0" is a whole number, "1.5" raises ArrowInvalid."""
    if pa.types.is_string(column.type):
        column = pc.replace_substring_regex(column, r"^\s*(-?[0-9]+)(\.0*)?\s*$", r"\1").cast(pa.int64())
    return column


# The value of an ASCII hex digit, 255 for any other byte.
_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_NIBBLE[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def _hex_ids(column: pa.StringArray) -> np.ndarray:
    """int64 ids of up to 8 hex digits each; MISSING for null."""
    rows = len(column)
    ids = np.full(rows, MISSING, np.int64)
    if column.null_count == rows:
        return ids
    _, offsets, data = column.buffers()
    offsets = np.frombuffer(offsets, np.int32)[column.offset : column.offset + rows + 1]
    lengths = np.diff(offsets)
    digits = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    present = lengths > 0
    lengths = lengths[present]
    if lengths.max() > 8:
        raise _Rejected("a category of more than 8 digits")
    if lengths.min() < 8:  # right-align: the text's bytes, in order, fill the last places of each row of eight
        padded = np.full((len(lengths), 8), ord("0"), np.uint8)
        padded[np.arange(8) >= 8 - lengths[:, None]] = digits
        digits = padded.reshape(-1)
    nibbles = _NIBBLE[digits]
    if nibbles.max() > 15:
        raise _Rejected("a category that is not hexadecimal")
    octets = nibbles[0::2] << 4 | nibbles[1::2]
    ids[present] = octets.view(">u4")
    return ids


def _examine(block: _Block, stop: bool) -> tuple[list[bytes], list[str]]:
    """The block's good lines, and a message for each bad one; with `stop` only up to the first bad one."""
    good, bad = [], []
    lines = block.text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, start=block.line):
        wrong = _wrong(line.removesuffix(b"\r"), block.layout)
        if wrong:
            bad.append(f"{block.file}:{number}: {wrong}")
            if stop:
                break
        else:
            good.append(line + b"\n")
    return good, bad


def _wrong(line: bytes, layout: Layout) -> str | None:
    """What is wrong with the line, or None."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error}"
    if not text:
        return "the line is empty"
    fields, expected = text.split(layout.delimiter), len(layout.columns)
    if len(fields) != expected:
        separated = "tab" if layout.delimiter == "\t" else "comma"
        hint = "; this looks like Kaggle's unlabelled test.txt" if (len(fields), expected) == (39, 40) else ""
        return f"expected {expected} {separated}-separated fields, found {len(fields)}{hint}"
    for column, value in zip(layout.columns, fields, strict=True):
        if column is None or (not value and column != LABEL):
            continue
        if column in SPARSE:
            if not _HEX.fullmatch(value):
                return f"field {_RAW_OF[column]}: expected hexadecimal digits, found {_short(value)}"
            if int(value, 16) >= IDS or len(value) > 8:
                return f"field {_RAW_OF[column]}: expected an id below 2^32 (8 hex digits), found {_short(value)}"
            continue
        value = value.strip(" ")
        if not _WHOLE.fullmatch(value):
            expected_value = "0 or 1" if column == LABEL else "a whole number"
            return f"field {_RAW_OF[column]}: expected {expected_value}, found {_short(value)}"
        number = int(value.split(".")[0])
        if column == LABEL and number not in (0, 1):
            return f"field label: expected 0 or 1, found {_short(value)}"
        if not -(1 << 63) <= number < 1 << 63:
            return f"field {_RAW_OF[column]}: expected a 64-bit number, found {_short(value)}"
    return "a carriage return within the line" if "\r" in text else None


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")


def main(arguments: list[str] | None = None) -> None:
    parser = Parser(prog="python -m data.preprocess", description="Criteo's raw files to Parquet.")
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUT", help="train.txt, day_N or CSV; plain or .gz")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="must not exist, or be empty")
    parser.add_argument("--split", choices=("order", "random"), default="order", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of --split random")
    parser.add_argument("--min-count", type=int, default=1, help="leave rarer ids out of the metadata")
    parser.add_argument("--on-bad-line", choices=("raise", "skip"), default="raise", help="default: %(default)s")
    parser.add_argument("--workers", type=int, help="threads; default: all cores")
    options = parser.parse_args(arguments)
    for name, least in (("min_count", 1), ("seed", 0), ("workers", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f"argument --{name.replace('_', '-')}: expected at least {least}, got {value}")
    settings = {key: value for key, value in vars(options).items() if key not in ("inputs", "out")}
    with user_errors("data.preprocess"):
        logger.remove()
        logger.add(lambda message: tqdm.write(message, file=sys.stderr, end=""), format="{level}: {message}")
        rows, bad = preprocess(options.inputs, options.out, progress=True, **settings)
        if bad:
            print(f"skipped {bad:,} bad lines")
        print(", ".join(f"{name}: {n:,} rows" for name, n in rows.items()), f"→ {options.out}")


if __name__ == "__main__":
    main()
