"""Which tile each of Triton's kernels takes, and whether it fits: what the launcher goes by, and backend="auto"."""

from __future__ import annotations

import torch

from ...device import launch
from ...device.launch import cdiv
from . import budget
from .budget import NARROW, PROCESSORS, OnChip, Tile
from .packing import layers

# A tile is for up to so many rows (tile_of, on_chip_tile), or for more; what it takes of a chip grows with them.
MOST_ROWS = (256, 16 * PROCESSORS, 32 * PROCESSORS, 64 * PROCESSORS, 1 << 20)

# Activations between layers that need no registers beside the sums': of gelu some were spilled (13-512-256-48-7).
FEW_REGISTERS = ("identity", "relu", "leaky_relu")


def tile_of(
    rows: int, dtype: torch.dtype, precision: str, *, tile_rows: int = 0, columns: int = 0, stages: int = 0,
    budget: int = 0, warps: int = 0,
) -> Tile:
    """The tile for so many rows; a number that is not 0 is taken instead.

    A tile of more rows reads the weights less often, one of fewer gives work to more processors: 16 rows while every
    program has a processor, then 32; beyond 32 rows for each of them 64, and of halves, whose products take half the
    shared memory, 128. The weights of few rows are bound by how many are on their way. This was the fastest, or within
    5 % of it, of what was tried on an H200 (16 to 128 rows, 128 to 512 columns, 3 and 4 stages, 48 and 80 KB, 4 and 8
    warps). Full float32 products go without tensor cores and hold both operands in registers: small tiles.
    """
    if dtype == torch.float64 or (dtype == torch.float32 and precision == "ieee"):
        height = 16 if rows <= 256 else 32 if rows <= 32 * PROCESSORS else 64
        own = Tile(height, 64 if dtype == torch.float64 else 128, 2, 16 * 1024, 4)
    elif rows <= 16 * PROCESSORS:
        own = Tile(16, 512, 3, (80 if dtype == torch.float32 else 48) * 1024, 4)
    elif rows <= 32 * PROCESSORS:
        own = Tile(32, 512, 3, 80 * 1024, 8)
    elif dtype == torch.float32:
        own = Tile(64, 512, 4, 48 * 1024, 8)
    else:
        own = Tile(128, 256, 3, 48 * 1024, 8)
    return Tile(
        tile_rows or own.rows, columns or own.columns, stages or own.stages, budget or own.budget, warps or own.warps
    )


def many(dtype: torch.dtype) -> int:
    """From more rows on what is between the layers stays on the chip, where it fits: `on_chip_tile`.

    The loop over the first two layers has the products, tile and steps of notebook 15's own kernel, "128 a tile", and
    rounds to tf32, which the lesson's leaves to the tensor cores. µs on an H200 of 13-512-256-64-16, by tile_of / on
    the chip / by the lesson's kernel (with 16 columns more, and 512 rows more than 16,384):

        rows        8,192           16,384                65,536
        tf32        23.1 / – / –    42.1 / 22.2 / 20.9    153.3 / 81.5 / 78.1
        bfloat16    –               18.8 / 13.4 / 14.8     67.2 / 49.0 / 53.0

    (traces/results/h200: lecture_15.json, fused_mlp.json.) In tf32 the lesson's wave of 128 rows takes 20.4 µs with
    2,112 rows too, and here a launch before it rounds the weights: it gains from the second wave of 64 rows on. Halves
    have 128 rows either way, from where tile_of says so.
    """
    return (64 if dtype == torch.float32 else 32) * PROCESSORS


def on_chip_tile(dtype: torch.dtype) -> Tile:
    """The tile of notebook 15's kernel: 128 rows, the first two layers in steps of 32 columns."""
    return Tile(128, 256, 3, 12 * 1024 * dtype.itemsize, 8, on_chip=True)


def is_on_chip(
    rows: int, widths: str, dtype: torch.dtype, precision: str, activation: str = "relu", keep: bool = False,
    narrow: int = NARROW, least: int | None = None,
) -> bool:
    """Whether so many rows take `on_chip_tile`, where a block may have the shared memory. On sm_90 alone, whose
    products (wgmma) take weights from shared memory: elsewhere they too pass through registers, and of float32 ptxas
    spills a thousand bytes a thread. least: in place of many(dtype)."""
    if keep or rows <= (many(dtype) if least is None else least) or launch.architecture() != 90:
        return False
    if dtype == torch.float64 or (dtype == torch.float32 and precision == "ieee") or activation not in FEW_REGISTERS:
        return False
    return budget.stays_on_chip(layers(widths), on_chip_tile(dtype), dtype, narrow)


def forward_tile(
    rows: int, widths: str, dtype: torch.dtype, precision: str, *, tile: Tile | None = None, programs: int = PROCESSORS,
    narrow: int = NARROW, keep: bool = False, available: int | None = None, activation: str = "relu",
    least: int | None = None, **changed,
) -> tuple[Tile, OnChip]:
    """The tile, made smaller where a block may have less shared memory than an H200's, and what it takes. A `tile` that
    is given stays. keep, available: as in on_chip_bytes; activation, least: as in is_on_chip; changed: as tile_of takes
    it."""

    def needed(tile: Tile) -> OnChip:
        return budget.on_chip_bytes(widths, tile, dtype, min(programs, cdiv(rows, tile.rows)), available, narrow, keep)

    if tile is None and not changed and is_on_chip(rows, widths, dtype, precision, activation, keep, narrow, least):
        tile = on_chip_tile(dtype) if needed(on_chip_tile(dtype)).fits else None
    tile = tile or budget.fitted(tile_of(rows, dtype, precision, **changed), needed)
    return tile, needed(tile)


def backward_tile(
    rows: int, widths: str, dtype: torch.dtype, precision: str, *, tile: Tile | None = None,
    available: int | None = None, **changed,
) -> tuple[Tile, OnChip]:
    """The same for the backward's rows."""
    # Tensor cores take float32 weights [out, in] across from 64 rows on by way of registers, which then do not suffice.
    most = min(rows, 32 * PROCESSORS) if dtype == torch.float32 else rows
    if most > 32 * PROCESSORS:
        changed = {"tile_rows": 64, **changed}
    elif most <= 16 * PROCESSORS and dtype == torch.float32 and precision == "tf32":
        # On an H200 main's MLPs with 2,048 rows take 27.2 and 13.9 µs by 8 warps, 29.7 and 15.4 by 4.
        changed = {"warps": 8, **changed}

    def needed(tile: Tile) -> OnChip:
        return budget.backward_on_chip_bytes(widths, tile, dtype, available)

    tile = tile or budget.fitted(tile_of(most, dtype, precision, **changed), needed)
    return tile, needed(tile)


def weight_parts(rows: int, widths: str, tile: int, parts: int = 0) -> tuple[int, int]:
    """(parts of the rows, rows in each but the last), by the shape alone: every GPU adds up in the same order.

    Enough to give each processor four tiles, of at least 256 rows each. parts: so many instead.
    """
    parts = parts or max(1, min(cdiv(4 * PROCESSORS, budget.weight_tiles(widths, tile)[-1]), cdiv(rows, 256)))
    return parts, cdiv(rows, parts)
