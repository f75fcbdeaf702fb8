"""Which rank holds which piece of the tables, by the pieces' sizes alone: whole numbers, without tensors."""

import heapq
from collections.abc import Sequence

from data.cli import UserError


def work(rows: Sequence[int], ids: Sequence[int]) -> list[int]:
    """Sizes for `place` that count a piece's traffic beside its rows: its share of all rows plus its share of all ids,
    in one unit. rows: of each piece; ids: that a row of the batch sends to it.

    By rows alone the small tables, which hold next to nothing, gather on the emptiest rank; but a table of ten rows
    costs the wires as much as one of ten million.
    """
    all_rows, all_ids = sum(rows), sum(ids)
    return [own_rows * all_ids + own_ids * all_rows for own_rows, own_ids in zip(rows, ids, strict=True)]


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
