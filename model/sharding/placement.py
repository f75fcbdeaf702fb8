"""Which rank holds which piece of the tables, by the pieces' sizes alone: whole numbers, without tensors."""

import heapq
from collections.abc import Sequence

from data.cli import UserError
from model.sharding.pieces import Piece


def work(of_all: Sequence[Piece], ids: Sequence[int]) -> list[int]:
    """Sizes for `place` that count a piece's traffic beside its rows: its share of all rows, plus its share of all ids
    that are sent to a piece, in one unit. ids: of each table, that a row of the batch brings.

    By rows alone the small tables, which hold next to nothing, gather on the emptiest rank; but a table of ten rows
    costs the wires as much as one of ten million.
    """
    rows, sent = sum(piece.rows for piece in of_all), sum(ids[piece.table] for piece in of_all)
    return [piece.rows * sent + ids[piece.table] * rows for piece in of_all]


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
