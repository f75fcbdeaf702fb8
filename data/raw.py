"""Raw text: which files are of the format, their blocks of whole lines, and what is wrong with a line.

The format is what a schema says. Without one it is Criteo's: Kaggle's train.txt and the Terabyte logs' day_N are
tab-separated without a header: label, I1..I13, C1..C26. CSV has a header of these names, or of those that torchrec,
NVTabular and TFX give the columns; its delimiter may be a tab, too, and then it has quotes if its header has some.
Either may be compressed with gzip, and come through a pipe.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from loguru import logger

from data.cli import UserError
from data.formats import HEAD, begins_as_parquet, other_format
from data.schema import CATEGORIES, COLUMNS, CRITEO, IDS, LABEL, MISSING, Column, Kind, Schema, shipped

RAW = tuple(column.field for column in CRITEO.columns)
BLOCK = 1 << 24  # bytes of text read at a time, about 70,000 rows
LONGEST = 1 << 20  # bytes of a line; Criteo's have some 250
READS = 2  # of BLOCK bytes in a piece; at the end processes wait for the last one, the longer the larger it is
LATER = 1 << 60  # stands for the number of a line, and no file has so many

# Names of the same columns, whichever of Criteo's schemas they are of; a further one of the label.
_COLUMN_OF = {
    column.field.casefold(): column.name
    for name in ("kaggle", "nvtabular", "torchrec", "tfx")
    for column in shipped(name).columns
} | {"click": LABEL}
# Row numbers: Kaggle's CSV conversions have an Id, and pandas writes its index without a name (and reads that one so).
_ROW_NUMBER = ("id", "", "unnamed: 0")
_WHOLE = re.compile(r" *(-?[0-9]+)(\.0*)? *")
_HEX = re.compile(r"[0-9a-fA-F]+")
_DIGITS = re.compile(r"[0-9]+")
# The column that preprocessing adds for its own use: the row's position in data.schema.SPLITS. "/" is in no name.
SPLIT = "/split"

# What stands for a missing value in others' files, in any case of its letters.
_MISSING = frozenset({"nan", "null", "none", "na", "n/a", "<na>", "#n/a", "nil", "-", "?", "\\n", "(null)", "missing"})


@dataclass(frozen=True)
class Layout:
    """How a file's fields lie: the delimiter, and for each field its column of the schema (None: ignored).

    quotes: fields may stand in them, as RFC 4180 has it, but for ends of lines. split: the field that says which split
    the row is of.
    """

    delimiter: str
    columns: tuple[str | None, ...]
    header: bool = False
    quotes: bool = False
    schema: Schema = CRITEO
    split: int | None = None

    @property
    def names(self) -> list[str]:
        """The columns, in the order of the schema."""
        return [column.name for column in self.schema.columns if column.name in self.columns]


@dataclass(frozen=True)
class Block:
    """Whole lines of a file."""

    file: Path
    layout: Layout
    line: int  # number of its first line in the file, from 1
    text: bytes
    read: int  # bytes of the file (compressed, if it is) that it stands for


@dataclass(frozen=True)
class Piece:
    """What is read of a file by itself: some of the reads of BLOCK bytes that `blocks` makes, or all of them.

    start, stop: in bytes, where its first read begins and its last one ends; stop: None is the end of the file.
    begin: where the file's rows begin. line: number of the piece's first line; of a later piece's, which is not known
    before the earlier ones are read, LATER. layout: None for what is compressed and cannot be cut.
    """

    file: Path
    schema: Schema | None
    split: bool
    block: int
    layout: Layout | None = None
    begin: int = 0
    start: int = 0
    stop: int | None = None
    line: int = 1


class BadLine(ValueError):
    """What is wrong with a line."""


class LineError(UserError):
    """A line of a file that is not of the format."""

    def __init__(self, file: Path, line: int, problem: str):
        super().__init__(file, line, problem)  # so that it can be sent to another process
        self.file, self.line, self.problem = file, line, problem

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.problem}"


def blocks(file: Path, labelled: bool = True, schema: Schema | None = None, split: bool = False) -> Iterator[Block]:
    """The file's lines without its header, in blocks of about BLOCK bytes; blank lines at its end are left out.

    labelled: False takes files with and without labels, whose layout then has no label, and an empty one too.
    schema: of the file; without one it has one of Criteo's forms. split: by the schema's column.

    Raises UserError if the file is not of the format or its compression is damaged.
    """
    with _opened(file) as (stream, position):
        begun = _begin(file, stream, labelled, schema, split)
        if begun:
            yield from _cut(file, *begun, stream, position, _what(schema))


def pieces(file: Path, schema: Schema | None = None, split: bool = False) -> list[Piece]:
    """The file's pieces, in order; their blocks (blocks_of) are those that `blocks` gives. Raises UserError as it does,
    but for lines after the first one."""
    with _opened(file) as (stream, _):
        layout, line, text = _begin(file, stream, True, schema, split)
        whole = Piece(file, schema, split, BLOCK)
        if isinstance(stream, gzip.GzipFile):
            return [whole]
        start, size = stream.tell(), file.stat().st_size
        first = replace(whole, layout=layout, begin=start - len(text), start=start, line=line)
    starts = range(start, max(size, start + 1), READS * BLOCK)
    return [
        replace(first, start=one, stop=one + READS * BLOCK if one < starts[-1] else None, line=LATER if i else line)
        for i, one in enumerate(starts)
    ]


def blocks_of(piece: Piece) -> Iterator[Block]:
    """The piece's blocks. Raises UserError as `blocks` does."""
    with _opened(piece.file) as (stream, position):
        if piece.layout is None:
            layout, line, text = _begin(piece.file, stream, True, piece.schema, piece.split, warn=False)
        else:
            layout, line, text = piece.layout, piece.line, _rest(stream, piece)
        if text is not None:
            yield from _cut(
                piece.file, layout, line, text, stream, position, _what(piece.schema), piece.block, piece.stop
            )


