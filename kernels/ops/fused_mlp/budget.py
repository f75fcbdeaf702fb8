"""What of a fused MLP lies on a chip, by its widths, the tile and the dtype: whether a configuration fits.

    registers      rows · columns · 4            the sums of a tile, while a layer is added up (`stays_on_chip` counts
                                                 what there is beside them where they stay for the next layer)
    shared memory  stages · (rows + columns) · depth · itemsize      the operands on their way to the product
    L2 cache       programs · rows · Σ P(N_l) · itemsize             what is between the layers, of all programs at once

The weights are read from the L2 cache too, once a tile; they count as far as they are to stay there. What a block may
have of shared memory is the device's own; registers are an H200's, and the L2 cache an H100's: an H200 has 60 MiB.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ...device import launch
from .packing import Layer, elements, layers, padded

PROCESSORS = 132  # streaming multiprocessors of an H100 or H200
REGISTERS = 64 * 1024 * 4  # bytes of a processor's registers
L2 = 50 * 2**20  # bytes of an H100's L2 cache
WHOLE = REGISTERS // 4  # bytes of a weight that is multiplied whole: it passes through registers to shared memory
# Bytes of registers for addresses, masks and the loop, where what is between the layers stays in registers too. ptxas
# spills nothing of test_tiles.py's MLPs, which leave so many, and some of 64-512-256-64-16 in tf32, which leaves 32 KB.
OWN = 56 * 1024
NARROW = 64  # columns of a first layer that is computed within the second one's loop
MOST_CUDA_LAYERS = 16


class FusedMLPError(ValueError):
    """The layers do not fit on a chip; says the bytes needed and available."""


@dataclass(frozen=True)
class Tile:
    """How a launch cuts the work.

    rows: of a program at once. columns: of a layer that are added up at once. stages: steps of a product's loop that
    are in shared memory at once. budget: bytes of a step's operands. warps: of a program. on_chip: whether what is
    between the layers stays in registers, as it can where `stays_on_chip`.
    """

    rows: int
    columns: int
    stages: int
    budget: int
    warps: int
    on_chip: bool = False


@dataclass(frozen=True)
class OnChip:
    """Bytes of registers and shared memory that a program takes, and of the L2 cache that all take together; and of
    shared memory that a block may have."""

    registers: int
    shared: int
    l2: int
    available: int

    @property
    def fits(self) -> bool:
        return self.registers <= REGISTERS // 2 and self.shared <= self.available and self.l2 <= L2

    def __str__(self) -> str:
        return (
            f"registers {self.registers} of {REGISTERS // 2} bytes, shared memory {self.shared} of {self.available}, "
            f"L2 cache {self.l2} of {L2}"
        )


def step(inner: int, outer: int, budget: int, itemsize: int) -> int:
    """How many columns of a product's operands a step of its loop takes: `outer` rows of them fill the budget."""
    found = 16
    while 2 * found * outer * itemsize <= budget and found < inner and found < 128:
        found *= 2
    return found


def block(columns: int, first: int, most: int) -> int:
    """The columns that are added up at once from `first` on: a power of two, at least 16."""
    return max(16, min(most, 1 << (columns - first - 1).bit_length()))


def is_chained(parts: Sequence[Layer], narrow: int = NARROW) -> bool:
    """Whether the first layer is computed within the second one's loop: where both are products of matrices."""
    return len(parts) > 1 and parts[0].inputs <= narrow and parts[0].outputs > 1 and parts[1].outputs > 1


