"""out = final(… act(x W1ᵀ + b1) … WLᵀ + bL)               x [B, K'], out [B, NL], weights and biases as in packing.py

A program takes ROWS rows from the first layer to the last. A layer's columns are added up in registers, [ROWS, COLUMNS]
in float32, while `depth` columns of the rows and of the weights at a time stream through shared memory, several steps
ahead of the product. What a layer gives goes to the program's own part of a workspace, where it stays in the L2 cache:
the next layer reads it from there, the weights' neighbour. Where a gradient is recorded, the workspace is `hidden`.

A first layer that is narrow (at most 64 columns) is not written at all: the second layer's loop computes each `depth`
columns of it when it needs them, from the rows and the weights that it holds.

Bytes: to and from memory x, out and the weights; from the L2 cache every weight once for each ROWS rows, and what is
between the layers twice. FLOPs: 2 B Σ N(l-1) N(l).

`WIDTHS`, "K-N1-…-NL", is known when the kernel is compiled, and so is every loop's length. Masks select and never
multiply: the NaN of a row stays in its row.
"""

import triton
import triton.language as tl

from kernels.device.activations import INTERPRETED, activate
from kernels.ops.fused_mlp.budget import step
from kernels.ops.fused_mlp.packing import hidden_parts, layers, padded


# What packing.py and budget.py say of these widths, as the kernels ask for it.


@triton.constexpr_function
def count_of(widths):
    return len(layers(widths))


@triton.constexpr_function
def inputs_of(widths, layer):
    return layers(widths)[layer].inputs


@triton.constexpr_function
def outputs_of(widths, layer):
    return layers(widths)[layer].outputs


@triton.constexpr_function
def whole(columns):
    """With the padding."""
    return padded(columns)


@triton.constexpr_function
def weight_of(widths, layer):
    return layers(widths)[layer].weight


@triton.constexpr_function
def bias_of(widths, layer):
    return layers(widths)[layer].bias


@triton.constexpr_function
def kept_outputs(widths, ACTIVATION, FINAL, layer):
    return hidden_parts(widths, ACTIVATION, FINAL)[0][layer]


@triton.constexpr_function
def kept_inputs(widths, ACTIVATION, FINAL, layer):
    return hidden_parts(widths, ACTIVATION, FINAL)[1][layer]


@triton.constexpr_function
def kept_columns(widths, ACTIVATION, FINAL):
    return hidden_parts(widths, ACTIVATION, FINAL)[2]


@triton.constexpr_function
def block_of(columns, first, most):
    """The columns that are added up at once from `first` on: a power of two, at least 16."""
    return max(16, min(most, triton.next_power_of_2(columns - first)))


@triton.constexpr_function
def step_of(columns, width, budget, itemsize):
    return step(columns, width, budget, itemsize)


@triton.constexpr_function
def itemsize_of(dtype):
    return dtype.primitive_bitwidth // 8


@triton.jit
def product(a, b, sums, PRECISION: tl.constexpr):
    """sums + a b. In the interpreter halves are cast first, whose own products it gets wrong."""
    if INTERPRETED and a.dtype != tl.float64:
        return sums + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif a.dtype == tl.float64:
        return tl.dot(a, b, sums, out_dtype=tl.float64)
    else:
        return tl.dot(a, b, sums, input_precision=PRECISION)


@triton.jit
def rows_of(pointer, stride, row, in_rows, column, COLUMNS: tl.constexpr):
    """[ROWS, depth] of a matrix; zeros for what it does not have."""
    return tl.load(pointer + row * stride + column[None, :], in_rows & (column < COLUMNS)[None, :], other=0.0)


@triton.jit
def weight_rows(packed, WIDTHS: tl.constexpr, LAYER: tl.constexpr, output, column):
    """[outputs, depth] of a layer's weight; zeros beyond its padded shape."""
    K: tl.constexpr = whole(inputs_of(WIDTHS, LAYER))
    N: tl.constexpr = whole(outputs_of(WIDTHS, LAYER))
    mask = (output < N)[:, None] & (column < K)[None, :]
    return tl.load(packed + weight_of(WIDTHS, LAYER) + output[:, None] * K + column[None, :], mask, other=0.0)


@triton.jit
def bias_row(packed, WIDTHS: tl.constexpr, LAYER: tl.constexpr, output, dtype: tl.constexpr):
    mask = output < whole(outputs_of(WIDTHS, LAYER))
    return tl.load(packed + bias_of(WIDTHS, LAYER) + output, mask, other=0.0).to(dtype)[None, :]