def _rest(stream: BinaryIO, piece: Piece) -> bytes | None:
    """What follows the last end of rows before the piece, and stands in its first block. None: too much for a line, of
    which what is read of the file before the piece makes an error."""
    least = max(piece.begin, piece.start - piece.block - LONGEST)
    for low in (max(least, piece.start - (1 << 16)), least):
        stream.seek(low)
        text = stream.read(piece.start - low)
        if piece.line == LATER and (end := _end_of_rows(text)):
            return text[end:]
    return text if least == piece.begin else None


def _what(schema: Schema | None) -> str:
    return "rows" if schema else "Criteo rows"


@contextmanager
def _opened(file: Path) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """Its text, unpacked, and a function that says how many bytes of the file are read."""
    with file.open("rb") as raw:
        position = raw.tell if raw.seekable() else lambda: 0
        stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
        try:
            yield stream, position
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{file}: truncated or damaged gzip file: {error}") from None


def _begin(
    file: Path, stream: BinaryIO, labelled: bool, schema: Schema | None, split: bool, warn: bool = True
) -> tuple[Layout, int, bytes] | None:
    """(layout, number of the first row's line, what is read of it); None for an empty file, unless labelled."""
    what = _what(schema)
    opening = stream.peek(HEAD)
    _check_text(file, opening, labelled, schema)
    line = 1 + (schema.skip if schema else 0)
    for number in range(1, line + 1):
        first = stream.readline(LONGEST + 1)
        _check_lengths(file, number, first, what)
    if not first and not labelled:
        return None
    if not first.strip():
        raise UserError(f"{file}: {f'line {line} is empty' if first or line > 1 else 'empty'}; expected {what}")
    head = first.decode("utf-8-sig", errors="replace").rstrip("\r\n")
    try:
        layout = (
            _own_layout(file, line, head, labelled, schema, split, warn) if schema
            else _layout(file, head, labelled, warn)
        )
    except UserError:
        if what := other_format(opening, text=True):
            raise UserError(f"{file}: {what}") from None
        raise
    return (layout, line + 1, b"") if layout.header else (layout, line, first.removeprefix(b"\xef\xbb\xbf"))


