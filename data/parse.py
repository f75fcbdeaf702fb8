"""Raw text to columns.

A block of whole lines is cut into pieces, so that little of it is in memory as single texts. Polars parses a piece; a
piece that it rejects is cut further, and the few lines in which the fault lies are read one by one, to name the line
and the field that are wrong.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa

from data.raw import SPLIT, BadLine, Block, Layout, LineError, read_line
from data.schema import CATEGORIES, LABEL, MISSING, Column, Kind

PIECE = 1 << 22  # bytes of text that are parsed at a time; what is fixed of it takes as long as 300 KB do
SMALLEST = 1 << 14  # bytes of a rejected piece that are read line by line

_NUMBER = r"^ *(-?[0-9]+)(?:\.0*)? *$"
_DIGITS = {Kind.HEX: r"^[0-9a-fA-F]+$", Kind.INTEGER: r"^[0-9]+$"}
_BASE = {Kind.HEX: 16, Kind.INTEGER: 10}


def parse(block: Block, bad: list[LineError] | None = None) -> pa.Table:
    """The block's rows, with the columns of its layout's schema that the layout has, and perhaps data.raw.SPLIT.

    bad: an error is appended for each line that is not of the format, which is left out. Without it, it is raised.
    """
    schema = pa.schema([block.layout.schema.arrow.field(column) for column in block.layout.names])
    if block.layout.split is not None:
        schema = schema.append(pa.field(SPLIT, pa.int8(), nullable=False))
    frames = list(_frames(block, 0, len(block.text), PIECE, bad))
    table = pl.concat(frames, rechunk=False).to_arrow() if frames else schema.empty_table()
    columns = [column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _frames(block: Block, start: int, stop: int, size: int, bad: list[LineError] | None) -> Iterator[pl.DataFrame]:
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


def _read_lines(block: Block, start: int, stop: int, bad: list[LineError] | None) -> pl.DataFrame:
    """As _frames, one line after the other."""
    text = block.text[start:stop].removesuffix(b"\n")
    rows = []
    for number, line in enumerate(text.split(b"\n"), start=block.line + block.text.count(b"\n", 0, start)):
        try:
            rows.append(read_line(line, number, block.layout))
        except BadLine as problem:
            error = LineError(block.file, number, str(problem))
            if bad is None:
                raise error from None
            bad.append(error)
    types = {name: _type(block.layout.schema.of[name]) for name in block.layout.names}
    if block.layout.split is not None:
        types[SPLIT] = pl.Int8
    return pl.DataFrame(rows, schema=types)


def _type(column: Column) -> pl.DataType | type[pl.DataType]:
    if column.kind is Kind.LABEL:
        return pl.Int8
    return pl.Int64 if column.separator is None else pl.List(pl.Int64)


class _Rejected(Exception):
    """Text in which something is not as usual; read line by line it may still be right."""


def _parse(text: bytes, layout: Layout) -> pl.DataFrame:
    quotes = layout.quotes and b'"' in text
    codes = np.frombuffer(text, np.uint8)
    ends, delimiters = codes == ord("\n"), codes == ord(layout.delimiter)
    rows = np.count_nonzero(ends) + (not text.endswith(b"\n"))
    if quotes and not _quotes_fit(codes, ends, delimiters):
        raise _Rejected
    # Polars fills short lines with nulls, and takes a carriage return for a part of a field.
    if np.count_nonzero(delimiters) != rows * (len(layout.columns) - 1):
        raise _Rejected
    if b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
        raise _Rejected
    # Polars takes "+1" and a tab before 1 for a number, but both may stand in a text.
    plus, tab = b"+" in text, b"\t" in text and (quotes or layout.delimiter != "\t")
    exact = plus or tab
    if plus and not any(column.kind is Kind.TEXT for column in layout.schema.columns):
        raise _Rejected
    try:
        try:
            raw = _read_csv(text, layout, pl.String if exact else pl.Int64, quotes)
        except pl.exceptions.PolarsError:  # perhaps whole numbers written as "260.0"
            raw = _read_csv(text, layout, pl.String, quotes)
        frame = _columns(raw, layout, exact)
    except pl.exceptions.PolarsError:
        raise _Rejected from None
    if len(frame) != rows or (LABEL in frame.columns and frame[LABEL].is_between(0, 1).sum() != rows):
        raise _Rejected
    return frame


def _quotes_fit(codes: np.ndarray, ends: np.ndarray, delimiters: np.ndarray) -> bool:
    """Whether quotes stand where data.raw has them, which is not all that polars takes. Clears delimiters within them.

    The second of two quotes in a field ends a part of it and begins the next. The arrays are written over, for fresh
    memory costs as much as what is done in it.
    """
    closing = codes == ord('"')
    inside = np.bitwise_xor.accumulate(closing.view(np.uint8)).view(bool)
    opening = closing & inside
    sides = ends | delimiters
    sides |= closing
    closing ^= opening
    if (returns := codes == ord("\r")).any():
        sides |= returns
    np.greater(delimiters, inside, out=delimiters)
    return not (
        inside[-1]
        or np.greater(opening[1:], sides[:-1], out=opening[1:]).any()
        or np.greater(closing[:-1], sides[1:], out=closing[:-1]).any()
        or np.logical_and(ends, inside, out=inside).any()
    )


def _read_csv(text: bytes, layout: Layout, number: type[pl.DataType], quotes: bool) -> pl.DataFrame:
    """The fields as they stand, numbers as this type, by their columns' names; the split's field as SPLIT."""
    kinds = layout.schema.of
    names = [column or f"/ignored {i}" for i, column in enumerate(layout.columns)]
    types = {
        name: number if name in kinds and kinds[name].kind not in CATEGORIES and i != layout.split else pl.String
        for i, name in enumerate(names)
    }
    missing, later = layout.schema.missing, [""]
    if quotes:  # polars compares fields before it makes one quote of two
        later += [one for one in missing if '"' in one]
    raw = pl.read_csv(
        text, separator=layout.delimiter, has_header=False, schema=types, quote_char='"' if quotes else None,
        null_values=[one for one in missing if one not in later] or None, low_memory=True,
    )
    if quotes:  # an empty field in quotes is a text of no letters
        for one in later:
            raw = raw.with_columns(pl.col(pl.String).replace(one, None))
    if layout.split is None and names == layout.names:
        return raw
    split = [] if layout.split is None else [pl.col(names[layout.split]).alias(SPLIT)]
    return raw.select([*map(pl.col, layout.names), *split])


def _columns(raw: pl.DataFrame, layout: Layout, exact: bool) -> pl.DataFrame:
    """The values of the fields. exact: numbers may stand there in ways that polars takes and we do not."""
    columns = [layout.schema.of[name] for name in layout.names]
    expressions, hashed = [], {}
    for column in columns:
        field = pl.col(column.name)
        if column.kind not in CATEGORIES:
            if raw[column.name].dtype == pl.String:
                field = field.str.extract(_NUMBER, 1)
                if raw.select(field).null_count().item() != raw[column.name].null_count():
                    raise _Rejected
            expressions.append(field.cast(pl.Int8 if column.kind is Kind.LABEL else pl.Int64))
        elif column.separator is None and column.kind is not Kind.TEXT:
            if exact:
                _check_digits(raw[column.name], column.kind)
            expressions.append(_id(field, column.kind))
        else:
            expressions.append(pl.lit(None).alias(column.name))
            hashed[column.name] = _other_ids(raw[column.name], column, layout.schema.missing)
    frame = raw.select(expressions)
    if hashed:
        frame = frame.with_columns(**hashed)
    if layout.split is not None:
        texts = raw[SPLIT].fill_null("")
        known = texts.unique()
        positions = pl.Series([layout.schema.split.of(text) for text in known], dtype=pl.Int8)
        frame = frame.with_columns(texts.replace_strict(known, positions, return_dtype=pl.Int8).alias(SPLIT))
    return frame


def _id(field: pl.Expr, kind: Kind) -> pl.Expr:
    return field.str.to_integer(base=_BASE[kind], dtype=pl.UInt32).cast(pl.Int64).fill_null(MISSING)


def _check_digits(texts: pl.Series, kind: Kind) -> None:
    if not texts.str.contains(_DIGITS[kind]).all():
        raise _Rejected


def _other_ids(texts: pl.Series, column: Column, missing: tuple[str, ...]) -> pl.Series:
    """The ids of texts, or of lists."""
    if column.separator is None:
        return _crc(texts)
    entries = pl.DataFrame({"row": np.arange(len(texts)), "entry": texts.str.split(column.separator)})
    entries = entries.explode("entry").filter(~pl.col("entry").is_in(["", *missing]))  # null is in nothing: left out
    if column.kind is Kind.TEXT:
        ids = _crc(entries["entry"])
    else:
        _check_digits(entries["entry"], column.kind)
        ids = entries.select(_id(pl.col("entry"), column.kind))["entry"]
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.bincount(entries["row"], minlength=len(texts)), out=offsets[1:])
    return pl.from_arrow(pa.LargeListArray.from_arrays(offsets, ids.to_arrow()))


def _crc(texts: pl.Series) -> pl.Series:
    known = texts.drop_nulls().unique()
    ids = pl.Series([zlib.crc32(text.encode()) for text in known], dtype=pl.Int64)
    return texts.replace_strict(known, ids, default=MISSING, return_dtype=pl.Int64)
