"""Criteo's raw text: which files are of the format, their blocks of whole lines, and what is wrong with a line.

Kaggle's train.txt and the Terabyte logs' day_N are tab-separated without a header: label, I1..I13, C1..C26. CSV has a
header of these names, or of those that torchrec, NVTabular and TFX give the columns. Either may be compressed with
gzip, and come through a pipe.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from loguru import logger

from data.cli import UserError
from data.criteo import COLUMNS, IDS, LABEL, MISSING, SPARSE

RAW = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
BLOCK = 1 << 24  # bytes of text read at a time, about 70,000 rows
LONGEST = 1 << 20  # bytes of a line; Criteo's have some 250

_RAW_OF = dict(zip(COLUMNS, RAW, strict=True))
# Names of the same columns: Criteo's; torchrec's and NVTabular's, from 0; TFX's, from 1; a further one of the label.
_COLUMN_OF = {
    name.casefold(): column
    for names in (
        RAW,
        ("label", *(f"int_{i}" for i in range(13)), *(f"cat_{i}" for i in range(26))),
        ("clicked", *(f"integer_feature_{i}" for i in range(1, 14)),
         *(f"categorical_feature_{i}" for i in range(1, 27))),
        ("click",),
    )
    for name, column in zip(names, COLUMNS, strict=False)
}
# Row numbers: Kaggle's CSV conversions have an Id, and pandas writes its index without a name (and reads that one so).
_ROW_NUMBER = ("id", "", "unnamed: 0")
_WHOLE = re.compile(r" *(-?[0-9]+)(\.0*)? *")
_HEX = re.compile(r"[0-9a-fA-F]+")
_QUOTED = re.compile(rb'(?<![^,\n])"([^",\r\n]*)"(?![^,\r\n])')

# What stands at a place of a file that is no text: (offset, bytes, what it is, what to do).
_NOT_TEXT = (
    (257, b"ustar", "a tar archive", "unpack it (tar xf) and name the files in it"),
    (0, b"PK\x03\x04", "a zip archive", "unpack it (unzip) and name the files in it"),
    (0, b"BZh", "compressed with bzip2", "pipe it (bunzip2 -c FILE | … /dev/stdin)"),
    (0, b"\xfd7zXZ\x00", "compressed with xz", "pipe it (unxz -c FILE | … /dev/stdin)"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd", "pipe it (unzstd -c FILE | … /dev/stdin)"),
    (0, b"PAR1", "Parquet", "name the text that Criteo published"),
    (0, b"\xff\xfe", "UTF-16", "convert it (iconv -f UTF-16 -t UTF-8)"),
    (0, b"\xfe\xff", "UTF-16", "convert it (iconv -f UTF-16 -t UTF-8)"),
)


@dataclass(frozen=True)
class Layout:
    """How a file's fields lie: the delimiter, and for each field its column of data.criteo (None: ignored)."""

    delimiter: str
    columns: tuple[str | None, ...]
    header: bool = False  # only such files have quotes around fields


@dataclass(frozen=True)
class Block:
    """Whole lines of a file."""

    file: Path
    layout: Layout
    line: int  # number of its first line in the file, from 1
    text: bytes
    read: int  # bytes of the file (compressed, if it is) that it stands for


class BadLine(ValueError):
    """What is wrong with a line."""


def blocks(file: Path, labelled: bool = True) -> Iterator[Block]:
    """The file's lines without its header, in blocks of about BLOCK bytes; blank lines at its end are left out.

    labelled: False takes files with and without labels, whose layout then has no label, and an empty one too.

    Raises UserError if the file is not of the format or its compression is damaged.
    """
    with file.open("rb") as raw:
        position = raw.tell if raw.seekable() else lambda: 0
        stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
        try:
            _check_text(file, stream)
            first = stream.readline(LONGEST)
            if not first and not labelled:
                return
            if not first.strip():
                raise UserError(f"{file}: {'empty' if not first else 'line 1 is empty'}; expected Criteo rows")
            layout = _layout(file, first.decode("utf-8-sig", errors="replace").rstrip("\r\n"), labelled)
            line, text = (2, b"") if layout.header else (1, first.removeprefix(b"\xef\xbb\xbf"))
            done = 0
            while more := stream.read(BLOCK):
                text += more
                # What follows the last newline belongs to the next block; and so do blank lines, for if nothing follows
                # them they are no rows.
                filled = text.rfind(b"\n") + 1
                while filled and text[filled - 1] in b"\r\n ":
                    filled -= 1
                cut = text.find(b"\n", filled) + 1 if filled else 0
                if not cut and len(text) > LONGEST:
                    what = "no end of line within" if text.strip(b"\r\n") else "nothing but ends of lines in"
                    raise UserError(f"{file}:{line}: {what} {len(text):,} bytes; expected Criteo rows")
                if cut:
                    block, text = text[:cut], text[cut:]
                    read, done = position() - done, position()
                    yield Block(file, layout, line, block, read)
                    line += block.count(b"\n")
            if end := len(text.rstrip(b"\r\n ")):  # spaces of the last row stay
                end = text.find(b"\n", end) + 1 or len(text)
                yield Block(file, layout, line, text[:end].rstrip(b"\r\n"), position() - done)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{file}: truncated or damaged gzip file: {error}") from None


