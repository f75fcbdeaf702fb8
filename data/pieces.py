"""A data set written by processes: a task a piece of a file, then a task a feature's range of ids; no shuffle.

What a task writes takes its name when it is complete, so a task that is killed is begun again as if nothing had been.
The files are those of data.dataset, byte for byte.
"""

from __future__ import annotations

import hashlib
import platform
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.cli import UserError
from data.cluster import Tell, Workers
from data.dataset import Ends, check_settings, choose_drawn, hashed, part, place_in_order, write_table
from data.output import complete_directory, written_beside
from data.parse import parse
from data.raw import LATER, SPLIT, LineError, Piece, blocks_of
from data.schema import SPLITS, Schema
from data.vocabulary import write_metadata

MESSAGES = 10  # that a task gives of bad lines


@dataclass(frozen=True)
class Task:
    """A piece, and its number among all. name: of its file, as the user gave it; the piece has the path from the root,
    for workers may run elsewhere. split: the one that all of its rows are of, if the file says it."""

    number: int
    piece: Piece
    name: Path
    split: int | None = None

    def __str__(self) -> str:
        return f"{self.name}, from byte {self.piece.start:,}"

    def named(self, error: Exception, line: int) -> Exception:
        """An error in the piece, whose first line has this number in the file, as it is for the file."""
        if isinstance(error, LineError):
            return LineError(self.name, error.line - self.piece.line + line, error.problem)
        if isinstance(error, UserError):
            return UserError(str(error).replace(f"{self.piece.file}", f"{self.name}", 1))
        return error


@dataclass
class Written:
    """What a task has written: the rows of each file, block by block; and what it has read."""

    rows: list[list[int]] = field(default_factory=list)
    lines: int = 0
    bad: int = 0
    messages: list[LineError] = field(default_factory=list)


@dataclass(frozen=True)
class Writing:
    """What is told to each task, whichever piece it reads."""

    scratch: Path
    schema: Schema
    by: str
    seed: int
    hash_size: int | None
    skips: bool

    def write(self, task: Task, tell: Tell) -> Written:
        """Read the piece and write its blocks' rows to `scratch`."""
        written, read = Written(), 0
        for i, block in enumerate(blocks_of(task.piece)):
            bad: list[LineError] = []
            table = parse(block, bad if self.skips else None)
            written.lines += len(table) + len(bad)
            if self.hash_size is not None:
                table = hashed(table, self.hash_size, self.schema)
            if self.by != "given":
                tables = [table]
            else:
                chosen = task.split
                if chosen is None:
                    chosen, table = table.column(SPLIT).to_numpy(), table.drop_columns([SPLIT])
                tables = [table.filter(pa.array(np.full(len(table), chosen) == k)) for k in range(len(SPLITS))]
            for table, path in zip(tables, self.parts(task.number, i), strict=True):
                self._write(table, path)
            written.rows.append([len(table) for table in tables])
            written.bad += len(bad)
            written.messages += bad[: MESSAGES - len(written.messages)]
            read += block.read
            tell(sum(map(sum, written.rows)), read)
        return written

    def draw(self, drawn: tuple[int, Path, Path]) -> list[int]:
        """Write the rows of the chunk of this number, in this file, to the splits of this directory."""
        chunk, path, directory = drawn
        table = pq.read_table(path)
        chosen, table = choose_drawn(self.seed, chunk, table)
        tables = [table.filter(pa.array(chosen == k)) for k in range(len(SPLITS))]
        for name, table in zip(SPLITS, tables, strict=True):
            self._write(table, part(directory, name, chunk))
        return [len(table) for table in tables]

    def parts(self, number: int, block: int) -> list[Path]:
        """The files of a block of the task of this number."""
        return [self.scratch / f"{k}-{number}-{block}.parquet" for k in range(len(SPLITS) if self.by == "given" else 1)]

    def _write(self, table: pa.Table, path: Path) -> None:
        with written_beside(path, self.scratch) as partial:
            write_table(table, partial)


