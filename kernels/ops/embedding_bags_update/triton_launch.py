"""With which grid and constants triton_kernel.py's kernels update the tables."""

import torch

from ...device import launch

kernels = launch.triton_functions(f"{__package__}.triton_kernel")


def forward(
    tables, state, keys, positions, grad, bags, lengths, weights, learning_rate, rule, eps, chunk
) -> None:
    """tables and state are written; the arguments are those of op.py's declaration."""
    count, columns = keys.numel(), tables.shape[1]
    if not count or not columns:
        return
    block = launch.next_power_of_2(columns)
    length = chunk or chunk_of(block)
    chunks = launch.cdiv(count, length)
    partials = launch.empty((chunks, columns), torch.float32, tables)
    tensors = tables, state, keys, positions, grad, bags, lengths, weights, learning_rate, eps, partials, count
    # 32 elements of the tile [2 · length, block] a thread, where that makes no more than 32 warps.
    warps = min(32, max(1, 2 * length * block // 1024))
    constants = dict(RULE=rule, WIDTH=columns, CHUNK=length, BLOCK=block, num_warps=warps)
    kernels.walk[(chunks,)](*tensors, **constants)
    if chunks > 1:
        kernels.finish[(chunks,)](*tensors, chunks, **constants)


def chunk_of(block: int) -> int:
    """Occurrences a program, for rows of `block` elements, a power of two: a tile of 4096 elements, or of two rows."""
    return max(1, min(32, 2048 // block))