def check_file(file: Path) -> None:
    """Raise UserError if it is neither a file nor a pipe."""
    if not (file.is_file() or file.is_fifo()):
        raise UserError(f"{file}: {'is not a file' if file.exists() else 'no such file'}")


def _check_text(file: Path, stream: BufferedReader | gzip.GzipFile) -> None:
    head = stream.peek(512)
    for offset, magic, what, advice in _NOT_TEXT:
        if head[offset : offset + len(magic)] == magic:
            raise UserError(f"{file}: {what}; {advice}")


def _layout(file: Path, first: str, labelled: bool) -> Layout:
    delimiter = "\t" if "\t" in first else ","
    fields = [name.strip() for name in first.split(delimiter)]
    names = [name.removeprefix('"').removesuffix('"').casefold() for name in fields]
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
    columns: list[str | None] = []
    for name in names:
        column = _COLUMN_OF.get(name)
        if name in names[: len(columns)] or (column and column in columns):
            raise UserError(f"{file}:1: column {name!r} stands there twice")
        columns.append(column)
    missing = [_RAW_OF[column] for column in COLUMNS if column not in columns]
    if not labelled:
        columns = [None if column == LABEL else column for column in columns]
        missing = [name for name in missing if name != _RAW_OF[LABEL]]
    if missing:
        hint = "; unlabelled data (Kaggle's test file) cannot be preprocessed" if missing == ["label"] else ""
        raise UserError(f"{file}:1: column {', '.join(missing)} is missing{hint}")
    if others := [name for name in names if name not in _COLUMN_OF and name not in _ROW_NUMBER]:
        logger.warning("{}: columns that are left out: {}", file, ", ".join(others))
    return Layout(delimiter, tuple(columns), header=True)


def _without_label(file: Path, fields: int) -> tuple[str | None, ...]:
    """The columns of a file whose first line has so many fields: the label is ignored if there is one."""
    unlabelled = COLUMNS[1:]
    n = len(unlabelled)
    if fields not in (n, n + 1):
        raise UserError(f"{file}:1: expected {n} tab-separated fields, or {n + 1} with a label, found {fields}")
    return unlabelled if fields == n else (None, *unlabelled)


def without_quotes(text: bytes) -> bytes:
    """CSV without the quotes around whole fields."""
    return _QUOTED.sub(rb"\1", text) if b'"' in text else text


def read_line(line: bytes, number: int, layout: Layout) -> dict[str, int | None]:
    """The line's values by column: None for a missing count, MISSING for a missing category.

    line: without its newline. number: of the line in the file, from 1. Raises BadLine.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8: {error}") from None
    text = text.removesuffix("\r")
    if not text:
        raise BadLine("the line is empty")
    fields, expected = text.split(layout.delimiter), len(layout.columns)
    if len(fields) != expected:
        separated = "tab" if layout.delimiter == "\t" else "comma"
        unlabelled = number == 1 and (len(fields), expected) == (39, 40)
        hint = "; this looks like Kaggle's unlabelled test.txt" if unlabelled else ""
        raise BadLine(f"expected {expected} {separated}-separated fields, found {len(fields)}{hint}")
    row = {}
    for column, value in zip(layout.columns, fields, strict=True):
        if column is not None:
            try:
                row[column] = _category(value) if column in SPARSE else _count(value, column == LABEL)
            except BadLine as error:
                raise BadLine(f"field {_RAW_OF[column]}: expected {error}, found {_short(value)}") from None
    if "\r" in text:
        raise BadLine("a carriage return within the line")
    return row


def _category(value: str) -> int:
    if not value:
        return MISSING
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


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")
