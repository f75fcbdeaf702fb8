"""Which tiles triton_kernel.py's kernels take, and whether they fit."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.device.launch import cdiv, empty, interpreted, triton_functions
from kernels.ops.fused_mlp.budget import PROCESSORS, FusedMLPError, Tile, on_chip_bytes
from kernels.ops.fused_mlp.packing import hidden_parts, layers

functions = triton_functions("kernels.ops.fused_mlp.triton_kernel")
NARROW = 64  # columns of a first layer that is computed within the second one's loop


def tile_of(
    rows: int, dtype: torch.dtype, precision: str, *, tile_rows: int = 0, columns: int = 0, stages: int = 0,
    budget: int = 0, warps: int = 8,
) -> Tile:  # fmt: skip
    """The tile for so many rows; a number that is not 0 is taken instead.

    A tile of more rows reads the weights less often, one of fewer gives work to more processors: of 16 rows up to 256,
    of 32 up to 132 tiles of them, then 64, and 128 from where these fill all processors. Its sums take at most half of
    the registers. Full float32 products go without tensor cores and hold both operands in registers: small tiles.
    """
    full = dtype == torch.float64 or (dtype == torch.float32 and precision == "ieee")
    tile_rows = tile_rows or (16 if rows <= 256 else 32 if rows <= 32 * PROCESSORS else 64)
    if not tile_rows:
        raise AssertionError
    if interpreted():
        tile_rows = 64
    most = (128 if full else 512) if tile_rows <= 32 else 128 if full else 256
    return Tile(
        tile_rows,
        columns or (most // 2 if dtype == torch.float64 else most),
        stages or (2 if full else 3),
        budget or (16 if full else 64) * 1024,
        4 if full and warps == 8 else warps,
    )


def forward(
    x: Tensor, packed: Tensor, widths: str, activation: str, final_activation: str, precision: str, keep: bool,
    out: Tensor, hidden: Tensor, *, tile: Tile | None = None, programs: int = PROCESSORS, narrow: int = NARROW,
) -> None:  # fmt: skip
    """out = the MLP of x, and with keep hidden, as packing.py lays them out; contiguous, of one dtype."""
    rows = x.shape[0]
    if rows == 0:
        return
    tile = tile or tile_of(rows, x.dtype, precision)
    needed = on_chip_bytes(widths, tile, x.dtype, min(programs, cdiv(rows, tile.rows)))
    if not needed.fits:
        raise FusedMLPError(f"fused_mlp: an MLP of widths {widths} does not fit on the chip: {needed}")
    tiles = cdiv(rows, tile.rows)
    grid = min(tiles, programs)
    *_, columns = hidden_parts(widths, activation, final_activation)
    if not keep:
        hidden = empty((grid * tile.rows, max(columns, 1)), x.dtype, x)
    parts = layers(widths)
    functions.forward_kernel[(grid,)](
        x, packed, hidden, out, rows, x.shape[1], tiles,
        WIDTHS=widths, FIRST=int(len(parts) > 1 and parts[0].inputs <= narrow), ACTIVATION=activation,
        FINAL=final_activation, PRECISION=precision, KEEP=keep, ROWS=tile.rows, COLUMNS=tile.columns,
        BUDGET=tile.budget, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
