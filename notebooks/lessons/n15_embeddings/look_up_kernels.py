"""From one look-up to a block of them: out[i] = table[ids[i]] in three kernels, each with one change.

Bytes of each look-up: an id and a row of DIM numbers in, a row out. DIM is a power of two, and no id is checked.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32  # look-ups of a program


@triton.jit
def one_id(table_ptr, ids_ptr, out_ptr, DIM: tl.constexpr):
    id = tl.load(ids_ptr)
    lanes = tl.arange(0, DIM)
    row = tl.load(table_ptr + id * DIM + lanes)
    tl.store(out_ptr + lanes, row)


@triton.jit
def an_id_a_program(table_ptr, ids_ptr, out_ptr, DIM: tl.constexpr):
    i = tl.program_id(0)
    id = tl.load(ids_ptr + i)
    lanes = tl.arange(0, DIM)
    row = tl.load(table_ptr + id * DIM + lanes)
    tl.store(out_ptr + i * DIM + lanes, row)


@triton.jit
def a_block_of_ids(table_ptr, ids_ptr, out_ptr, count, DIM: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    lanes = tl.arange(0, DIM)
    rows = tl.load(table_ptr + id[:, None] * DIM + lanes, there[:, None])
    tl.store(out_ptr + i[:, None] * DIM + lanes, rows, there[:, None])


def look_up(kernel, table: Tensor, ids: Tensor) -> Tensor:
    """One of the three kernels on table [V, D] and ids [N] → [N, D]."""
    out = torch.empty(len(ids), table.shape[1], dtype=table.dtype, device=table.device)
    if kernel is a_block_of_ids:
        kernel[(triton.cdiv(len(ids), BLOCK),)](table, ids, out, len(ids), DIM=table.shape[1], BLOCK=BLOCK)
    elif len(ids):
        kernel[(len(ids) if kernel is an_id_a_program else 1,)](table, ids, out, DIM=table.shape[1])
    return out
