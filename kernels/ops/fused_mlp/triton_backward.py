"""The gradients of the whole MLP.              h(l-1) what layer l takes, g(l) the gradient of what its act is taken of

    g(L) = grad_out · final'(z(L)),   g(l-1) = (g(l) Wl) · act'(z(l-1)),   grad_x = g(1) W1
    grad_Wl = g(l)ᵀ h(l-1),   grad_bl = Σ over the rows of g(l)

Three launches. chain_kernel: a program takes ROWS rows from the last layer to the first, as the forward does the other
way, and writes each g(l). weights_kernel: a program takes a tile of one layer's weight and a part of the rows; all
layers are in one grid. The third adds the parts up, always in the same order (kernels/device/column_sum.py). In tf32
the second is CUDA's where NVRTC compiles it (weights.cuh).

In tf32 (kernels/device/tf32.py) g is rounded when it is read, for a bias's gradient is a sum of g as it is; h is as the
forward kept it, but x and what the forward kept as it is are rounded when they are read; weights are rounded as in the
forward. g Wl is no product of matrices in a layer of one output, and nothing of it is rounded.

Bytes: h, g and the weights read once and written once, and 4 bytes for each part of the rows and weight. FLOPs: twice
the forward's.
"""

import triton
import triton.language as tl

from ...device.activations import input_gradient
from ...device.tf32 import rounded
from .triton_kernel import (
    block_of,
    count_of,
    keeps_rounded,
    kept,
    of_layer,
    product,
    rows_of,
    step_of,
    whole,
)


@triton.constexpr_function
def gradient_start(widths, layer):
    """The column of `grads` at which g(layer) starts: P(out) columns for each layer."""
    from .packing import layers, padded

    return sum(padded(each.outputs) for each in layers(widths)[:layer])


@triton.constexpr_function
def tile_start(widths, layer, tile):
    """How many tiles, tile × tile, the weights of the layers before have."""
    from .budget import weight_tiles

    return weight_tiles(widths, tile)[layer]


@triton.jit
def derivative(
    gradient, hidden, hidden_stride, out, row, in_rows, column,
    WIDTHS: tl.constexpr, LAYER: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr,
):
    """gradient · act'(z) of a layer's columns, from what the forward kept."""
    LAST: tl.constexpr = count_of(WIDTHS) - 1
    N: tl.constexpr = of_layer("outputs", WIDTHS, LAYER)
    if kept("inputs", WIDTHS, ACTIVATION, FINAL, LAYER) >= 0:
        at = hidden + kept("inputs", WIDTHS, ACTIVATION, FINAL, LAYER)
        value = rows_of(at, hidden_stride, row, in_rows, column, whole(N))
    elif LAYER == LAST:
        value = rows_of(out, N, row, in_rows, column, N)
    else:
        at = hidden + kept("outputs", WIDTHS, ACTIVATION, FINAL, LAYER)
        value = rows_of(at, hidden_stride, row, in_rows, column, whole(N))
    return input_gradient(gradient, value.to(gradient.dtype), FINAL if LAYER == LAST else ACTIVATION)


@triton.jit
def last_columns(
    grad_out, hidden, hidden_stride, out, grads, grads_stride, row, in_rows,
    WIDTHS: tl.constexpr, START: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr, COLUMNS: tl.constexpr,
):
    """COLUMNS columns of g(L), from START on."""
    LAST: tl.constexpr = count_of(WIDTHS) - 1
    N: tl.constexpr = of_layer("outputs", WIDTHS, LAST)
    dtype: tl.constexpr = grads.dtype.element_ty
    column = START + tl.arange(0, block_of(N, START, COLUMNS))
    gradient = rows_of(grad_out, N, row, in_rows, column, N).to(tl.float64 if dtype == tl.float64 else tl.float32)
    gradient = derivative(
        gradient, hidden, hidden_stride, out, row, in_rows, column, WIDTHS, LAST, ACTIVATION, FINAL
    )
    at = grads + gradient_start(WIDTHS, LAST) + row * grads_stride + column[None, :]
    tl.store(at, gradient.to(dtype), in_rows & (column < whole(N))[None, :])


