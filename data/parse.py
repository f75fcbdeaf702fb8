"""Criteo's raw text to columns.

A block of whole lines is cut into pieces that fit a core's cache. Polars parses a piece; a piece that it rejects is cut
further, and the few lines in which the fault lies are read one by one, to name the line and the field that are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa

from data.cli import UserError
from data.criteo import COLUMNS, DENSE, LABEL, MISSING, SCHEMA, SPARSE
from data.raw import BadLine, Block, Layout, read_line, without_quotes

PIECE = 1 << 21  # bytes of text that are parsed at a time
SMALLEST = 1 << 14  # bytes of a rejected piece that are read line by line


def parse(block: Block, bad: list[str] | None = None) -> pa.Table:
    """The block's rows, with the columns of data.criteo.SCHEMA that its layout has.

    bad: a message is appended for each line that is not of the format, which is left out. Without it, such a line
    raises UserError with the message.
    """
    schema = pa.schema([SCHEMA.field(column) for column in _columns(block.layout)])
    frames = list(_frames(block, 0, len(block.text), PIECE, bad))
    table = pl.concat(frames, rechunk=False).to_arrow() if frames else schema.empty_table()
    return pa.Table.from_arrays(table.columns, schema=schema)


def _columns(layout: Layout) -> list[str]:
    """The layout's columns, in the order of data.criteo.COLUMNS."""
    return [column for column in COLUMNS if column in layout.columns]


def _frames(block: Block, start: int, stop: int, size: int, bad: list[str] | None) -> Iterator[pl.DataFrame]:
    """The rows in block.text[start:stop], parsed in pieces of about `size` bytes; bad as in `parse`."""
    while start < stop:
        end = block.text.find(b"\n", start + size, stop) + 1 or stop
        try:
            yield _parse(block.text[start:end], block.layout)
        except _Rejected:
            if size > SMALLEST:
                yield from _frames(block, start, end, size // 16, bad)
            else:
                yield _read_lines(block, start, end, bad)
        start = end


def _read_lines(block: Block, start: int, stop: int, bad: list[str] | None) -> pl.DataFrame:
    """As _frames, one line after the other."""
    text = block.text[start:stop].removesuffix(b"\n")
    if block.layout.header:
        text = without_quotes(text)
    rows = []
    for number, line in enumerate(text.split(b"\n"), start=block.line + block.text.count(b"\n", 0, start)):
        try:
            rows.append(read_line(line, number, block.layout))
        except BadLine as error:
            message = f"{block.file}:{number}: {error}"
            if bad is None:
                raise UserError(message) from None
            bad.append(message)
    types = dict.fromkeys(COLUMNS, pl.Int64) | {LABEL: pl.Int8}
    return pl.DataFrame(rows, schema={column: types[column] for column in _columns(block.layout)})


class _Rejected(Exception):
    """Text in which something is not as usual; read line by line it may still be right."""


def _parse(text: bytes, layout: Layout) -> pl.DataFrame:
    if layout.header:
        text = without_quotes(text)
    codes = np.frombuffer(text, np.uint8)
    rows = np.count_nonzero(codes == ord("\n")) + (not text.endswith(b"\n"))
    # Polars fills short lines with nulls, and takes +1 for a number and a carriage return for a part of a field.
    if np.count_nonzero(codes == ord(layout.delimiter)) != rows * (len(layout.columns) - 1):
        raise _Rejected
    if b"+" in text or (b"\r" in text and text.count(b"\r") != text.count(b"\r\n")):
        raise _Rejected
    label = [LABEL] if LABEL in layout.columns else []
    try:
        try:
            raw = _read_csv(text, layout, pl.Int64)
        except pl.exceptions.PolarsError:  # perhaps whole numbers written as "260.0"
            raw = _read_csv(text, layout, pl.String).with_columns(
                pl.col(*label, *DENSE).str.replace(r"^ *(-?[0-9]+)(\.0*)? *$", "${1}").cast(pl.Int64)
            )
        frame = raw.select(
            pl.col(label).cast(pl.Int8),
            pl.col(DENSE),
            pl.col(SPARSE).str.to_integer(base=16, dtype=pl.UInt32).cast(pl.Int64).fill_null(MISSING),
        )
    except pl.exceptions.PolarsError:
        raise _Rejected from None
    if len(frame) != rows or any(frame[name].is_between(0, 1).sum() != rows for name in label):
        raise _Rejected
    return frame


def _read_csv(text: bytes, layout: Layout, count_type: type[pl.DataType]) -> pl.DataFrame:
    schema = {
        column or f"ignored {i}": count_type if column in (LABEL, *DENSE) else pl.String
        for i, column in enumerate(layout.columns)
    }
    return pl.read_csv(
        text, separator=layout.delimiter, has_header=False, schema=schema, quote_char=None, low_memory=True
    ).select(_columns(layout))
