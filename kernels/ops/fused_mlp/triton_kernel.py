"""out = final(… act(x W1ᵀ + b1) … WLᵀ + bL)               x [B, K'], out [B, NL], weights and biases as in packing.py

A program takes ROWS rows from the first layer to the last. A layer's columns are added up in registers, [ROWS, COLUMNS]
in float32, while `depth` columns of the rows and of the weights at a time stream through shared memory, several steps
ahead of the product. What a layer gives goes to the program's own part of a workspace, where it stays in the L2 cache:
the next layer reads it from there, the weights' neighbour. Where a gradient is recorded, the workspace is `hidden`.

ON_CHIP there is no workspace: behind the second layer, whose loop computes the first, what a layer gives stays in
registers, an operand of the next one's product with a whole weight. That is for tiles of many rows where no gradient is
recorded; budget.stays_on_chip says of which MLPs.

A first layer that is narrow (at most 64 columns) is not written at all: the second layer's loop computes each `depth`
columns of it when it needs them, from the rows and the weights that it holds. A layer of one output is no product of
matrices: it is added up plainly, in full float32 in every precision, as PyTorch's own is.

Bytes: to and from memory x, out and the weights; from the L2 cache every weight once for each ROWS rows, and what is
between the layers twice, ON_CHIP not at all. FLOPs: 2 B Σ N(l-1) N(l).

In tf32 operands are rounded (kernels/device/tf32.py): x and weights each time that they are read, in the registers from
which they are multiplied; what a layer gives, once, where it is written. Tiles of 64 rows or more multiply weights from
shared memory: there a launch before rounds all weights to a copy, for they pass through no register. For many weights
it does so in smaller tiles too (triton_launch.ROUNDED_BEFORE).

`WIDTHS`, "K-N1-…-NL", is known when the kernel is compiled, and so is every loop's length. Masks select and never
multiply: the NaN of a row stays in its row.
"""

import triton
import triton.language as tl

from ...device.activations import INTERPRETED, activate
from ...device.tf32 import rounded

# ------------------------------------------------------------------------------------------------------------------
# What packing.py and budget.py say of these widths. Triton follows every function that a module's names stand for, and
# would take plain ones for an error: so they are imported where they are called.


@triton.constexpr_function
def of_layer(what, widths, layer):
    from .packing import layers

    return getattr(layers(widths)[layer], what)


@triton.constexpr_function
def count_of(widths):
    return widths.count("-")


@triton.constexpr_function
def whole(columns):
    from .packing import padded

    return padded(columns)


@triton.constexpr_function
def kept(what, widths, ACTIVATION, FINAL, layer):
    """The column of `hidden` at which a layer's "outputs" or "inputs" stand."""
    from .packing import hidden_parts

    outputs, inputs, columns = hidden_parts(widths, ACTIVATION, FINAL)
    return {"outputs": outputs, "inputs": inputs}[what][layer] if what != "columns" else columns


@triton.constexpr_function
def block_of(columns, first, most):
    from .budget import block

    return block(columns, first, most)