def _cut(
    file: Path, layout: Layout, line: int, text: bytes, stream: BinaryIO, position: Callable[[], int],
    what: str, size: int | None = None, stop: int | None = None,
) -> Iterator[Block]:
    """The blocks of what is read already, `text`, and of the stream up to `stop`; size: of a read, by default BLOCK."""
    size = size or BLOCK
    done = position() if line == LATER else 0
    while (stop is None or stream.tell() < stop) and (more := stream.read(size)):
        if cut := _end_of_rows(more):  # joined so, what was read is copied once
            block, text = b"".join((text, memoryview(more)[:cut])), more[cut:]
        else:
            text += more
            cut = _end_of_rows(text)
            block, text = text[:cut], text[cut:]
        _check_lengths(file, line, block, what)
        if not cut and len(text) > LONGEST:
            problem = "no end of line within" if text.strip(b"\r\n") else "nothing but ends of lines in"
            raise LineError(file, line, f"{problem} {len(text):,} bytes; expected {what}")
        if cut:
            read, done = position() - done, position()
            yield Block(file, layout, line, block, read)
            line += _ends_of_lines(block)
    if stop is None and (end := len(text.rstrip(b"\r\n "))):  # spaces of the last row stay
        end = text.find(b"\n", end) + 1 or len(text)
        _check_lengths(file, line, text[:end], what)
        yield Block(file, layout, line, text[:end], position() - done)


def _ends_of_lines(text: bytes) -> int:
    """Eight times as fast as bytes.count."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n")))


def _check_lengths(file: Path, line: int, text: bytes, what: str) -> None:
    """Raise UserError if a line has more than LONGEST bytes; line: number of the text's first."""
    start = 0
    while len(text) - start > LONGEST:
        end = text.rfind(b"\n", start, start + LONGEST) + 1
        if not end:
            line += text.count(b"\n", 0, start)
            length = (text.find(b"\n", start) + 1 or len(text)) - start
            raise LineError(file, line, f"no end of line within {length:,} bytes; expected {what}")
        start = end


def _end_of_rows(text: bytes) -> int:
    """Where the text's rows end, 0 if it has none. What follows the last newline belongs to the next block; and so do
    blank lines, for if nothing follows them they are no rows."""
    filled = text.rfind(b"\n") + 1
    while filled and text[filled - 1] in b"\r\n ":
        filled -= 1
    return text.find(b"\n", filled) + 1 if filled else 0


def check_file(file: Path) -> None:
    """Raise UserError if it is neither a file nor a pipe."""
    if file.is_dir():
        raise UserError(f"{file}: is a folder; name the files in it")
    if not (file.is_file() or file.is_fifo()):
        raise UserError(f"{file}: {'is not a file' if file.exists() else 'no such file'}")


def _check_text(file: Path, head: bytes, labelled: bool, schema: Schema | None) -> None:
    """labelled, schema: as in `blocks`; without labels are rows that a model predicts for, which may be Parquet."""
    if begins_as_parquet(head):
        if labelled:
            raise UserError(f"{file}: Parquet; name the text that {'it was made of' if schema else 'Criteo published'}")
        packed = "in gzip; unpack it (gunzip)" if file.is_file() else "through a pipe; name the file"
        raise UserError(f"{file}: Parquet {packed}")
    if what := other_format(head):
        raise UserError(f"{file}: {what}")


