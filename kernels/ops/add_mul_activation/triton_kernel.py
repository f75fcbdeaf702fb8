"""out = act(x + multiplier · y + bias)            x, y, out [rows, columns], bias [columns], contiguous

Bytes: x and y read, out written: 3 · rows · columns · itemsize; the bias stays in cache. FLOPs: 3 an element and the
activation's. So memory sets the time. The backward reads the gradient and what the derivative needs (out; x and y; or
nothing), writes grad_x and grad_y, and sums grad_bias on the way: it reads nothing twice.
"""

import triton
import triton.language as tl

from ...device.activations import activate, input_gradient
from ...device.column_sum import tile_columns
from ...device.scalar import scalar

# Only the last block has a mask: a mask whose edge is anywhere keeps the compiler from 16-byte accesses unless the
# number of elements is a multiple of 16.


@triton.jit
def _forward_block(
    x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, mask, COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr
):
    dtype = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    multiplier = scalar(multiplier, dtype)
    x = tl.load(x_ptr + offsets, mask).to(dtype)
    y = tl.load(y_ptr + offsets, mask).to(dtype)
    bias = tl.load(bias_ptr + offsets % COLUMNS, mask).to(dtype)
    tl.store(out_ptr + offsets, activate(x + multiplier * y + bias, ACTIVATION), mask)


@triton.jit
def general(
    x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, elements,
    COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):
    start = tl.program_id(0)
    if WIDE:  # 2^31 elements or more
        start = start.to(tl.int64)
    start = start * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= elements:
        _forward_block(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, None, COLUMNS, ACTIVATION)
    else:
        mask = offsets < elements
        _forward_block(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, mask, COLUMNS, ACTIVATION)


# ------------------------------------------------------------------------------------------------------------------
# The backward: one pass over a tile of columns, down one chunk of the rows.


@triton.jit
def backward_kernel(
    grad_ptr, out_ptr, x_ptr, bias_ptr, y_ptr, grad_x_ptr, grad_y_ptr, sums_ptr, multiplier, rows, chunk_rows,
    COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr, READS: tl.constexpr,
    ROW_BLOCK: tl.constexpr, COLUMN_BLOCK: tl.constexpr,
):
    dtype = tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32
    multiplier = scalar(multiplier, dtype)
    columns = tile_columns(COLUMNS, COLUMN_BLOCK)
    in_columns = columns < COLUMNS
    first_row = tl.program_id(1).to(tl.int64) * chunk_rows
    end_row = tl.minimum(first_row + chunk_rows, rows)
    sums = tl.zeros([ROW_BLOCK, COLUMN_BLOCK], dtype)
    if READS == "inputs":
        bias = tl.load(bias_ptr + columns, in_columns, other=0.0).to(dtype)
    for block_row in range(first_row, end_row, ROW_BLOCK):
        row = (block_row + tl.arange(0, ROW_BLOCK))[:, None]
        offsets = row.to(tl.int64) * COLUMNS + columns
        mask = (row < end_row) & in_columns
        grad = tl.load(grad_ptr + offsets, mask, other=0.0).to(dtype)
        if READS == "output":
            value = tl.load(out_ptr + offsets, mask, other=0.0).to(dtype)
        elif READS == "inputs":
            value = tl.load(x_ptr + offsets, mask, other=0.0).to(dtype)
            value += multiplier * tl.load(y_ptr + offsets, mask, other=0.0).to(dtype) + bias
        else:
            value = grad
        grad_x = input_gradient(grad, value, ACTIVATION)
        if grad_x_ptr is not None:
            tl.store(grad_x_ptr + offsets, grad_x, mask)
        if grad_y_ptr is not None:
            tl.store(grad_y_ptr + offsets, multiplier * grad_x, mask)
        if sums_ptr is not None:
            sums += tl.where(mask, grad_x, 0.0)
    if sums_ptr is not None:
        tl.store(sums_ptr + tl.program_id(1).to(tl.int64) * COLUMNS + columns, tl.sum(sums, axis=0), in_columns)

