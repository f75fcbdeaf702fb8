"""Tables in pieces: a run of rows and a block of columns of one table each, and which rank holds which.

What the pieces are follows from the tables' sizes and two settings, never from the number of ranks: a checkpoint names
pieces, and another number of ranks places the same ones otherwise.

    whole tables         an id and a vector for each look-up
    blocks of columns    an id for each block's rank, a part of the vector from each: a hot table's work is spread
    runs of rows         an id for each run's rank, a vector from each, all but one of them zero: for a table that no
                         device holds
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.ahead import in_order
from data.cli import UserError
from model.config import DLRMConfig, Kernels, Preset, TableOptimizer
from model.sharding import placement
from model.tables import bound_of

MOST_ROWS = (1 << 31) - 1  # of a piece: its rows travel as int32
DRAWN = 1 << 24  # numbers that are drawn at a time, by one thread


class Wire(StrEnum):
    """What vectors and their gradients are on their way between ranks."""

    FP32 = "fp32"
    BF16 = "bf16"  # half the bytes; each number is rounded to 8 bits, by at most 2^-8 of itself


@dataclass(frozen=True)
class Sharding:
    """How a run's tables and rows are cut. It stays the run's own, however many ranks go on with it.

    piece_rows: the most rows of a piece; 0: a table's rows are one piece.
    columns: blocks that a table's columns are cut into.
    exchange: what vectors travel in.
    data_shards: runs of rows that the training split is read in, side by side: the order of the rows follows from
        it. A rank reads those that its rows are in. 0: as many as there are ranks, or fewer, so that it divides the
        batch size.

    UserError, naming the option, for values that cannot be.
    """

    piece_rows: int = 0
    columns: int = 1
    exchange: Wire = Wire.FP32
    data_shards: int = 0

    def __post_init__(self):
        for name, least in (("piece_rows", 0), ("columns", 1), ("data_shards", 0)):
            if (value := getattr(self, name)) < least:
                raise UserError(f"{_option(name)}: expected a number from {least}, got {value}")

    def given(self) -> list[str]:
        """The options that are not as they are without being given."""
        return [_option(field.name) for field in fields(self) if getattr(self, field.name) != field.default]

    def check(self, preset: Preset) -> None:
        """Raise UserError, naming the option, unless the preset's model can be trained so."""
        config, settings = preset.model, preset.train
        if config.kernels is not Kernels.FUSED:
            raise UserError("torchrun: rows are updated where they lie, by the fused kernels; add --kernels fused")
        if config.embedding_dim % self.columns:
            raise UserError(f"--columns {self.columns}: expected a divisor of embedding_dim, {config.embedding_dim}")
        if self.columns > 1 and settings.table_optimizer is TableOptimizer.ROWWISE_ADAGRAD:
            raise UserError(
                f"--columns {self.columns}: rowwise_adagrad divides by the mean square of a whole row's gradient, and "
                "no rank has all of its columns; use --piece-rows, or --table-optimizer adagrad"
            )
        if settings.batch_size % (self.data_shards or 1):
            raise UserError(
                f"--data-shards {self.data_shards}: expected a divisor of batch_size, {settings.batch_size}"
            )

    def shards(self, batch_size: int, world: int) -> int:
        """data_shards, or what stands for 0."""
        return self.data_shards or max(n for n in range(1, min(world, batch_size) + 1) if batch_size % n == 0)


WHOLE = Sharding()


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


class Piece(NamedTuple):
    """Rows first to end of a table, and of them the block-th of its equal blocks of columns."""

    table: int
    first: int
    end: int
    block: int

    @property
    def rows(self) -> int:
        return self.end - self.first

    @property
    def name(self) -> str:
        return f"{self.table}.{self.first}-{self.end}.{self.block}"

    def of(self, table: Tensor, columns: int) -> Tensor:
        """The piece of a whole table, [rows, D] cut into so many blocks; a view."""
        width = table.shape[1] // columns
        return table[self.first : self.end, self.block * width : (self.block + 1) * width]


def tables_of(config: DLRMConfig) -> list[int]:
    """The rows of each table."""
    return [cardinality + 1 for cardinality in config.cardinalities]


def pieces(rows: Sequence[int], sharding: Sharding) -> list[Piece]:
    """All pieces of tables of so many rows."""
    if not sharding.piece_rows and max(rows) > MOST_ROWS:
        raise UserError(f"--piece-rows: a table of {max(rows):,} rows needs pieces of at most {MOST_ROWS:,}")
    return [
        Piece(table, first, min(first + (sharding.piece_rows or count), count), block)
        for table, count in enumerate(rows)
        for first in range(0, count, sharding.piece_rows or count)
        for block in range(sharding.columns)
    ]


def place(of_all: Sequence[Piece], ranks: int) -> list[list[Piece]]:
    """The pieces of each rank, by `placement.work`, each counted as one that gets an id of a row: how many ids bags
    have is not known. UserError if there are fewer pieces than ranks."""
    if len(of_all) < ranks:
        raise UserError(
            f"torchrun: {ranks} ranks, and the tables are {len(of_all)} pieces; use --columns or --piece-rows"
        )
    placed = placement.place(placement.work([piece.rows for piece in of_all], [1] * len(of_all)), ranks)
    return [[of_all[index] for index in own] for own in placed]


def draw(weight: Tensor, piece: Piece, table_rows: int, seed: int) -> None:
    """Give a piece, [rows, columns], its initial weights: those of a table of so many rows, from (seed, piece) alone.
    Whoever holds the piece draws the same, and nobody else's: on the CPU, DRAWN numbers at a time, whatever the device
    that they are for."""
    parts = weight.split(max(DRAWN // weight.shape[1], 1))
    states = np.random.SeedSequence((seed, *piece)).generate_state(len(parts), np.uint64)
    of_parts = [
        partial(_draw, part, bound_of(table_rows), int(state) >> 1) for part, state in zip(parts, states, strict=True)
    ]
    if len(parts) == 1:
        of_parts[0]()
        return
    workers = max(len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)), 1)  # other ranks draw too
    for _ in in_order(of_parts, workers, ahead=workers):
        pass


@torch.no_grad()  # of this thread
def _draw(part: Tensor, bound: float, seed: int) -> None:
    drawn = torch.empty(part.shape, device="cpu")
    part.copy_(drawn.uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed)))