@triton.jit
def chain_columns(
    packed, hidden, hidden_stride, grads, grads_stride, grad_x, x_stride, row, in_rows,
    start, WIDTHS: tl.constexpr, LAYER: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr,
    PRECISION: tl.constexpr, OF_WEIGHTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BUDGET: tl.constexpr,
    STAGES: tl.constexpr,
):
    """WIDTH columns, from `start` on, of the gradient of what a layer takes."""
    dtype: tl.constexpr = packed.dtype.element_ty
    K: tl.constexpr = of_layer("inputs", WIDTHS, LAYER)
    N: tl.constexpr = of_layer("outputs", WIDTHS, LAYER)
    STEP: tl.constexpr = step_of(whole(N), WIDTH + ROWS, BUDGET, dtype)
    column = start + tl.arange(0, WIDTH)
    sums = tl.zeros([ROWS, WIDTH], tl.float64 if dtype == tl.float64 else tl.float32)
    if N == 1:
        g = rows_of(grads + gradient_start(WIDTHS, LAYER), grads_stride, row, in_rows, tl.arange(0, 1), N)
        weight = tl.load(packed + of_layer("weight", WIDTHS, LAYER) + column, column < whole(K), other=0.0)
        sums += g.to(sums.dtype) * weight.to(sums.dtype)[None, :]
    else:
        for n in tl.range(0, whole(N), STEP, num_stages=STAGES):
            output = n + tl.arange(0, STEP)
            g = rows_of(grads + gradient_start(WIDTHS, LAYER), grads_stride, row, in_rows, output, whole(N))
            mask = (output < whole(N))[:, None] & (column < whole(K))[None, :]
            at = packed + of_layer("weight", WIDTHS, LAYER) + output[:, None] * whole(K) + column[None, :]
            weights = rounded(tl.load(at, mask, other=0.0), OF_WEIGHTS)
            sums = product(rounded(g, PRECISION), weights, sums, PRECISION)
    if LAYER == 0:
        tl.store(grad_x + row * x_stride + column[None, :], sums.to(dtype), in_rows & (column < K)[None, :])
    else:
        gradient = derivative(
            sums, hidden, hidden_stride, packed, row, in_rows, column, WIDTHS, LAYER - 1, ACTIVATION, FINAL
        )
        gradient = tl.where((column < K)[None, :], gradient, 0.0)  # Inf · 0 of the padding would be NaN
        at = grads + gradient_start(WIDTHS, LAYER - 1) + row * grads_stride + column[None, :]
        tl.store(at, gradient.to(dtype), in_rows & (column < whole(K))[None, :])