def whole_columns(layer: Layer, columns: int, itemsize: int) -> int:
    """How many columns of a layer are multiplied at once, of rows in registers: all, if their weight is no more than
    WHOLE. Else, two parts of a weight being on their way at once, what half of that holds, and at least 16."""
    most = WHOLE // (block(layer.inputs, 0, columns) * itemsize)
    width = block(layer.outputs, 0, columns)
    return width if width <= most else max(16, most // 2)


def stays_on_chip(parts: Sequence[Layer], tile: Tile, dtype: torch.dtype, narrow: int = NARROW) -> bool:
    """Whether what an MLP's layers give can stay in a program's registers: the first is computed within the second
    one's loop, the others have all columns at once, and but for the last a whole weight. They hold the sums of one
    layer, a weight, and x."""
    if not is_chained(parts, narrow) or max(layer.outputs for layer in parts[1:]) > tile.columns:
        return False
    size, widths = dtype.itemsize, [whole_columns(layer, tile.columns, dtype.itemsize) for layer in parts[2:]]
    if any(width < layer.outputs for layer, width in zip(parts[2:-1], widths, strict=False)):
        return False
    sums = tile.rows * max(block(layer.outputs, 0, tile.columns) for layer in parts[1:]) * max(size, 4)
    x = tile.rows * block(parts[0].inputs, 0, NARROW) * size
    return sums + _whole(parts, tile, size) + x <= REGISTERS - OWN


def _whole(parts: Sequence[Layer], tile: Tile, itemsize: int) -> int:
    """Bytes of the largest weight that is multiplied whole, or of its part."""
    return itemsize * max(
        (block(layer.inputs, 0, tile.columns) * whole_columns(layer, tile.columns, itemsize) for layer in parts[2:]),
        default=0,
    )


def on_chip_bytes(
    widths: str | Sequence[int], tile: Tile, dtype: torch.dtype, programs: int = PROCESSORS,
    available: int | None = None, narrow: int = NARROW, keep: bool = False,
) -> OnChip:
    """What the forward of an MLP of these widths (K, N1, …, NL) has on the chip at once, at most.

    available: bytes of shared memory that a block may have; default: on the current device, without a GPU on an H200.
    keep: whether what the layers give is kept for a gradient.
    """
    text = widths if isinstance(widths, str) else "-".join(map(str, widths))
    parts, size = layers(text), dtype.itemsize
    chained = is_chained(parts, narrow)
    registers = shared = 0
    for layer in parts:  # a narrow first one too, as if it were computed by itself
        x = block(parts[0].inputs, 0, NARROW) if chained and layer is parts[1] else 0
        for columns in _blocks(layer.outputs, tile.columns):
            depth = step(padded(layer.inputs), columns + tile.rows, tile.budget, size)
            needed = tile.stages * (tile.rows + columns) * depth * size
            if x:  # in place of the rows' columns come layer 0's weights; x and what layer 0 gives lie there once
                once = max(_in_flight(tile) * (columns + x), (tile.stages - 1) * (columns + x) + tile.rows) * depth
                once += tile.rows * (x if tile.rows >= 64 and not keep else x + depth)
                needed = max(needed, once * size + 1024)
            registers = max(registers, tile.rows * columns * max(size, 4))
            shared = max(shared, needed)
    between = sum(padded(layer.outputs) for layer in parts[:-1])
    if tile.on_chip:  # no workspace; a whole weight, and the last sums on their way to another layout
        between, last = 0, block(parts[-1].outputs, 0, tile.columns)
        shared = max(shared, _whole(parts, tile, size) + tile.rows * last * max(size, 4))
    l2 = (programs * tile.rows * between + elements(text)) * size
    return OnChip(registers, shared, l2, launch.shared_memory() if available is None else available)


def backward_on_chip_bytes(widths: str, tile: Tile, dtype: torch.dtype, available: int | None = None) -> OnChip:
    """The same of the backward's rows, from the last layer to the first; what is between goes to memory.

    Beside the operands are the sums on their way to another layout, of the dtype.
    """
    size, registers, shared = dtype.itemsize, 0, 0
    for layer in layers(widths):
        for columns in _blocks(layer.inputs, tile.columns):
            depth = step(padded(layer.outputs), columns + tile.rows, tile.budget, size)
            operands = _in_flight(tile) * (tile.rows + columns) * depth
            registers = max(registers, tile.rows * columns * max(size, 4))
            shared = max(shared, (operands + tile.rows * columns) * size)
    available = launch.shared_memory() if available is None else available
    return OnChip(registers, shared, elements(widths) * size, available)


def _blocks(columns: int, most: int) -> Iterator[int]:
    return (block(columns, first, most) for first in range(0, columns, most))


def _in_flight(tile: Tile) -> int:
    """Steps that are in shared memory at once: one less than stages where wgmma, of 64 rows, is not what waits."""
    return tile.stages if tile.rows >= 64 else min(tile.stages, max(2, tile.stages - 1))


def fitted(tile: Tile, needed: Callable[[Tile], OnChip]) -> Tile:
    """The tile, or where its shared memory is more than a block may have one that takes shorter steps, then fewer
    columns at once: needed(tile) says what it takes. If none fits, the last one tried."""
    while (found := needed(tile)).shared > found.available:
        if tile.budget > 8 * 1024:
            tile = replace(tile, budget=tile.budget // 2)
        elif tile.columns > 16:
            tile = replace(tile, columns=tile.columns // 2)
        else:
            break
    return tile


def weight_tiles(widths: str, tile: int) -> tuple[int, ...]:
    """How many tiles, tile × tile, the weights of the layers before each have, and in the end of all."""
    found = [0]
    for layer in layers(widths):
        found.append(found[-1] + -(-padded(layer.outputs) // tile) * -(-padded(layer.inputs) // tile))
    return tuple(found)


# -------------------------------------------------------------------------------------------------- the CUDA kernel


def cuda_bytes(widths: str, dtype: torch.dtype, cluster: int = 8) -> int:
    """The least shared memory that the CUDA kernel can do with, in bytes: plan.cuh's layout, its smallest tile.

    Four stages of 64 columns of weights, 256 + 16 bytes of k; and 16 rows of what the even and of what the odd layers
    read. Where the outputs of no layer but the last are more than 64 columns for each block of the largest cluster,
    they may take their inputs' place.
    """
    size = dtype.itemsize
    columns = [-(-n // 16) * 16 if size > 2 else -(-n // 32) * 32 for n in map(int, widths.split("-"))]
    read, written = columns[:-1], columns[1:]
    rows = [max(part) * size + 16 for part in (read[::2], read[1::2]) if part]
    needed = sum(rows) if max(written[:-1], default=0) > cluster * 64 else max(rows)
    return 4 * 64 * (256 + 16) + 16 * needed


@functools.lru_cache(maxsize=256)
def check_cuda(op: str, widths: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise FusedMLPError if the CUDA kernel cannot run an MLP of these widths on this device."""
    cluster = 8 if launch.architecture(device) >= 90 else 1
    needed, available = cuda_bytes(widths, dtype, cluster), launch.shared_memory(device)
    if needed > available:
        raise FusedMLPError(
            f"{op}: an MLP of widths {widths} does not fit on the chip: shared memory {needed} of {available}"
        )
    if (count := widths.count("-")) > MOST_CUDA_LAYERS:
        raise FusedMLPError(f"{op}: the CUDA kernel takes up to {MOST_CUDA_LAYERS} layers; got {count}")


def fits(backend: str, arguments: Mapping[str, object]) -> None:
    """`check_cuda` for a call by "cuda". For Triton's kernels the launcher says so, which knows the tile."""
    if backend == "cuda":
        check_cuda("fused_mlp", arguments["widths"], arguments["packed"].dtype, arguments["packed"].device)
