"""Tables in pieces: a run of rows and a block of columns of one table each.

What the pieces are follows from the tables' sizes and two settings, never from the number of ranks: what is saved by
piece can be read on any number of them.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Piece(NamedTuple):
    """Rows first to end of a table, and of them the block-th of its equal blocks of columns."""

    table: int
    first: int
    end: int
    block: int

    @property
    def rows(self) -> int:
        return self.end - self.first


class Cut(Protocol):
    """How tables are cut. piece_rows: the most rows of a piece; 0: a table's rows are one piece. columns: blocks that a
    table's columns are cut into."""

    piece_rows: int
    columns: int


def pieces(rows: Sequence[int], cut: Cut) -> list[Piece]:
    """All pieces of tables of so many rows, in order."""
    return [
        Piece(table, first, min(first + (cut.piece_rows or count), count), block)
        for table, count in enumerate(rows)
        for first in range(0, count, cut.piece_rows or count)
        for block in range(cut.columns)
    ]
