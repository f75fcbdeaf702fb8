"""What the columns of somebody's rows are: a schema in TOML, read and checked.

data/README.md says what may stand in one; data/schemas/ has those of Criteo's forms and of Avazu's. Everything that has
to know a column's name or kind asks the `Schema`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from data.cli import UserError

SCHEMAS = Path(__file__).resolve().with_name("schemas")
LABEL = "labels"  # the label's column in Parquet, whatever the file calls it
MISSING = -1  # the id of a category that is missing; a missing count is null
IDS = 1 << 32  # an id is a 32-bit number
SPLITS = ("train", "validation", "test")


class Kind(StrEnum):
    """What a column's text means."""

    LABEL = "label"  # 0 or 1
    COUNT = "count"  # a whole number
    HEX = "hex"  # a category: the id in hexadecimal digits
    INTEGER = "integer"  # a category: the id
    TEXT = "text"  # a category: the id is the text's CRC-32


CATEGORIES = (Kind.HEX, Kind.INTEGER, Kind.TEXT)


@dataclass(frozen=True)
class Column:
    """name: in Parquet. field: in the file. separator: between the entries of a list; None: one value."""

    name: str
    field: str
    kind: Kind
    separator: str | None = None


@dataclass(frozen=True)
class Split:
    """Which rows are for what. by: "order", "random", "column" or "files"; validation, test: shell patterns of the
    column's texts, or of the files' names; what matches neither is for training."""

    by: str = "order"
    column: str = ""
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()

    def of(self, text: str) -> int:
        """The position in SPLITS of what has this text, or this name."""
        for position, patterns in ((1, self.validation), (2, self.test)):
            if any(fnmatchcase(text, pattern) for pattern in patterns):
                return position
        return 0


@dataclass(frozen=True)
class Schema:
    """columns: the label, the counts, the categories. fields: the file's, in order; None: its header says them.

    delimiter, skip, missing, quotes (RFC 4180's, on one line), ignored, split: see data/README.md. content: what the
    TOML says, where the columns are not written under Criteo's names.
    """

    columns: tuple[Column, ...]
    delimiter: str = ","
    fields: tuple[str, ...] | None = None
    skip: int = 0
    missing: tuple[str, ...] = ()
    quotes: bool = True
    ignored: tuple[str, ...] = ()
    split: Split = Split()
    content: dict | None = None

    @cached_property
    def dense(self) -> tuple[str, ...]:
        """The counts' names in Parquet."""
        return tuple(column.name for column in self.columns if column.kind is Kind.COUNT)

    @cached_property
    def sparse(self) -> tuple[str, ...]:
        """The categories' names in Parquet."""
        return tuple(column.name for column in self.columns if column.kind in CATEGORIES)

    @cached_property
    def lists(self) -> tuple[str, ...]:
        """Those of them that have any number of ids a row."""
        return tuple(column.name for column in self.columns if column.separator is not None)

    @cached_property
    def singles(self) -> tuple[str, ...]:
        """Those of them that have one id a row."""
        return tuple(name for name in self.sparse if name not in self.lists)

    @cached_property
    def of(self) -> dict[str, Column]:
        """The columns by their names in Parquet."""
        return {column.name: column for column in self.columns}

    @cached_property
    def arrow(self) -> pa.Schema:
        """The schema of the Parquet files."""
        return pa.schema([_arrow_field(column) for column in self.columns])

    @property
    def width(self) -> int:
        """The width of the model's dense input; without counts that is a column of zeros."""
        return max(len(self.dense), 1)

    def first(self, categories: int) -> Schema:
        """The same with so many categories."""
        used = self.sparse[:categories]
        return replace(self, columns=tuple(c for c in self.columns if c.kind not in CATEGORIES or c.name in used))


def _arrow_field(column: Column) -> pa.Field:
    if column.kind is Kind.LABEL:
        return pa.field(column.name, pa.int8(), nullable=False)
    kind = pa.int64() if column.separator is None else pa.list_(pa.int64())
    return pa.field(column.name, kind, nullable=column.kind is Kind.COUNT)


