"""The pieces of the embedding tables, and which rank holds which: whole numbers, without tensors and processes.

A piece is a run of rows and a block of columns of one table. Which pieces there are follows from the tables and two
settings, never from the number of ranks: what is saved by piece can be read on any number of them.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple, Protocol

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


class Cut(Protocol):
    """How tables are cut. columns: blocks of columns, from 1; piece_rows: most rows of a piece, 0: all of a table's."""

    columns: int
    piece_rows: int


def pieces(rows: Sequence[int], cut: Cut) -> list[Piece]:
    """The pieces of tables with so many rows each, in order."""
    return [
        Piece(table, first, min(first + (cut.piece_rows or count), count), block)
        for table, count in enumerate(rows)
        for first in range(0, count, cut.piece_rows or count)
        for block in range(cut.columns)
    ]


def work(all_pieces: Sequence[Piece], ids: Sequence[int]) -> list[int]:
    """Sizes for `place` that count a piece's traffic beside its rows: its share of all rows, plus its share of all ids
    that are sent to a piece, in one unit. ids: of each table, that a row of the batch brings.

    By rows alone the small tables, which hold next to nothing, gather on the emptiest rank; but a table of ten rows
    costs the wires as much as one of ten million.
    """
    rows, sent = sum(piece.rows for piece in all_pieces), sum(ids[piece.table] for piece in all_pieces)
    return [piece.rows * sent + ids[piece.table] * rows for piece in all_pieces]


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
