"""What was measured and tested, in traces/results/<gpu>/: <op>.json, which `bench --save` writes, and tests.json.

JSON has no number for NaN and Inf, which a faulty row may hold: the files have the words of `NO_NUMBERS` for them, and
`read` gives the numbers again.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime import KERNELS
from .cells import Cell, Row

if TYPE_CHECKING:
    import pandas

RESULTS = KERNELS.parent / "traces" / "results"
# Whose record is shown in the READMEs and the notebooks, whatever the reader measures on another GPU.
README_GPU = "h200"
# What may stand beside a record: <op>.failed.json and <op>.partial.json.
FAILED, PARTIAL = ".failed", ".partial"
NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


def slug(gpu: str) -> str:
    """The folder of a GPU's results: "NVIDIA H200" → "h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().removeprefix("nvidia")).strip("-")


def recorded_files(name: str, results: Path = RESULTS, gpu: str | None = None) -> list[Path]:
    """The files of this name, one a GPU; gpu: of this folder only."""
    return sorted(results.glob(f"{gpu or '*'}/{name}"))


def save(record: dict, results: Path = RESULTS, is_ours: Callable[[Mapping], bool] = lambda row: True) -> str:
    """Write results/<gpu>/<op>.json, whole or not at all; returns what was done, in words.

    A peer's row that FAILED is recorded as that, without a time. A record in which a row of ours FAILED does not
    replace one without: it is written beside that, as <op>.failed.json, which git ignores.

    Args:
        is_ours: whether a row is of ours; default: all are.
    """
    path = path_of(record, results)
    ours = [row for row in record["rows"] if row["match"].startswith("FAILED") and is_ours(row)]
    if ours and path.exists() and not failed(before := read(path), is_ours):
        _write_record(beside := path_of(record, results, FAILED), record)
        done = f"KEPT {in_words(path)} of {before['date']}: of what was measured now, {_count(ours)} of ours FAILED "
        done += f"({ours[0]['match'].removeprefix('FAILED: ')}); all of it is in {in_words(beside)}"
    else:
        _write_record(path, record)
        path_of(record, results, FAILED).unlink(missing_ok=True)
        done = f"saved {in_words(path)}"
        if others := failed(record) - len(ours):
            done += f"; {others} row{'s' * (others > 1)} of peers FAILED"
        if ours:
            done += f"; {_count(ours)} of ours FAILED, and there was no record without"
    path_of(record, results, PARTIAL).unlink(missing_ok=True)
    return done


def path_of(record: Mapping, results: Path = RESULTS, kind: str = "") -> Path:
    """Where a record is, or what stands beside it: kind FAILED or PARTIAL."""
    return results / slug(record["GPU"]) / f"{record['op']}{kind}.json"


def in_words(path: Path) -> str:
    """A record's path, from the repository: traces/results/h200/add_relu.json."""
    return "/".join(path.parts[-4:])


def _count(rows: Sized) -> str:
    return f"{len(rows)} row{'s' * (len(rows) > 1)}"


def _write_record(path: Path, record: dict) -> None:
    head = {key: value for key, value in record.items() if key != "rows"}
    rows = ",\n".join("  " + as_json(_rounded(row)) for row in record["rows"])
    write(path, as_json(head, indent=1)[:-2] + f',\n "rows": [\n{rows}\n ]\n}}\n')


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def failed(record: Mapping, counts: Callable[[Mapping], bool] = lambda row: True) -> int:
    """How many of its rows FAILED, of those that count."""
    return sum(row["match"].startswith("FAILED") and counts(row) for row in record["rows"])


def _rounded(row: dict) -> dict:
    return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in row.items()}


def as_json(value: dict, indent: int | None = None) -> str:
    """JSON, with words for the numbers that it lacks: what `read` reads."""

    def worded(number: float) -> float | str:
        return number if math.isfinite(number) else json.dumps(number)

    return json.dumps(_each(value, float, worded), indent=indent, ensure_ascii=False, allow_nan=False)


def read(path: Path) -> dict:
    """The record in a file that `save` wrote."""
    return _each(json.loads(path.read_text()), str, lambda text: float(text) if text in NO_NUMBERS else text)


def _each(value: Any, kind: type, change: Callable) -> Any:
    """The value with what is of this kind changed in it, in its lists and dicts too."""
    if isinstance(value, dict):
        return {key: _each(own, kind, change) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_each(own, kind, change) for own in value]
    return change(value) if isinstance(value, kind) else value


def load(op: str, gpu: str = README_GPU, results: Path = RESULTS) -> dict:
    """The record as it was saved; gpu: the folder's name.

    Raises:
        FileNotFoundError: nothing has been recorded of the op on that GPU.
    """
    path = results / gpu / f"{op}.json"
    if not path.exists():
        others = ", ".join(file.parent.name for file in recorded_files(f"{op}.json", results))
        elsewhere = f", but on {others}" if others else ""
        raise FileNotFoundError(
            f"{op}: nothing recorded on {gpu}{elsewhere}; its command with --save records it, on a GPU"
        )
    return read(path)


def recorded(op: str, gpu: str = README_GPU, results: Path = RESULTS) -> pandas.DataFrame:
    """What was saved of an op, a line a row, labels among the columns; attrs holds the rest: GPU, versions, date, ….

    Raises:
        FileNotFoundError: see load.
    """
    import pandas

    record = load(op, gpu, results)
    rows = pandas.DataFrame(record.pop("rows"))
    rows.attrs = record
    return rows


def frame(rows: Iterable[Row]) -> pandas.DataFrame:
    """The same table of rows that were measured now."""
    import pandas

    return pandas.DataFrame([row.flat() for row in rows])


def of_cells(record: pandas.DataFrame, cells: Iterable[Cell]) -> pandas.DataFrame:
    """The lines of these cells: of the same part, form and labels."""
    import pandas

    chosen = pandas.Series(False, index=record.index)
    for cell in cells:
        wanted = {"part": cell.part, "form": cell.form, **cell.labels}
        same = pandas.Series(True, index=record.index)
        for name, value in wanted.items():
            same &= record[name] == value if name in record else False
        chosen |= same
    return record[chosen]