def read_schema(name: str | Path) -> Schema:
    """The schema in this TOML file, or the one of this name in data/schemas.

    Raises UserError that names file, table and key, what was expected and what was found.
    """
    file = Path(name)
    if file.suffix != ".toml" and not file.exists():
        file = SCHEMAS / f"{name}.toml"
        if not file.exists():
            known = ", ".join(sorted(path.stem for path in SCHEMAS.glob("*.toml")))
            raise UserError(f"schema {name}: no such file, and none of {known}")
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise UserError(f"{file}: no such file; expected a schema in TOML") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not TOML: {error}") from None
    return schema_of(content, file)


@cache
def shipped(name: str) -> Schema:
    """The schema of this name in data/schemas."""
    return read_schema(SCHEMAS / f"{name}.toml")


def schema_of(content: dict, file: str | Path) -> Schema:
    """The schema that a TOML file's content describes; UserError as `read_schema`, naming `file`."""
    if not isinstance(content, dict):
        raise UserError(f"{file}: schema: expected tables, found {content!r}")
    known = ("file", "columns", "lists", "split")
    if unknown := [key for key in content if key not in known]:
        raise UserError(f"{file}: {unknown[0]}: no such table; expected {', '.join(f'[{key}]' for key in known)}")
    of_file = _Table(file, "file", content, ("delimiter", "header", "names", "skip", "missing", "quotes", "written"))
    table = _Table(file, "columns", content, ("label", "count", *CATEGORIES, "leave_out"))

    delimiter = of_file.text("delimiter", ",")
    if len(delimiter.encode()) != 1 or delimiter in "\"\r\n":
        of_file.wrong("delimiter", "one ASCII character, not a quote nor an end of line")
    skip = of_file.get("skip", 0)
    if type(skip) is not int or skip < 0:
        of_file.wrong("skip", "a number of lines from 0")
    header, quotes = of_file.flag("header", True), of_file.flag("quotes", delimiter != "\t")
    fields = None if header else tuple(of_file.names("names"))
    if header and "names" in of_file.content:
        of_file.wrong("names", "no names, for header is true, and the header says them")
    if fields == ():
        of_file.wrong("names", "the names of the columns in their order, for header is false")
    if of_file.get("written", "criteo") != "criteo":
        of_file.wrong("written", '"criteo", or no such key')

    columns = [Column(LABEL, table.text("label"), Kind.LABEL)]
    for kind in (Kind.COUNT, *CATEGORIES):
        columns += [Column(name, name, kind) for name in table.names(kind)]
    columns += _lists(file, content, delimiter)
    if columns[-1].kind not in CATEGORIES:
        raise UserError(f"{file}: [columns]: expected a category: {', '.join(CATEGORIES)} or [lists.NAME]")
    for column in columns[1:]:
        if column.name == LABEL or "/" in column.name or not column.name:
            place = "[lists]" if column.separator else f"[columns] {column.kind}"
            raise UserError(
                f"{file}: {place}: expected a name without '/' that is not {LABEL!r}, found {column.name!r}"
            )
    ignored = table.names("leave_out")
    used = [*(column.field for column in columns), *ignored]
    if twice := _first_double(used):
        raise UserError(f"{file}: [columns]: expected each column once, found {twice!r} twice")
    split = _split(file, content)
    if fields is not None:
        if twice := _first_double(fields):
            of_file.wrong("names", "each name once", twice)
        for name in [*used, *([split.column] if split.column else [])]:
            if name not in fields:
                raise UserError(f"{file}: [file] names: expected {name!r} among them, which another table names")
    if "written" in of_file.content:
        columns = _criteo_names(file, columns)
    return Schema(
        tuple(columns), delimiter, fields, skip, tuple(of_file.strings("missing")), quotes, tuple(ignored), split,
        None if "written" in of_file.content else content,
    )


def _criteo_names(file: str | Path, columns: list[Column]) -> list[Column]:
    label, *others = columns
    kinds = [column.kind for column in others]
    if kinds != [Kind.COUNT] * 13 + [Kind.HEX] * 26 or any(column.separator for column in others):
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in Kind if kind in kinds)
        raise UserError(f'{file}: [file] written: expected 13 count and 26 hex for "criteo", found {counts}')
    names = [*(f"DENSE_{i}" for i in range(13)), *(f"SPARSE_{i}" for i in range(26))]
    return [label, *(replace(column, name=name) for column, name in zip(others, names, strict=True))]


