"""Files that are one data set together: in which order, and none of them twice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from data.cli import UserError
from data.schema import SPLITS


def parquet_files(path: Path) -> list[Path]:
    """The file, or the directory's *.parquet in the order of the numbers in their names.

    Names that begin with "." or "_" are left out, as pyarrow and Spark do: they are other programs' notes. Raises
    UserError if there is none, or one twice.
    """
    if path.is_file():
        return [path]
    if path.is_fifo():  # Parquet is read from its end
        raise UserError(f"{path}: Parquet through a pipe; name the file")
    if not path.is_dir():
        raise UserError(f"{path}: no such file or directory; expected Parquet files")
    files = by_numbers(file for file in path.glob("*.parquet") if file.name[0] not in "._")
    if not files:
        below = next((path / split for split in reversed(SPLITS) if (path / split).is_dir()), None)
        raise UserError(f"{path}: no *.parquet file in it" + (f"; name one of its splits, {below}" if below else ""))
    check_once(files)
    return files


def by_numbers(files: Iterable[Path]) -> list[Path]:
    """Sorted by their names, in which digits are numbers: day_2 before day_10."""
    return sorted(files, key=lambda file: (_words(os.path.abspath(file)), file))


def check_once(files: Iterable[Path]) -> None:
    """Raise UserError if two of them are the same file, by whatever name or link."""
    known: dict[tuple[int, int], Path] = {}
    for file in files:
        if file.exists():
            identity = file.stat().st_dev, file.stat().st_ino
            if first := known.get(identity):
                raise UserError(f"{file}: the same file as {first}, and its rows would come twice; name it once")
            known[identity] = file


def out_of_order(files: list[Path]) -> str | None:
    """What is wrong with an order of files that is not that of the numbers in their names, and which one is."""
    for before, after in pairwise(files):
        if before.is_file() and after.is_file() and _is_later(os.path.abspath(before), os.path.abspath(after)):
            right = " ".join(map(str, by_numbers(files)))
            return f"{before} stands before {after}; the order of their numbers is {right}"
    return None


def _words(text: str) -> list[str | int]:
    """A text, a number, a text and so on: lists of them can be compared."""
    return [int(word) if i % 2 else word for i, word in enumerate(re.split("([0-9]+)", text))]


def _is_later(one: str, other: str) -> bool:
    """Whether the first difference is a number, and that of `one` is the larger. Digits that a letter follows are no
    number (a hash has such), unless all else is equal."""
    if _words(one)[::2] != _words(other)[::2]:
        one, other = (re.sub("[0-9]+(?=[A-Za-z])", lambda digits: "#" * len(digits[0]), text) for text in (one, other))
    for ours, theirs in zip(_words(one), _words(other), strict=False):
        if ours != theirs:
            return isinstance(ours, int) and ours > theirs
    return False