@triton.jit
def chain_layer(
    packed, hidden, hidden_stride, grads, grads_stride, grad_x, x_stride, row, in_rows,
    WIDTHS: tl.constexpr, LAYER: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr,
    PRECISION: tl.constexpr, OF_WEIGHTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BUDGET: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradient of all that a layer takes: COLUMNS columns at a time in a loop, then those that are left."""
    K: tl.constexpr = of_layer("inputs", WIDTHS, LAYER)
    EVEN: tl.constexpr = K // COLUMNS * COLUMNS
    for start in tl.range(0, EVEN, COLUMNS):
        chain_columns(
            packed, hidden, hidden_stride, grads, grads_stride, grad_x, x_stride, row, in_rows, start,
            WIDTHS, LAYER, ACTIVATION, FINAL, PRECISION, OF_WEIGHTS, ROWS, COLUMNS, BUDGET, STAGES,
        )
    if EVEN < K:
        chain_columns(
            packed, hidden, hidden_stride, grads, grads_stride, grad_x, x_stride, row, in_rows, EVEN,
            WIDTHS, LAYER, ACTIVATION, FINAL, PRECISION, OF_WEIGHTS, ROWS, block_of(K, EVEN, COLUMNS), BUDGET, STAGES,
        )


@triton.jit(do_not_specialize=["rows"])
def chain_kernel(
    grad_out_ptr, packed_ptr, hidden_ptr, out_ptr, grads_ptr, grad_x_ptr, rows, x_columns,
    WIDTHS: tl.constexpr, LOWEST: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr, PRECISION: tl.constexpr,
    OF_WEIGHTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BUDGET: tl.constexpr, STAGES: tl.constexpr,
):
    """grads: [rows, Σ P(N)]. LOWEST: 0 where grad_x is wanted, else 1. OF_WEIGHTS: as in the forward."""
    LAST: tl.constexpr = count_of(WIDTHS) - 1
    hidden_stride: tl.constexpr = kept("columns", WIDTHS, ACTIVATION, FINAL, 0)
    grads_stride: tl.constexpr = gradient_start(WIDTHS, LAST + 1)
    N: tl.constexpr = of_layer("outputs", WIDTHS, LAST)
    K: tl.constexpr = of_layer("inputs", WIDTHS, 0)
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None].to(tl.int64)
    in_rows = first + row < rows
    hidden, grads = hidden_ptr + first * hidden_stride, grads_ptr + first * grads_stride
    for start in tl.static_range(0, N, COLUMNS):
        last_columns(
            grad_out_ptr + first * N, hidden, hidden_stride, out_ptr + first * N, grads, grads_stride, row, in_rows,
            WIDTHS, start, ACTIVATION, FINAL, COLUMNS,
        )
    for back in tl.static_range(0, LAST + 1 - LOWEST):
        tl.debug_barrier()  # other threads read a layer's gradient than wrote it
        chain_layer(
            packed_ptr, hidden, hidden_stride, grads, grads_stride,
            grad_x_ptr if grad_x_ptr is None else grad_x_ptr + first * x_columns, x_columns, row, in_rows,
            WIDTHS, LAST - back, ACTIVATION, FINAL, PRECISION, OF_WEIGHTS, ROWS, COLUMNS, BUDGET, STAGES,
        )
    if LOWEST == 0:  # x's columns that were not read
        for start in range(K, x_columns, 64):
            column = start + tl.arange(0, 64)
            zeros = tl.zeros([ROWS, 64], grad_x_ptr.dtype.element_ty)
            mask = in_rows & (column < x_columns)[None, :]
            tl.store(grad_x_ptr + (first + row) * x_columns + column[None, :], zeros, mask)


@triton.jit
def weight_tile(
    taken, taken_stride, grads, grads_stride, target, tile, first, last,
    WIDTHS: tl.constexpr, LAYER: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, STAGES: tl.constexpr,
):
    """A tile of a layer's weight gradient, of rows first to last - 1; the first tile of a row of tiles has the bias.

    taken: h(l-1). The padding's gradient is zero.
    """
    K: tl.constexpr = of_layer("inputs", WIDTHS, LAYER)
    N: tl.constexpr = of_layer("outputs", WIDTHS, LAYER)
    ACROSS: tl.constexpr = (whole(K) + TILE - 1) // TILE
    output = tile // ACROSS * TILE + tl.arange(0, TILE)
    column = tile % ACROSS * TILE + tl.arange(0, TILE)
    sum_dtype: tl.constexpr = tl.float64 if grads.dtype.element_ty == tl.float64 else tl.float32
    sums = tl.zeros([TILE, TILE], sum_dtype)
    of_rows = tl.zeros([STEP, TILE], sum_dtype)
    for start in tl.range(first, last, STEP, num_stages=STAGES):
        row = (start + tl.arange(0, STEP))[:, None]
        in_rows = row < last
        g = rows_of(grads + gradient_start(WIDTHS, LAYER), grads_stride, row, in_rows, output, whole(N))
        h = rows_of(taken, taken_stride, row, in_rows, column, K if LAYER == 0 else whole(K))
        if LAYER == 0 or not keeps_rounded(WIDTHS, LAYER - 1, True, ACTIVATION):
            h = rounded(h, PRECISION)
        sums = product(rounded(g, PRECISION).T, h, sums, PRECISION)
        of_rows += g.to(sum_dtype)
    dtype: tl.constexpr = target.dtype.element_ty
    mask = (output < whole(N))[:, None] & (column < whole(K))[None, :]
    at = target + of_layer("weight", WIDTHS, LAYER) + output[:, None] * whole(K) + column[None, :]
    exists = (output < N)[:, None] & (column < K)[None, :]  # Inf · 0 of the padding would be NaN
    tl.store(at, tl.where(exists, sums, 0.0).to(dtype), mask)
    bias = target + of_layer("bias", WIDTHS, LAYER) + output
    tl.store(bias, tl.sum(of_rows, axis=0).to(dtype), (output < whole(N)) & (tile % ACROSS == 0))


@triton.jit(do_not_specialize=["rows", "part"])
def weights_kernel(
    x_ptr, x_columns, hidden_ptr, grads_ptr, target_ptr, rows, part,
    WIDTHS: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, STAGES: tl.constexpr,
):
    """The grid is (tiles of all layers, parts of `part` rows); target: [parts, elements of the buffer]."""
    hidden_stride: tl.constexpr = kept("columns", WIDTHS, ACTIVATION, FINAL, 0)
    grads_stride: tl.constexpr = gradient_start(WIDTHS, count_of(WIDTHS))
    elements: tl.constexpr = of_layer("end", WIDTHS, count_of(WIDTHS) - 1)
    first = tl.program_id(1).to(tl.int64) * part
    last = tl.minimum(first + part, rows)
    target = target_ptr + tl.program_id(1).to(tl.int64) * elements
    for layer in tl.static_range(count_of(WIDTHS)):
        tile = tl.program_id(0) - tile_start(WIDTHS, layer, TILE)
        if (tile >= 0) & (tl.program_id(0) < tile_start(WIDTHS, layer + 1, TILE)):
            if layer == 0:
                weight_tile(x_ptr, x_columns, grads_ptr, grads_stride, target, tile, first, last,
                            WIDTHS, layer, ACTIVATION, PRECISION, TILE, STEP, STAGES)
            else:
                weight_tile(hidden_ptr + kept("outputs", WIDTHS, ACTIVATION, FINAL, layer - 1), hidden_stride,
                            grads_ptr, grads_stride, target, tile, first, last,
                            WIDTHS, layer, ACTIVATION, PRECISION, TILE, STEP, STAGES)
