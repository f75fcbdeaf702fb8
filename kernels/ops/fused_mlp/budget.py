"""What of a fused MLP lies on a chip, by its widths, the tile and the dtype: whether a configuration fits.

    registers      rows · columns · 4            the sums of a tile, while a layer is added up
    shared memory  stages · (rows + columns) · depth · itemsize      the operands on their way to the product
    L2 cache       programs · rows · Σ P(N_l) · itemsize             what is between the layers, of all programs at once

The weights are read from the L2 cache too, once a tile; they count as far as they are to stay there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.ops.fused_mlp.packing import elements, layers, padded

PROCESSORS = 132  # streaming multiprocessors of an H100 or H200
REGISTERS = 64 * 1024 * 4  # bytes of a processor's registers
SHARED = 227 * 1024  # bytes of shared memory that a block can have
L2 = 50 * 2**20  # bytes of its L2 cache
MOST_CUDA_LAYERS = 16


class FusedMLPError(ValueError):
    """The layers do not fit on a chip; says the bytes needed and available."""


@dataclass(frozen=True)
class Tile:
    """How a launch cuts the work.

    rows: of a program at once. columns: of a layer that are added up at once. stages: steps of a product's loop that
    are in shared memory at once. budget: bytes of a step's operands. warps: of a program.
    """

    rows: int
    columns: int
    stages: int
    budget: int
    warps: int


@dataclass(frozen=True)
class OnChip:
    """Bytes of registers and shared memory that a program takes, and of the L2 cache that all take together."""

    registers: int
    shared: int
    l2: int

    @property
    def fits(self) -> bool:
        return self.registers <= REGISTERS // 2 and self.shared <= SHARED and self.l2 <= L2

    def __str__(self) -> str:
        return (
            f"registers {self.registers} of {REGISTERS // 2} bytes, shared memory {self.shared} of {SHARED}, L2 cache "
            f"{self.l2} of {L2}"
        )


def step(inner: int, outer: int, budget: int, itemsize: int) -> int:
    """How many columns of a product's operands a step of its loop takes: `outer` rows of them fill the budget."""
    found = 16
    while 2 * found * outer * itemsize <= budget and found < inner and found < 128:
        found *= 2
    return found


def on_chip_bytes(widths: str | Sequence[int], tile: Tile, dtype: torch.dtype, programs: int = PROCESSORS) -> OnChip:
    """What the forward of an MLP of these widths (K, N1, …, NL) has on the chip at once."""
    text = widths if isinstance(widths, str) else "-".join(map(str, widths))
    registers = shared = 0
    for layer in layers(text):
        columns = max(16, min(tile.columns, 1 << (layer.outputs - 1).bit_length()))
        depth = step(padded(layer.inputs), columns + tile.rows, tile.budget, dtype.itemsize)
        registers = max(registers, tile.rows * columns * max(dtype.itemsize, 4))
        shared = max(shared, tile.stages * (tile.rows + columns) * depth * dtype.itemsize)
    between = sum(padded(layer.outputs) for layer in layers(text)[:-1])
    l2 = (programs * tile.rows * between + elements(text)) * dtype.itemsize
    return OnChip(registers, shared, l2)


def weight_tiles(widths: str, tile: int) -> tuple[int, ...]:
    """How many tiles, tile × tile, the weights of the layers before each have, and in the end of all."""
    found = [0]
    for layer in layers(widths):
        found.append(found[-1] + -(-padded(layer.outputs) // tile) * -(-padded(layer.inputs) // tile))
    return tuple(found)


# -------------------------------------------------------------------------------------------------- the CUDA kernel


def cuda_bytes(widths: str, dtype: torch.dtype) -> int:
    """The least shared memory that the CUDA kernel can do with, in bytes: plan.cuh's layout, its smallest tile.

    Four stages of 64 columns of weights, 256 + 16 bytes of k; and 16 rows of what the even and of what the odd layers
    read. Where no layer's outputs are more than 8 blocks of 64 columns, they may take their inputs' place.
    """
    size = dtype.itemsize
    columns = [-(-n // 16) * 16 if size > 2 else -(-n // 32) * 32 for n in map(int, widths.split("-"))]
    read, written = columns[:-1], columns[1:]
    rows = [max(part) * size + 16 for part in (read[::2], read[1::2]) if part]
    needed = sum(rows) if max(written) > 8 * 64 else max(rows)
    return 4 * 64 * (256 + 16) + 16 * needed


def check_cuda(op: str, widths: str, dtype: torch.dtype) -> None:
    """Raise FusedMLPError if the CUDA kernel cannot run an MLP of these widths."""
    if (needed := cuda_bytes(widths, dtype)) > SHARED:
        raise FusedMLPError(
            f"{op}: an MLP of widths {widths} does not fit on the chip: shared memory {needed} of {SHARED}"
        )
    if (count := widths.count("-")) > MOST_CUDA_LAYERS:
        raise FusedMLPError(f"{op}: the CUDA kernel takes up to {MOST_CUDA_LAYERS} layers; got {count}")