def _layout(file: Path, first: str, labelled: bool, warn: bool) -> Layout:
    delimiter = "\t" if "\t" in first else ","
    fields = [name.strip() for name in first.split(delimiter)]
    names = [name.strip('"').casefold() for name in fields]
    if len({*names} & {*_COLUMN_OF, "id"}) < 2:
        if delimiter == ",":
            raise UserError(
                f"{file}:1: expected tabs between fields or a CSV header label,I1,…,I13,C1,…,C26; found {_short(first)}"
            )
        if fields == [str(i) for i in range(len(fields))]:
            raise UserError(f"{file}:1: a header of numbers, as pandas writes for columns without names; remove it")
        ends = len(fields) - (fields[-1] == "" and len(fields) == len(COLUMNS) + 1)  # Hive ends each line with a tab
        columns = COLUMNS if labelled else _without_label(file, ends)
        return Layout(delimiter, (*columns, *[None] * (len(fields) - ends)))
    quotes = delimiter == "," or '"' in first
    try:
        names = [name.strip().casefold() for name in _fields(first, delimiter, quotes)]
    except BadLine as error:
        raise UserError(f"{file}:1: {error}") from None
    columns: list[str | None] = []
    for name in names:
        column = _COLUMN_OF.get(name)
        if name in names[: len(columns)] or (column and column in columns):
            raise UserError(f"{file}:1: column {name!r} stands there twice")
        columns.append(column)
    missing = [column.field for column in CRITEO.columns if column.name not in columns]
    if not labelled:
        columns = [None if column == LABEL else column for column in columns]
        missing = [name for name in missing if name != CRITEO.of[LABEL].field]
    if missing:
        hint = "; unlabelled data (Kaggle's test file) cannot be preprocessed" if missing == ["label"] else ""
        raise UserError(f"{file}:1: column {', '.join(missing)} is missing{hint}")
    if warn and (others := [name for name in names if name not in _COLUMN_OF and name not in _ROW_NUMBER]):
        logger.warning("{}: columns that are left out: {}", file, ", ".join(others))
    return Layout(delimiter, tuple(columns), header=True, quotes=quotes)


def _own_layout(file: Path, line: int, first: str, labelled: bool, schema: Schema, split: bool, warn: bool) -> Layout:
    """The layout of a file of this schema, whose first line that counts is `first`."""
    column_of = {column.field: column.name for column in schema.columns}
    label = schema.of[LABEL].field
    try:
        names = _fields(first, schema.delimiter, schema.quotes)
    except BadLine as error:
        if schema.fields is None:
            raise UserError(f"{file}:{line}: {error}") from None
        names = schema.fields  # a row like any other, and that it is bad is said where rows are read
    if schema.fields is None:
        names = [name.strip() for name in names]
        for position, name in enumerate(names):
            if name in names[:position] and (name in column_of or name == schema.split.column):
                raise UserError(f"{file}:{line}: column {name!r} stands there twice")
        needed = [name for name in column_of if labelled or name != label]
        needed += [schema.split.column] * split
        if missing := [name for name in needed if name not in names]:
            raise UserError(
                f"{file}:{line}: column {', '.join(missing)} is missing in the header; found {_short(first)}"
            )
        known = {*column_of, *schema.ignored, *_ROW_NUMBER, schema.split.column, label}
        if warn and (others := [name for name in names if name not in known]):
            logger.warning("{}: columns that are left out: {}", file, ", ".join(others))
    elif not labelled and len(names) == len(schema.fields) - 1:
        names = [name for name in schema.fields if name != label]
    else:
        names = schema.fields
    columns = [column_of.get(name) for name in names]
    if not labelled:
        columns = [None if column == LABEL else column for column in columns]
    at = list(names).index(schema.split.column) if split else None
    return Layout(schema.delimiter, tuple(columns), schema.fields is None, schema.quotes, schema, at)


def _without_label(file: Path, fields: int) -> tuple[str | None, ...]:
    """The columns of a file whose first line has so many fields: the label is ignored if there is one."""
    unlabelled = COLUMNS[1:]
    n = len(unlabelled)
    if fields not in (n, n + 1):
        raise UserError(f"{file}:1: expected {n} tab-separated fields, or {n + 1} with a label, found {fields}")
    return unlabelled if fields == n else (None, *unlabelled)


@cache
def _field(delimiter: str) -> re.Pattern[str]:
    """A field in quotes, whose text is group 1, or one without any: RFC 4180 has no third."""
    return re.compile(rf'"((?:[^"]|"")*+)"|[^"{re.escape(delimiter)}]*')


