"""Look-ups in tables whose pieces lie on several ranks: as model.dlrm.SparseArch, for `DLRM` and `TableUpdate` alike.

    ids of its rows   → rows of pieces, to the pieces' ranks   → their vectors, back   → [b, F, D] of its rows

A rank's b rows need vectors of all tables; the tables here are this rank's pieces, and are asked for the rows of all
ranks, B of them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from model.config import DLRMConfig
from model.dlrm import SparseArch
from model.sharding.exchange import Exchange
from model.sharding.pieces import Piece, Sharding, draw, pieces, place, tables_of
from model.tables import FusedTables


class PiecedTables(FusedTables):
    """`FusedTables` of this rank's pieces. A row of -1 is another rank's: it gives zeros, and no update touches it.

    pieces: in the order in which they lie in weight, [all rows, columns]. table_rows: of the whole tables.
    """

    out_of_range = "zero"
    is_exchanged = True

    def __init__(self, pieces: Sequence[Piece], columns: int, table_rows: Sequence[int], seed: int):
        super().__init__([piece.rows for piece in pieces], columns)
        self.pieces = tuple(pieces)
        for piece, weight in zip(self.pieces, self.split(self.weight.detach()), strict=True):
            draw(weight, piece, table_rows[piece.table], seed)

    def draw(self) -> None:
        """Nothing: each piece is drawn from its own seed."""

    def split(self, tensor: Tensor) -> Sequence[Tensor]:
        """The pieces' parts of weight, or of an optimizer's [all rows, …]; views."""
        return tensor.split(self.rows)


class ShardedSparseArch(SparseArch):
    """`SparseArch` with this rank's pieces of the tables. Each forward, and its backward, is one of all ranks.

    device: of the tables, which may be more than the host holds; all else is made on the CPU.
    """

    def __init__(
        self, config: DLRMConfig, vocabularies: Sequence[np.ndarray | Tensor] | None = None, *,
        sharding: Sharding, exchange: Exchange, seed: int, device: torch.device | None = None,
    ):
        rows = tables_of(config)
        placed = place(pieces(rows, sharding), exchange.world)
        own = placed[exchange.rank]
        width = config.embedding_dim // sharding.columns
        with torch.device(device or "cpu"):
            tables = PiecedTables(own, width, rows, seed)
        super().__init__(config, vocabularies, tables)
        self.exchange, self.features, self.blocks = exchange, len(rows), sharding.columns
        self.pieces_of = [len(of_rank) for of_rank in placed]
        self.order = [piece for of_rank in placed for piece in of_rank]  # as vectors arrive
        self.is_cut = len(self.order) > self.features * self.blocks  # whether some tables are several runs of rows

        def register(name: str, numbers: list[int]) -> None:
            self.register_buffer(name, torch.tensor(numbers), persistent=False)

        register("table_of", [piece.table for piece in self.order])
        register("first_of", [piece.first for piece in self.order])
        register("rows_of", [piece.rows for piece in self.order])
        slots = [piece.table * self.blocks + piece.block for piece in self.order]
        register("slot_of", slots)
        register("arrival", np.argsort(slots, kind="stable").tolist())  # where the vector of each slot arrives, uncut

    def forward(self, sparse: Tensor, offsets: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """As `SparseArch.forward` of this rank's rows, as many as exchange.counts says; all ranks call it together."""
        if offsets is None:
            vectors = self.tables(self._ids(self.rows(sparse)))
        else:
            vectors = self._pooled(sparse, offsets, batch_size)
        rows, counts = self.exchange.counts[self.exchange.rank], self.exchange.counts
        give = [count * len(self.tables) for count in counts]
        take = [rows * pieces for pieces in self.pieces_of]
        arrived = self.exchange.vectors(vectors.flatten(0, 1), give, take)
        of_ranks = zip(arrived.split(take), self.pieces_of, strict=True)
        parts = torch.cat([part.unflatten(0, (rows, pieces)) for part, pieces in of_ranks], dim=1)
        return self._together(parts)

    def _ids(self, rows: Tensor) -> Tensor:
        """int64 [b, F], rows of tables → int32 [B, own pieces], all ranks' rows of the pieces here."""
        of_pieces = self._in_pieces(rows.index_select(1, self.table_of), self.first_of, self.rows_of)
        give = [len(rows) * pieces for pieces in self.pieces_of]
        take = [count * len(self.tables) for count in self.exchange.counts]
        sent = torch.cat([part.flatten() for part in of_pieces.split(self.pieces_of, dim=1)])
        return self.exchange.ids(sent, give, take).unflatten(0, (sum(self.exchange.counts), len(self.tables)))

    def _pooled(self, ids: Tensor, offsets: Tensor, batch_size: int) -> Tensor:
        """The sums of all ranks' bags in the pieces here, [B, own pieces, columns].

        Two exchanges go before: how many ids each bag has, then the ids; for their number the host waits.
        """
        rows, _ = self.rows_of_bags(ids, offsets, batch_size)
        sent = [self._in_pieces(rows[piece.table], piece.first, piece.rows) for piece in self.order]
        lengths = offsets.diff().unflatten(0, (self.features, batch_size)).index_select(0, self.table_of).int()
        counts, own = self.exchange.counts, len(self.tables)
        of_bags = self.exchange.ids(
            lengths.flatten(), [batch_size * pieces for pieces in self.pieces_of], [count * own for count in counts]
        )
        of_bags = [
            part.unflatten(0, (own, count))
            for part, count in zip(of_bags.split([count * own for count in counts]), counts, strict=True)
        ]
        take = torch.stack([part.sum(1) for part in of_bags]).tolist()  # [ranks][own pieces]
        sizes, give = iter(map(len, sent)), []
        for pieces_ in self.pieces_of:
            give.append(sum(next(sizes) for _ in range(pieces_)))
        arrived = self.exchange.ids(torch.cat(sent), give, list(map(sum, take)))
        # From rank by rank, and piece by piece in each, to piece by piece, and rank by rank in each.
        parts = arrived.split([size for of_rank in take for size in of_rank])
        ordered = [parts[rank * own + piece] for piece in range(own) for rank in range(self.exchange.world)]
        ends = torch.cat(of_bags, dim=1).flatten().cumsum(0)
        return self.tables.pooled([torch.cat(ordered)], torch.cat([ends.new_zeros(1), ends]))

    def _in_pieces(self, rows: Tensor, first: Tensor | int, count: Tensor | int) -> Tensor:
        """Rows of tables as rows of pieces, int32; -1 where a piece has them not."""
        rows = rows - first
        return torch.where((rows >= 0) & (rows < count), rows, -1).int() if self.is_cut else rows.int()

    def _together(self, parts: Tensor) -> Tensor:
        """[b, pieces, columns] as they arrive → [b, F, D]."""
        if self.is_cut:
            slots = parts.new_zeros(len(parts), self.features * self.blocks, parts.shape[2])
            parts = slots.index_add(1, self.slot_of, parts)
        else:
            parts = parts.index_select(1, self.arrival)
        return parts.unflatten(1, (self.features, self.blocks)).flatten(2)
