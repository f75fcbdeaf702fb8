"""embedding_bags's Triton kernels: grids and constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...device.launch import begins_early, cdiv, empty, interpreted, next_power_of_2, triton_functions

kernels = triton_functions(f"{__package__}.triton_kernel")
backward_kernels = triton_functions(f"{__package__}.triton_backward")


@dataclass(frozen=True)
class Limits:
    """Constants to tune, and those that a test makes small.

    warps: of a program. bytes_of_a_thread: that a thread of the look-up of one id a bag copies: four loads of 16 bytes
    on their way at once. Of bags a program takes bags_bytes a thread, and asks for the rows of `ahead` ids of each bag
    before it adds the first; it has few warps (bags_warps), for it takes as long as its longest bag. 8 bags of 64 bytes
    and 4 ids are 32 lines, one for each lane of the one warp; of narrow rows it takes no more than 64 (lines), each of
    which takes registers. The backward's: zeros of a program (block); elements of sums (sums), each of a chunk of
    sorted ids. wide_size: elements of output, ids or rows from which on indices have 64 bits.
    """

    warps: int = 4
    bytes_of_a_thread: int = 64
    bags_warps: int = 1
    bags_bytes: int = 16
    ahead: int = 4
    lines: int = 64
    block: int = 1024
    sums: int = 128
    chunk: int = 64
    wide_size: int = 2**31


# The interpreter's time goes by the program, and by the step of a loop.
INTERPRETED = Limits(bytes_of_a_thread=2**12, bags_bytes=2**14, ahead=2, lines=2**13, block=2**16, sums=2**16, chunk=16)


def _limits() -> Limits:
    return INTERPRETED if interpreted() else Limits()


def forward(
    tables: Tensor, row_offsets: Tensor, indices: Tensor, offsets: Tensor | None, mode: str, weights: Tensor | None,
    padding: int, out_of_range: str, out: Tensor, report: Tensor, limits: Limits | None = None,
) -> None:
    """As op.py declares it; all contiguous."""
    limits = limits or _limits()
    if offsets is not None or weights is not None:
        mode = mode if offsets is not None else "sum"
        _bags(tables, row_offsets, indices, offsets, mode, weights, padding, out_of_range, out, None, report, limits)
        return
    if out.numel() == 0:
        return
    width = tables.shape[1]
    columns, positions = _tile(width, limits.warps * 32 * limits.bytes_of_a_thread // out.itemsize)
    grid = (cdiv(indices.numel(), positions), cdiv(width, columns))
    early = begins_early()
    kernels.rows_kernel[grid](
        tables, row_offsets, indices, out, report, indices.numel(), tables.shape[0], padding,
        FEATURES=len(row_offsets) - 1, WIDTH=width, MISSING=out_of_range,
        WIDE=indices.numel() + positions >= limits.wide_size // width, EARLY=early, POSITIONS=positions,
        COLUMNS=columns, num_warps=limits.warps, **({"launch_pdl": True} if early else {}),
    )


def _tile(width: int, elements: int) -> tuple[int, int]:
    """(columns, rows) of a tile of about so many elements."""
    columns = min(next_power_of_2(width), elements)
    return columns, max(1, elements // columns)


def _bags(
    tables, row_offsets, indices, offsets, mode, weights, padding, out_of_range, out, found, report, limits
) -> None:
    """The look-up of ragged bags, or of weighted ids; out or found may be None."""
    features, width = len(row_offsets) - 1, tables.shape[1]
    bags = indices.numel() if offsets is None else len(offsets) - 1
    if bags * width == 0:
        return
    columns, each = _tile(width, limits.bags_warps * 32 * limits.bags_bytes // tables.itemsize)
    ahead = 1 if mode == "max" or offsets is None else limits.ahead
    each = min(each, max(1, limits.lines // ahead))
    wide = limits.wide_size - max(ahead, each)  # a step, or a program, may end beyond what there is
    kernels.bags_kernel[(cdiv(bags, each), cdiv(width, columns))](
        tables, row_offsets, indices, offsets, weights, out, found, report,
        bags, bags // features, indices.numel(), tables.shape[0], padding,
        FEATURES=features, WIDTH=width, MODE=mode, MISSING=out_of_range,
        WIDE=indices.numel() >= wide or max(bags, tables.shape[0]) >= wide,
        BAGS=each, COLUMNS=columns, AHEAD=ahead, num_warps=limits.bags_warps,
    )


def backward(
    grad: Tensor, row_offsets: Tensor, indices: Tensor, offsets: Tensor | None, weights: Tensor | None,
    tables: Tensor | None, tables_shape: Sequence[int],
    mode: str, padding: int, out_of_range: str, keys: Tensor, positions: Tensor, bags: Tensor, lengths: Tensor,
    grad_tables: Tensor | None, grad_weights: Tensor | None, limits: Limits | None = None,
) -> None:
    """The gradients that are not None: grad_tables [R, D], grad_weights like the weights. keys, positions, bags,
    lengths: as embedding_bags_sort gives them. tables: where a gradient reads them."""
    limits = limits or _limits()
    count, width = keys.numel(), tables_shape[1]
    if grad_tables is not None and grad_tables.numel():
        grid = (cdiv(grad_tables.numel(), limits.block),)
        backward_kernels.fill_kernel[grid](grad_tables, grad_tables.numel(), BLOCK=limits.block, num_warps=4)
    if not count:
        return
    bags = None if offsets is None else bags
    if grad_weights is not None and weights is not None:
        columns, each = _tile(width, 4 * limits.sums)
        backward_kernels.weights_kernel[(cdiv(count, each),)](
            grad, tables, keys, positions, bags, grad_weights, count,
            WIDTH=width, IDS=each, COLUMNS=columns, num_warps=4,
        )
    if grad_tables is None or not width:
        return
    mode = mode if offsets is not None else "sum"  # of one id every pooling is that id's row
    winner = None
    if mode == "max":
        winner = empty((len(offsets) - 1, width), torch.int64, indices)
        _bags(tables, row_offsets, indices, offsets, mode, None, padding, "zero", None, winner, None, limits)
    lengths = lengths if mode == "mean" else None
    accumulator = torch.float64 if grad.dtype == torch.float64 else torch.float32
    chunks = cdiv(count, limits.chunk)
    columns, each = _tile(width, limits.sums)
    parts = empty((chunks, 2, width), accumulator, grad)
    grid = (cdiv(chunks, each), cdiv(width, columns))
    constants = dict(WIDTH=width, CHUNK=limits.chunk, CHUNKS=each, COLUMNS=columns, num_warps=limits.warps)
    backward_kernels.sum_kernel[grid](
        grad, keys, positions, bags, lengths, weights, winner, grad_tables, parts, count, **constants
    )
    if chunks > 1:
        backward_kernels.finish_kernel[grid](keys, parts, grad_tables, count, **constants)