def _fields(text: str, delimiter: str, quotes: bool) -> list[str]:
    """The fields of a line. With quotes: one that begins with a quote ends with one, and in it a delimiter is text and
    two quotes are one; no other has a quote. Raises BadLine."""
    if not quotes or '"' not in text:
        return text.split(delimiter)
    fields, end = [], -1
    while end < len(text):
        match = _field(delimiter).match(text, end + 1)
        start, end = match.span()
        if end < len(text) and text[end] != delimiter:
            raise BadLine(f"quotes that do not fit: {_misfit(text, start, end, delimiter)}")
        fields.append(match[0] if match[1] is None else match[1].replace('""', '"'))
    return fields


def _misfit(text: str, start: int, end: int, delimiter: str) -> str:
    """What is wrong with the field that begins at start, of which what comes before `end` is right."""
    if text[start] != '"':
        return """'"' within a field that does not begin with it (quotes = false in a --schema takes them for text)"""
    if start == end:
        return "unexpected end of data (a field ends on its line)"
    return f"""{delimiter!r} expected after '"'"""


def read_line(line: bytes, number: int, layout: Layout) -> dict[str, int | list[int] | None]:
    """The line's values by column: None for a missing count, MISSING for a missing category, [] for a missing list.

    line: without its newline. number: of the line in the file, from 1. Raises BadLine.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8: {error}") from None
    text = text.removesuffix("\r")
    if not text:
        raise BadLine("the line is empty")
    fields, expected = _fields(text, layout.delimiter, layout.quotes), len(layout.columns)
    if len(fields) != expected:
        separated = {"\t": "tab", ",": "comma"}.get(layout.delimiter, repr(layout.delimiter))
        unlabelled = number == 1 and (len(fields), expected) == (39, 40)
        hint = "; this looks like Kaggle's unlabelled test.txt" if unlabelled else ""
        raise BadLine(f"expected {expected} {separated}-separated fields, found {len(fields)}{hint}")
    row = {}
    for column, value in zip(layout.columns, fields, strict=True):
        if column is not None:
            try:
                row[column] = _value(value, layout.schema.of[column], layout.schema.missing)
            except BadLine as error:
                field = layout.schema.of[column].field
                raise BadLine(f"field {field}: expected {error}, found {_short(value)}{_hint(value, column)}") from None
    if layout.split is not None:
        text_of_split = fields[layout.split]
        row[SPLIT] = layout.schema.split.of("" if text_of_split in layout.schema.missing else text_of_split)
    if "\r" in text:
        raise BadLine("a carriage return within the line")
    return row


def _value(value: str, column: Column, missing: tuple[str, ...]) -> int | list[int] | None:
    if value in missing:
        value = ""
    if column.kind not in CATEGORIES:
        return _count(value, column.kind is Kind.LABEL)
    if column.separator is None:
        return _category(value, column.kind) if value else MISSING
    entries = value.split(column.separator)
    return [_category(entry, column.kind) for entry in entries if entry and entry not in missing]


def _category(value: str, kind: Kind) -> int:
    match kind:
        case Kind.TEXT:
            return zlib.crc32(value.encode())
        case Kind.INTEGER:
            if not _DIGITS.fullmatch(value) or len(value) > 100 or int(value) >= IDS:
                raise BadLine('a whole number from 0 to 2^32 - 1 (kind "text" takes any)')
            return int(value)
    if not _HEX.fullmatch(value):
        raise BadLine("hexadecimal digits")
    if int(value, 16) >= IDS:
        raise BadLine("an id below 2^32 (8 hex digits)")
    return int(value, 16)


def _count(value: str, label: bool) -> int | None:
    if not value.strip(" ") and not label:
        return None
    whole = _WHOLE.fullmatch(value)
    if not whole:
        raise BadLine("0 or 1" if label else "a whole number")
    # No int() of thousands of digits, which Python refuses with an error of its own.
    number = int(whole[1]) if len(whole[1]) <= 1000 else 1 << 63
    if label and number not in (0, 1):
        raise BadLine("0 or 1")
    if not -(1 << 63) <= number < 1 << 63:
        raise BadLine("a 64-bit number")
    return number


def _hint(value: str, column: str) -> str:
    """What to do with a value that stands for a missing one."""
    if value.strip().casefold() not in _MISSING or column == LABEL:
        return ""
    return f" (a missing value? then say missing = [{json.dumps(value)}] in a --schema)"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")
