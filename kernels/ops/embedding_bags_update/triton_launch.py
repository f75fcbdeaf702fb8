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
    tiles = launch.cdiv(count, length)
    heads, tails = (launch.empty((tiles, columns), torch.float32, tables) for _ in range(2))
    constants = dict(RULE=rule, WIDTH=columns, CHUNK=length, BLOCK=block)
    kernels.walk[(tiles,)](
        tables, state, keys, positions, grad, bags, lengths, weights, learning_rate, eps, heads, tails, count,
        **constants, num_warps=warps_of(length * block, 4),
    )
    if tiles > 1:
        parts = max(1, min(64, 4096 // block))
        kernels.finish[(tiles - 1,)](
            tables, state, keys, heads, tails, learning_rate, eps, count,
            **constants, PARTS=parts, num_warps=warps_of(parts * block, 2),
        )


def chunk_of(block: int) -> int:
    """Occurrences a tile, for rows of `block` elements, a power of two: 64, or up to 2048 elements, or one row."""
    return max(1, min(64, 2048 // block))


def warps_of(elements: int, few: int) -> int:
    """`few` warps where each has 256 elements at least; as many as have 1024 each, up to 32, where that is more."""
    return min(32, max(1, min(few, elements // 256), elements // 1024))