def write_pieces(
    tasks: list[Task],
    out: Path,
    opened: AbstractContextManager[Workers],
    report: Callable[..., None],
    *,
    split: str,
    seed: int = 0,
    min_count: int = 1,
    hash_size: int | None = None,
    schema: Schema,
    skips: bool = False,
    ends: Callable[[list[int]], Ends] | None = None,
    most: Callable[[Workers], int],
) -> dict[str, int]:
    """As data.dataset.write_dataset, whose arguments these are, of the rows of these pieces.

    opened: is entered when `out` is found fit, and left before what was written there is complete, or removed.
    report: is called with rows, errors of lines, bytes and a number of further bad lines, more of each than before.
    skips: leave out lines that are not of the format. ends: is given the rows of each task. most: says how many counts
        a task holds.
    """
    check_settings(split, min_count, hash_size)
    with complete_directory(out) as directory, opened as workers:
        counts = most(workers)
        # Its own name: a worker that still does what a killed run has told it must find no directory.
        scratch = directory / f"parts-{uuid.uuid4().hex}"
        scratch.mkdir()
        for name in SPLITS:
            (directory / name).mkdir()
        _check_workers(workers, scratch, tasks)
        writing = Writing(scratch, schema, split, seed, hash_size, skips)
        done = _write_all(workers, writing, tasks, report)
        blocks = [(task.number, i) for task, one in zip(tasks, done, strict=True) for i in range(len(one.rows))]
        sizes = [rows for one in done for rows in one.rows]
        if not sum(map(sum, sizes)):
            raise UserError("no rows in the input")
        parts = [writing.parts(*block) for block in blocks]
        if split == "order":
            of_tasks = [sum(map(sum, one.rows)) for one in done]
            rows = place_in_order(
                [path for [path] in parts], [size for [size] in sizes], directory, ends(of_tasks) if ends else None
            )
        else:
            if split == "random":
                items = [(i, path, directory) for i, [path] in enumerate(parts)]
                sizes = workers(writing.draw, items, "draw splits")
            else:
                for i, paths in enumerate(parts):
                    for name, path in zip(SPLITS, paths, strict=True):
                        path.rename(part(directory, name, i))
            rows = dict(zip(SPLITS, np.sum(sizes, axis=0).tolist(), strict=True))
        write_metadata(
            directory, rows, min_count=min_count, hash_size=hash_size, schema=schema, most=counts, run=workers,
            scratch=scratch,
        )
    return rows


def _write_all(workers: Workers, writing: Writing, tasks: list[Task], report: Callable[..., None]) -> list[Written]:
    known = [(0, 0)] * len(tasks)

    def tell(number: int, rows: int, read: int) -> None:
        before, known[number] = known[number], (rows, read)  # fewer, where a task is begun again
        report(rows - before[0], [], read - before[1])

    done = workers.settle(writing.write, tasks, group=lambda task: task.piece.file, tell=tell)
    errors = [number for number, result in enumerate(done) if isinstance(result, Exception)]
    line, messages = 0, []
    for task, result in zip(tasks, done, strict=True):
        line = task.piece.line if task.piece.line != LATER else line
        if errors and task.number == errors[0]:
            raise task.named(result, line)
        if result is not None:
            messages += [task.named(error, line) for error in result.messages]
            line += result.lines
    report(0, messages, 0, sum(one.bad for one in done) - len(messages))
    return done


def _check_workers(workers: Workers, scratch: Path, tasks: list[Task]) -> None:
    """Raise UserError unless scheduler and workers have this code and its packages, and workers see these files."""
    files = [scratch, *dict.fromkeys(task.piece.file for task in tasks)]
    try:
        found = workers.client.run_on_scheduler(_look, []), *workers.client.run(_look, files).values()
    except ModuleNotFoundError as error:
        raise UserError(
            f"{workers.name}: the package {error.name} is missing there: scheduler and workers need this checkout in "
            "PYTHONPATH, and its packages"
        ) from None
    ours = _look(files)
    for theirs in found:
        for what in theirs:
            if theirs[what] != ours[what]:
                raise UserError(
                    f"{workers.name}: {what}: expected {ours[what]} as here, found {theirs[what]} on another machine"
                )


def _look(files: list[Path]) -> dict[str, object]:
    """What must be the same on all machines."""
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
    return {
        "Python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "polars", "pyarrow")},
        "the code of data/": code.hexdigest()[:12],
        **{str(file): _seen(file) for file in files},
    }


def _seen(file: Path) -> str:
    if file.is_file():
        return f"a file of {file.stat().st_size:,} bytes"
    return "a folder" if file.is_dir() else "nothing"