def _lists(file: str | Path, content: dict, delimiter: str) -> list[Column]:
    tables = content.get("lists", {})
    if not isinstance(tables, dict):
        raise UserError(f"{file}: lists: expected tables [lists.NAME], found {tables!r}")
    columns = []
    for name in tables:
        table = _Table(file, f"lists.{name}", {f"lists.{name}": tables[name]}, ("kind", "separator"))
        kind = table.text("kind")
        if kind not in CATEGORIES:
            table.wrong("kind", f"one of {', '.join(CATEGORIES)}")
        separator = table.text("separator")
        if not separator or delimiter in separator or "\n" in separator or "\r" in separator:
            table.wrong("separator", f"a text without the file's delimiter, {delimiter!r}")
        columns.append(Column(name, name, Kind(kind), separator))
    return columns


_SPLIT_KEYS = {"order": (), "random": (), "column": ("column", "validation", "test"), "files": ("validation", "test")}


def _split(file: str | Path, content: dict) -> Split:
    table = _Table(file, "split", {"split": {"by": "order"}} | content, ("by", "column", "validation", "test"))
    by = table.text("by")
    if by not in _SPLIT_KEYS:
        table.wrong("by", f"one of {', '.join(_SPLIT_KEYS)}")
    for key in table.content:
        if key != "by" and key not in _SPLIT_KEYS[by]:
            table.wrong(key, f"no such key, for by is {by!r}")
    column = table.text("column") if by == "column" else ""
    patterns = [tuple(table.strings(key)) if by in ("column", "files") else () for key in SPLITS[1:]]
    if by in ("column", "files"):
        for key, of_split in zip(SPLITS[1:], patterns, strict=True):
            if not of_split:
                table.wrong(key, "a list of shell patterns, one at least")
    return Split(by, column, *patterns)


def _first_double(names: Iterable[str]) -> str | None:
    seen = set()
    return next((name for name in names if name in seen or seen.add(name)), None)


class _Table:
    """A table of the TOML, its keys read one by one."""

    def __init__(self, file: str | Path, name: str, content: dict, keys: Iterable[str]):
        self.file, self.name, self.content = file, name, content.get(name, {})
        if not isinstance(self.content, dict):
            raise UserError(f"{file}: {name}: expected a table [{name}], found {self.content!r}")
        keys = [*keys]
        for key in self.content:
            if key not in keys:
                self.wrong(key, f"one of the keys {', '.join(keys)}", key)

    def wrong(self, key: str, expected: str, culprit: object = None) -> NoReturn:
        value = self.content.get(key) if culprit is None else culprit
        shown = "nothing" if value is None else repr(value)[:60]
        raise UserError(f"{self.file}: [{self.name}] {key}: expected {expected}, found {shown}")

    def get(self, key: str, default: object) -> object:
        return self.content.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.content.get(key, default)
        if not isinstance(value, str):
            self.wrong(key, "a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.content.get(key, default)
        if not isinstance(value, bool):
            self.wrong(key, "true or false")
        return value

    def strings(self, key: str) -> list[str]:
        values = self.content.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            self.wrong(key, "a list of texts")
        return values

    def names(self, key: str) -> list[str]:
        """Names of columns; "I1..I13" is thirteen."""
        names = []
        for name in self.strings(key):
            if ".." not in name:
                names.append(name)
                continue
            bounds = re.fullmatch(r"(.*?)([0-9]+)\.\.\1([0-9]+)", name)
            if not bounds or not int(bounds[2]) <= int(bounds[3]) < 1 << 16:
                self.wrong(key, "a range as I1..I13", name)
            names += [f"{bounds[1]}{number}" for number in range(int(bounds[2]), int(bounds[3]) + 1)]
        return names


# Here and not in data.criteo, which imports torch: data.preprocess has no use for it, and it takes a second.
CRITEO = shipped("kaggle")  # the columns of all of Criteo's forms
DENSE, SPARSE = CRITEO.dense, CRITEO.sparse
COLUMNS = (LABEL, *DENSE, *SPARSE)
SCHEMA = CRITEO.arrow
