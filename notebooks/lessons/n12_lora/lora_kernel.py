"""out = relu(linear + multiplier · thin B + bias)    linear = x Wᵀ [rows, columns], thin = x A [rows, RANK]

Bytes: linear read, out written: 2 · rows · columns · itemsize; thin, B and bias are small. FLOPs: 2 RANK an element.
So memory sets the time. The text is that of the notebook's answer and of its launch: a test compares them.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def lora_kernel(
    linear, thin, B, bias, out, multiplier, rows, columns,
    RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    rank, inside = tl.arange(0, RANK), (row < rows) & (column < columns)
    thin_tile = tl.load(thin + row * RANK + rank[None, :], row < rows, other=0.0)
    B_tile = tl.load(B + rank[:, None] * columns + column, column < columns, other=0.0)
    y = tl.dot(thin_tile, B_tile, input_precision="ieee")
    z = tl.load(linear + row * columns + column, inside).to(tl.float32) + multiplier * y
    z += tl.load(bias + column, column < columns)
    tl.store(out + row * columns + column, tl.where(z <= 0, 0.0, z), inside)


def launch(kernel, linear, thin, B, bias, multiplier, ROWS=64, COLUMNS=128):
    (rows, columns), rank = linear.shape, len(B)
    out = torch.empty_like(linear)
    grid = triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)
    tile = {"RANK": rank, "ROWS": ROWS, "COLUMNS": COLUMNS}
    kernel[grid](linear, thin, B, bias, out, multiplier, rows, columns, **tile)
    return out