@triton.jit
def keep(
    hidden, stride, row, in_rows, output, z, dtype: tl.constexpr,
    WIDTHS: tl.constexpr, LAYER: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Write what the next layer, or the backward, reads of this layer; returns act(z)."""
    last: tl.constexpr = LAYER == count_of(WIDTHS) - 1
    value = activate(z, FINAL if last else ACTIVATION)
    mask = in_rows & (output < whole(outputs_of(WIDTHS, LAYER)))[None, :]
    at = hidden + row * stride + output[None, :]
    if not last:
        tl.store(at + kept_outputs(WIDTHS, ACTIVATION, FINAL, LAYER), value.to(dtype), mask)
    if KEEP and kept_inputs(WIDTHS, ACTIVATION, FINAL, LAYER) >= 0:
        tl.store(at + kept_inputs(WIDTHS, ACTIVATION, FINAL, LAYER), z.to(dtype), mask)
    return value


@triton.jit
def forward_layer(
    x, x_stride, packed, hidden, hidden_stride, out, row, in_rows,
    WIDTHS: tl.constexpr, LAYER: tl.constexpr, FIRST: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr,
    PRECISION: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BUDGET: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """One layer of the program's rows. Layer 1 where FIRST is 1 computes layer 0 on its way."""
    dtype: tl.constexpr = packed.dtype.element_ty
    sum_dtype: tl.constexpr = tl.float64 if dtype == tl.float64 else tl.float32
    K: tl.constexpr = inputs_of(WIDTHS, LAYER)
    N: tl.constexpr = outputs_of(WIDTHS, LAYER)
    READ: tl.constexpr = K if LAYER == 0 else whole(K)  # of the rows: x has no padding of its own
    if LAYER == FIRST and FIRST == 1:  # the rows and all their columns
        X: tl.constexpr = inputs_of(WIDTHS, 0)
        x_column = tl.arange(0, block_of(X, 0, 64))
        x_rows = rows_of(x, x_stride, row, in_rows, x_column, X)
    for start in tl.static_range(0, N, COLUMNS):
        WIDTH: tl.constexpr = block_of(N, start, COLUMNS)
        STEP: tl.constexpr = step_of(whole(K), WIDTH + ROWS, BUDGET, itemsize_of(dtype))
        output = start + tl.arange(0, WIDTH)
        sums = tl.zeros([ROWS, WIDTH], sum_dtype)
        for k in tl.range(0, whole(K), STEP, num_stages=STAGES):
            column = k + tl.arange(0, STEP)
            weights = weight_rows(packed, WIDTHS, LAYER, output, column)
            if LAYER == FIRST and FIRST == 1:
                w0 = weight_rows(packed, WIDTHS, 0, column, x_column)
                z0 = product(x_rows, w0.T, tl.zeros([ROWS, STEP], sum_dtype), PRECISION)
                z0 += bias_row(packed, WIDTHS, 0, column, sum_dtype)
                if KEEP and start == 0:
                    h = keep(hidden, hidden_stride, row, in_rows, column, z0, dtype,
                             WIDTHS, 0, ACTIVATION, FINAL, KEEP)  # fmt: skip
                else:
                    h = activate(z0, ACTIVATION)
                h = h.to(dtype)
            elif LAYER == 0:
                h = rows_of(x, x_stride, row, in_rows, column, READ)
            else:
                h = rows_of(hidden + kept_outputs(WIDTHS, ACTIVATION, FINAL, LAYER - 1), hidden_stride,
                            row, in_rows, column, READ)  # fmt: skip
            sums = product(h, weights.T, sums, PRECISION)
        sums += bias_row(packed, WIDTHS, LAYER, output, sum_dtype)
        value = keep(hidden, hidden_stride, row, in_rows, output, sums, dtype,
                     WIDTHS, LAYER, ACTIVATION, FINAL, KEEP)  # fmt: skip
        if LAYER == count_of(WIDTHS) - 1:
            tl.store(out + row * N + output[None, :], value.to(dtype), in_rows & (output < N)[None, :])


@triton.jit(do_not_specialize=["rows", "tiles"])
def forward_kernel(
    x_ptr, packed_ptr, hidden_ptr, out_ptr, rows, x_stride, tiles,
    WIDTHS: tl.constexpr, FIRST: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr, PRECISION: tl.constexpr,
    KEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BUDGET: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """hidden_ptr: [rows, …] where KEEP, else ROWS rows for each program."""
    stride: tl.constexpr = kept_columns(WIDTHS, ACTIVATION, FINAL)
    row = tl.arange(0, ROWS)[:, None].to(tl.int64)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        first = tile * tl.full((), ROWS, tl.int64)
        in_rows = first + row < rows
        hidden = hidden_ptr + (first if KEEP else tl.program_id(0).to(tl.int64) * ROWS) * stride
        for layer in tl.static_range(FIRST, count_of(WIDTHS)):
            forward_layer(
                x_ptr + first * x_stride, x_stride, packed_ptr, hidden, stride,
                out_ptr + first * outputs_of(WIDTHS, count_of(WIDTHS) - 1), row, in_rows,
                WIDTHS, layer, FIRST, ACTIVATION, FINAL, PRECISION, KEEP, ROWS, COLUMNS, BUDGET, STAGES,
            )  # fmt: skip
            tl.debug_barrier()  # a layer is read by other threads than wrote it
