"""out = relu(x + bias)                            x, out [rows, columns], bias [columns], contiguous

Bytes: x read, out written: 2 · rows · columns · itemsize; the bias stays in cache. FLOPs: 2 an element. The backward
reads the gradient and out, writes grad_x, and sums grad_bias on the way: it reads nothing twice.
"""

import triton
import triton.language as tl

from ...device.activations import activate, input_gradient
from ...device.column_sum import tile_columns


@triton.jit
def _forward_block(x_ptr, bias_ptr, out_ptr, offsets, mask, COLUMNS: tl.constexpr):
    dtype = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    x = tl.load(x_ptr + offsets, mask).to(dtype)
    bias = tl.load(bias_ptr + offsets % COLUMNS, mask).to(dtype)
    tl.store(out_ptr + offsets, activate(x + bias, "relu"), mask)


@triton.jit
def forward_kernel(
    x_ptr, bias_ptr, out_ptr, elements, COLUMNS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):
    start = tl.program_id(0)
    if WIDE:  # 2^31 elements or more
        start = start.to(tl.int64)
    start = start * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    # Only the last block has a mask: a mask whose edge is anywhere keeps the compiler from 16-byte accesses unless the
    # number of elements is a multiple of 16.
    if start + BLOCK <= elements:
        _forward_block(x_ptr, bias_ptr, out_ptr, offsets, None, COLUMNS)
    else:
        _forward_block(x_ptr, bias_ptr, out_ptr, offsets, offsets < elements, COLUMNS)


@triton.jit
def backward_kernel(
    grad_ptr, out_ptr, grad_x_ptr, sums_ptr, rows, chunk_rows,
    COLUMNS: tl.constexpr, ROW_BLOCK: tl.constexpr, COLUMN_BLOCK: tl.constexpr,
):
    dtype = tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32
    columns = tile_columns(COLUMNS, COLUMN_BLOCK)
    in_columns = columns < COLUMNS
    first_row = tl.program_id(1).to(tl.int64) * chunk_rows
    end_row = tl.minimum(first_row + chunk_rows, rows)
    sums = tl.zeros([ROW_BLOCK, COLUMN_BLOCK], dtype)
    for block_row in range(first_row, end_row, ROW_BLOCK):
        row = (block_row + tl.arange(0, ROW_BLOCK))[:, None]
        offsets = row.to(tl.int64) * COLUMNS + columns
        mask = (row < end_row) & in_columns
        grad = tl.load(grad_ptr + offsets, mask, other=0.0).to(dtype)
        out = tl.load(out_ptr + offsets, mask, other=0.0).to(dtype)
        grad_x = input_gradient(grad, out, "relu")
        if grad_x_ptr is not None:
            tl.store(grad_x_ptr + offsets, grad_x, mask)
        if sums_ptr is not None:
            sums += grad_x  # zero outside the mask
    if sums_ptr is not None:
        tl.store(sums_ptr + tl.program_id(1).to(tl.int64) * COLUMNS + columns, tl.sum(sums, axis=0), in_columns)