@triton.constexpr_function
def whole_columns(widths, layer, columns, dtype):
    from .budget import whole_columns
    from .packing import layers

    return whole_columns(layers(widths)[layer], columns, dtype.primitive_bitwidth // 8)


@triton.constexpr_function
def step_of(columns, width, budget, dtype):
    from .budget import step

    return step(columns, width, budget, dtype.primitive_bitwidth // 8)


# ------------------------------------------------------------------------------------------------------------------


@triton.jit
def product(a, b, sums, PRECISION: tl.constexpr):
    """sums + a b. In the interpreter halves are cast first, whose own products it gets wrong.

    Full float32 products of a step are a sum of their own, at no cost: on an H200 the mean error of long sums is up to
    1.7 times as large. max_num_imprecise_acc, which is for other dtypes, keeps Triton from adding to `sums` at once.
    """
    if INTERPRETED and a.dtype != tl.float64:
        return sums + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif a.dtype == tl.float64:
        return tl.dot(a, b, sums, out_dtype=tl.float64)
    elif PRECISION == "ieee" and a.dtype == tl.float32:
        return sums + tl.dot(a, b, input_precision="ieee", max_num_imprecise_acc=1)
    else:
        return tl.dot(a, b, sums, input_precision=PRECISION)


@triton.constexpr_function
def keeps_rounded(widths, layer, KEEP, ACTIVATION):
    """Whether `hidden` has what a layer gives as the next one's product takes it; a next layer of one output takes it
    as it is. relu's derivative is of the sign, gelu's and identity's of nothing that a layer gives; but sigmoid's,
    h (1 - h), is of every bit, and is no more than rounding's error where h is near 1."""
    from .packing import derivative_reads_every_bit, layers

    if layer + 1 == len(layers(widths)):
        return False
    return layers(widths)[layer + 1].outputs > 1 and not (KEEP and derivative_reads_every_bit(ACTIVATION))


@triton.jit
def rows_of(pointer, stride, row, in_rows, column, COLUMNS: tl.constexpr):
    """[ROWS, depth] of a matrix; zeros for what it does not have."""
    return tl.load(pointer + row * stride + column[None, :], in_rows & (column < COLUMNS)[None, :], other=0.0)


@triton.jit
def weight_rows(packed, WIDTHS: tl.constexpr, LAYER: tl.constexpr, output, column, PRECISION: tl.constexpr):
    """[outputs, depth] of a layer's weight, an operand of such a product; zeros beyond its padded shape."""
    K: tl.constexpr = whole(of_layer("inputs", WIDTHS, LAYER))
    N: tl.constexpr = whole(of_layer("outputs", WIDTHS, LAYER))
    mask = (output < N)[:, None] & (column < K)[None, :]
    at = packed + of_layer("weight", WIDTHS, LAYER) + output[:, None] * K + column[None, :]
    return rounded(tl.load(at, mask, other=0.0), PRECISION)


@triton.jit
def bias_row(packed, WIDTHS: tl.constexpr, LAYER: tl.constexpr, output, dtype: tl.constexpr):
    mask = output < whole(of_layer("outputs", WIDTHS, LAYER))
    return tl.load(packed + of_layer("bias", WIDTHS, LAYER) + output, mask, other=0.0).to(dtype)[None, :]


@triton.jit
def keep(
    hidden, stride, row, in_rows, output, z, value, dtype: tl.constexpr,
    WIDTHS: tl.constexpr, LAYER: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr, PRECISION: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Write what the next layer, or the backward, reads of this layer: value = act(z), and z. The padding gets zeros:
    Inf · 0 of a padded row of the weight is NaN. Without `hidden` the next layer takes the value that is returned."""
    value = tl.where((output < of_layer("outputs", WIDTHS, LAYER))[None, :], value, 0.0)
    if keeps_rounded(WIDTHS, LAYER, KEEP, ACTIVATION):
        value = rounded(value, PRECISION)
    if hidden is not None:
        mask = in_rows & (output < whole(of_layer("outputs", WIDTHS, LAYER)))[None, :]
        at = hidden + row * stride + output[None, :]
        if count_of(WIDTHS) - 1 != LAYER:
            tl.store(at + kept("outputs", WIDTHS, ACTIVATION, FINAL, LAYER), value.to(dtype), mask)
        if KEEP and kept("inputs", WIDTHS, ACTIVATION, FINAL, LAYER) >= 0:
            tl.store(at + kept("inputs", WIDTHS, ACTIVATION, FINAL, LAYER), z.to(dtype), mask)
    return value.to(dtype)


@triton.jit
def forward_columns(
    x, x_stride, packed, hidden, hidden_stride, out, row, in_rows,
    WIDTHS: tl.constexpr, LAYER: tl.constexpr, CHAINED: tl.constexpr, START: tl.constexpr, ACTIVATION: tl.constexpr,
    FINAL: tl.constexpr, PRECISION: tl.constexpr, OF_WEIGHTS: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, BUDGET: tl.constexpr, STAGES: tl.constexpr, READ: tl.constexpr,
):
    """COLUMNS columns of a layer, from START on, for the program's rows; without `hidden` they are returned alone.
    CHAINED: layer 0 is computed on the way.

    READ: columns of x that may be read, K or, of halves, K padded. A mask that ends within 16 bytes makes loads of
    single numbers, and those of two bytes are waited for on the spot. So the loop ends before K does; the last step
    reads the padding, which may be NaN, and puts it aside. On an H200 2048 rows of 367 in bfloat16 then take 15.4 µs in
    place of 19.0; where the loop puts it aside 15.7.
    """
    dtype: tl.constexpr = packed.dtype.element_ty
    sum_dtype: tl.constexpr = tl.float64 if dtype == tl.float64 else tl.float32
    K: tl.constexpr = of_layer("inputs", WIDTHS, LAYER)
    N: tl.constexpr = of_layer("outputs", WIDTHS, LAYER)
    WIDTH: tl.constexpr = block_of(N, START, COLUMNS)
    STEP: tl.constexpr = step_of(whole(K), WIDTH + ROWS, BUDGET, dtype)
    if CHAINED:  # the rows, all their columns
        X: tl.constexpr = of_layer("inputs", WIDTHS, 0)
        x_column = tl.arange(0, block_of(X, 0, 64))
        x_rows = rounded(rows_of(x, x_stride, row, in_rows, x_column, X), PRECISION)
    output = START + tl.arange(0, WIDTH)
    sums = tl.zeros([ROWS, WIDTH], sum_dtype)
    END: tl.constexpr = K // STEP * STEP if LAYER == 0 and READ > K else whole(K)
    for k in tl.range(0, END, STEP, num_stages=STAGES):
        column = k + tl.arange(0, STEP)
        weights = weight_rows(packed, WIDTHS, LAYER, output, column, OF_WEIGHTS)
        if CHAINED:
            first_weights = weight_rows(packed, WIDTHS, 0, column, x_column, OF_WEIGHTS)
            z = product(x_rows, first_weights.T, tl.zeros([ROWS, STEP], sum_dtype), PRECISION)
            z += bias_row(packed, WIDTHS, 0, column, sum_dtype)
            h = activate(z, ACTIVATION)
            if KEEP and START == 0:
                keep(hidden, hidden_stride, row, in_rows, column, z, h, dtype, WIDTHS, 0, ACTIVATION, FINAL,
                     PRECISION, KEEP)
            if hidden is not None or K % STEP:
                h = tl.where((column < K)[None, :], h, 0.0)
            h = rounded(h.to(dtype), PRECISION)
        elif LAYER == 0:  # x, which has no padding of its own, and may have columns that are not to be read
            h = rounded(rows_of(x, x_stride, row, in_rows, column, READ), PRECISION)
        else:
            before = hidden + kept("outputs", WIDTHS, ACTIVATION, FINAL, LAYER - 1)
            h = rows_of(before, hidden_stride, row, in_rows, column, whole(K))
            if not keeps_rounded(WIDTHS, LAYER - 1, KEEP, ACTIVATION):
                h = rounded(h, PRECISION)
        sums = product(h, weights.T, sums, PRECISION)
    if whole(K) > END:
        column = END + tl.arange(0, block_of(whole(K), END, STEP))
        weights = weight_rows(packed, WIDTHS, LAYER, output, column, OF_WEIGHTS)
        h = rounded(rows_of(x, x_stride, row, in_rows, column, READ), PRECISION)
        sums = product(tl.where((column < K)[None, :], h, 0.0), weights.T, sums, PRECISION)
    return finish(sums, packed, hidden, hidden_stride, out, row, in_rows, output, WIDTHS, LAYER, ACTIVATION, FINAL,
                  PRECISION, KEEP)


@triton.jit
def columns_on_chip(
    h, packed, out, row, in_rows,
    WIDTHS: tl.constexpr, LAYER: tl.constexpr, START: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr,
    PRECISION: tl.constexpr, OF_WEIGHTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """Columns of a layer, from START on, for the program's rows. h: all that the layer before gave, in registers."""
    dtype: tl.constexpr = packed.dtype.element_ty
    sum_dtype: tl.constexpr = tl.float64 if dtype == tl.float64 else tl.float32
    K: tl.constexpr = of_layer("inputs", WIDTHS, LAYER)
    WIDTH: tl.constexpr = whole_columns(WIDTHS, LAYER, COLUMNS, dtype)
    column = tl.arange(0, block_of(K, 0, COLUMNS))
    output = START + tl.arange(0, WIDTH)
    if of_layer("outputs", WIDTHS, LAYER) == 1:  # as in only_column
        weight = tl.load(packed + of_layer("weight", WIDTHS, LAYER) + column, column < K, other=0.0)
        z = tl.sum(h.to(sum_dtype) * weight.to(sum_dtype)[None, :], axis=1, keep_dims=True)
        z = tl.where((output == 0)[None, :], z, 0.0)
    else:
        weights = weight_rows(packed, WIDTHS, LAYER, output, column, OF_WEIGHTS)
        z = product(h, weights.T, tl.zeros([ROWS, WIDTH], sum_dtype), PRECISION)
    return finish(z, packed, None, 0, out, row, in_rows, output, WIDTHS, LAYER, ACTIVATION, FINAL, PRECISION, False)


@triton.jit
def only_column(
    x, x_stride, packed, hidden, hidden_stride, out, row, in_rows,
    WIDTHS: tl.constexpr, LAYER: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr, PRECISION: tl.constexpr,
    KEEP: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):
    """The output of a layer that has one, for the program's rows. Two steps' loads of halves are on their way at once;
    wider numbers have registers for one step's. The loop stays a loop: 16,384 columns written out take ten seconds to
    compile."""
    sum_dtype: tl.constexpr = tl.float64 if packed.dtype.element_ty == tl.float64 else tl.float32
    K: tl.constexpr = of_layer("inputs", WIDTHS, LAYER)
    WIDTH: tl.constexpr = block_of(K, 0, STEP)
    AT_ONCE: tl.constexpr = 2 if packed.dtype.element_ty.primitive_bitwidth == 16 else 1
    sums = tl.zeros([ROWS, WIDTH], sum_dtype)
    for k in tl.range(0, K, WIDTH, loop_unroll_factor=AT_ONCE):
        column = k + tl.arange(0, WIDTH)
        if LAYER == 0:
            h = rows_of(x, x_stride, row, in_rows, column, K)
        else:
            before = hidden + kept("outputs", WIDTHS, ACTIVATION, FINAL, LAYER - 1)
            h = rows_of(before, hidden_stride, row, in_rows, column, whole(K))
        weight = tl.load(packed + of_layer("weight", WIDTHS, LAYER) + column, column < K, other=0.0)
        sums += h.to(sum_dtype) * weight.to(sum_dtype)[None, :]
    output = tl.arange(0, block_of(1, 0, 1))
    z = tl.where((output == 0)[None, :], tl.sum(sums, axis=1, keep_dims=True), 0.0)
    finish(z, packed, hidden, hidden_stride, out, row, in_rows, output, WIDTHS, LAYER, ACTIVATION, FINAL, PRECISION,
           KEEP)


@triton.jit
def finish(
    sums, packed, hidden, hidden_stride, out, row, in_rows, output,
    WIDTHS: tl.constexpr, LAYER: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr, PRECISION: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Bias and activation of a layer's sums, to where they are read: `hidden`, or `out`. Returns what `keep` does."""
    dtype: tl.constexpr = packed.dtype.element_ty
    N: tl.constexpr = of_layer("outputs", WIDTHS, LAYER)
    z = sums + bias_row(packed, WIDTHS, LAYER, output, sums.dtype)
    value = activate(z, FINAL if count_of(WIDTHS) - 1 == LAYER else ACTIVATION)
    h = keep(hidden, hidden_stride, row, in_rows, output, z, value, dtype, WIDTHS, LAYER, ACTIVATION, FINAL, PRECISION,
             KEEP)
    if count_of(WIDTHS) - 1 == LAYER:
        tl.store(out + row * N + output[None, :], value.to(dtype), in_rows & (output < N)[None, :])
    return h


@triton.jit
def rows_on_chip(
    x, x_stride, packed, out, rows,
    WIDTHS: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr, PRECISION: tl.constexpr,
    OF_WEIGHTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BUDGET: tl.constexpr, STAGES: tl.constexpr,
    READ: tl.constexpr,
):
    """One tile of rows, all layers, with nothing between them in memory."""
    row = tl.arange(0, ROWS)[:, None].to(tl.int64)
    first = tl.program_id(0) * tl.full((), ROWS, tl.int64)
    in_rows = first + row < rows
    x += first * x_stride
    out += first * of_layer("outputs", WIDTHS, count_of(WIDTHS) - 1)
    h = forward_columns(
        x, x_stride, packed, None, 0, out, row, in_rows,
        WIDTHS, 1, True, 0, ACTIVATION, FINAL, PRECISION, OF_WEIGHTS, False, ROWS, COLUMNS, BUDGET, STAGES, READ,
    )
    for layer in tl.static_range(2, count_of(WIDTHS)):
        for start in tl.static_range(  # in several parts the last layer alone
            0, of_layer("outputs", WIDTHS, layer), whole_columns(WIDTHS, layer, COLUMNS, packed.dtype.element_ty)
        ):
            given = columns_on_chip(
                h, packed, out, row, in_rows,
                WIDTHS, layer, start, ACTIVATION, FINAL, PRECISION, OF_WEIGHTS, ROWS, COLUMNS,
            )
        h = given


@triton.jit(do_not_specialize=["rows", "tiles"])
def forward_kernel(
    x_ptr, packed_ptr, hidden_ptr, out_ptr, rows, x_stride, tiles,
    WIDTHS: tl.constexpr, FIRST: tl.constexpr, ACTIVATION: tl.constexpr, FINAL: tl.constexpr, PRECISION: tl.constexpr,
    OF_WEIGHTS: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BUDGET: tl.constexpr,
    STAGES: tl.constexpr, READ: tl.constexpr, ON_CHIP: tl.constexpr,
):
    """hidden_ptr: [rows, …] where KEEP, else ROWS rows for each program; ON_CHIP None. OF_WEIGHTS: the precision that
    weights are rounded for when they are read, "ieee" where they are already.

    A program takes tile after tile, so that there are as many workspaces as programs; ON_CHIP one tile: what a loop
    over tiles holds on to, the weights' addresses, would be too much for the registers.
    """
    if ON_CHIP:
        rows_on_chip(x_ptr, x_stride, packed_ptr, out_ptr, rows, WIDTHS, ACTIVATION, FINAL, PRECISION, OF_WEIGHTS, ROWS,
                     COLUMNS, BUDGET, STAGES, READ)
    else:
        stride: tl.constexpr = kept("columns", WIDTHS, ACTIVATION, FINAL, 0)
        row = tl.arange(0, ROWS)[:, None].to(tl.int64)
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            first = tile * tl.full((), ROWS, tl.int64)
            in_rows = first + row < rows
            hidden = hidden_ptr + (first if KEEP else tl.program_id(0).to(tl.int64) * ROWS) * stride
            x = x_ptr + first * x_stride
            out = out_ptr + first * of_layer("outputs", WIDTHS, count_of(WIDTHS) - 1)
            for layer in tl.static_range(FIRST, count_of(WIDTHS)):
                if of_layer("outputs", WIDTHS, layer) == 1:
                    only_column(
                        x, x_stride, packed_ptr, hidden, stride, out, row, in_rows,
                        WIDTHS, layer, ACTIVATION, FINAL, PRECISION, KEEP, ROWS, COLUMNS // 2,
                    )
                else:
                    for start in tl.static_range(0, of_layer("outputs", WIDTHS, layer), COLUMNS):
                        forward_columns(
                            x, x_stride, packed_ptr, hidden, stride, out, row, in_rows,
                            WIDTHS, layer, layer == FIRST and FIRST == 1, start, ACTIVATION, FINAL, PRECISION,
                            OF_WEIGHTS, KEEP, ROWS, COLUMNS, BUDGET, STAGES, READ,
                        )
                tl.debug_barrier()  # other threads read a layer than wrote it


@triton.jit
def rounding_kernel(packed_ptr, rounded_ptr, WIDTHS: tl.constexpr, BLOCK: tl.constexpr):
    """rounded: the buffer with the weights rounded to tf32 that products take: no biases, no layer of one output."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = place < of_layer("end", WIDTHS, count_of(WIDTHS) - 1)
    values = tl.load(packed_ptr + place, exists)
    found = rounded(values, "tf32")
    for layer in tl.static_range(count_of(WIDTHS)):
        first = of_layer("bias", WIDTHS, layer)
        if of_layer("outputs", WIDTHS, layer) == 1:
            first = of_layer("weight", WIDTHS, layer)
        found = tl.where((place >= first) & (place < of_layer("end", WIDTHS, layer)), values, found)
    tl.store(rounded_ptr + place, found, exists)
