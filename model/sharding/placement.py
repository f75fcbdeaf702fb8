"""The pieces of the embedding tables, and which rank holds which: whole numbers, without tensors and processes.

A piece is a run of rows and a block of columns of one table. Which pieces there are follows from the tables and two
settings, never from the number of ranks: what is saved by piece can be read on any number of them.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from data.cli import UserError


class Piece(NamedTuple):
    """Rows first ≤ row < end of a table, in its block-th block of columns."""

    table: int
    first: int
    end: int
    block: int

    @property
    def rows(self) -> int:
        return self.end - self.first


def pieces(rows: Sequence[int], columns: int = 1, piece_rows: int | None = None) -> list[Piece]:
    """The pieces of tables with so many rows each, in order.

    Args:
        columns: blocks of columns that each table is cut into.
        piece_rows: most rows of a piece; None: runs are whole tables.

    Raises:
        UserError: a setting is below 1, or a table has no rows.
    """
    for name, value in (("columns", columns), ("piece_rows", piece_rows), ("rows", min(rows, default=1))):
        if value is not None and value < 1:
            raise UserError(f"{name}: expected a number from 1, got {value}")
    return [
        Piece(table, first, min(first + (piece_rows or count), count), block)
        for table, count in enumerate(rows)
        for first in range(0, count, piece_rows or count)
        for block in range(columns)
    ]


def place(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """For each rank the indices of what it holds, ascending: the largest goes to the emptiest rank, one by one.

    Among equal sizes the first goes first, and among equally full ranks the one with fewer pieces is taken, then the
    first. A rank may hold nothing.

    Raises:
        UserError: ranks is below 1.
    """
    if ranks < 1:
        raise UserError(f"ranks: expected a number from 1, got {ranks}")
    placed: list[list[int]] = [[] for _ in range(ranks)]
    emptiest = [(0, 0, rank) for rank in range(ranks)]
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        held, count, rank = emptiest[0]
        placed[rank].append(index)
        heapq.heapreplace(emptiest, (held + sizes[index], count + 1, rank))
    return [sorted(own) for own in placed]
