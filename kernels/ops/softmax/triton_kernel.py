"""out = e^(x - max x) / Σ e^(x - max x), row by row             x, out [rows, columns], contiguous

Bytes: 2 · rows · columns · itemsize where a program holds its rows in registers, so that x is read once (rows_forward).
Longer rows are read twice, 3 · rows · columns · itemsize less what is still in the cache: long_forward or, where rows
are too few to fill a GPU, part_forward and finish_forward. FLOPs: 5 an element. The backward is

    grad_x = out · (grad - Σ grad · out)

Bytes: 3 · rows · columns · itemsize, for longer rows 5. FLOPs: 4 an element.

NaN and ±Inf need no test. A row with +Inf has e^(Inf - Inf) = NaN in its sum; a row of -Inf alone becomes NaN as
e^(-Inf + Inf) where the maximum is -Inf, or as 0 / 0 where the running maximum began at the least finite number.

A row has units · UNIT columns. UNIT, a power of two, tells the compiler that an access of UNIT elements is aligned and
stays in the row; units is known at run time only. So a kernel is compiled for a BLOCK and a UNIT, not for each width.
"""

import triton
import triton.language as tl

LEAST_FLOAT32 = tl.constexpr(-3.4028234663852886e38)
LEAST_FLOAT64 = tl.constexpr(-1.7976931348623157e308)


@triton.jit
def _load(pointers, mask, other):
    """In the dtype that is computed in: float32, or float64 for float64."""
    values = tl.load(pointers, mask, other=other)
    return values if values.dtype == tl.float64 else values.to(tl.float32)


# ------------------------------------------------------------------------------------------------------------------
# Rows that a program holds: ROWS at a time, of BLOCK columns, the first `units * UNIT` of which exist.


@triton.jit
def _tile(rows, units, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Where the program's rows start, their elements' offsets from there, and which rows and columns exist."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    columns = units * UNIT
    return first * columns, row * columns + column, row < tl.minimum(rows - first, ROWS).to(tl.int32), column < columns


@triton.jit(do_not_specialize=["rows", "units"])
def rows_forward(x_ptr, out_ptr, rows, units, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    start, offsets, in_rows, in_columns = _tile(rows, units, UNIT, ROWS, BLOCK)
    x = _load(x_ptr + start + offsets, in_rows & in_columns, tl.where(in_rows, -float("inf"), 0.0))
    exponentials = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    out = exponentials * (1.0 / tl.sum(exponentials, axis=1, keep_dims=True))
    tl.store(out_ptr + start + offsets, out, in_rows & in_columns)


@triton.jit(do_not_specialize=["rows", "units"])
def rows_backward(
    grad_ptr, out_ptr, grad_x_ptr, rows, units, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    start, offsets, in_rows, in_columns = _tile(rows, units, UNIT, ROWS, BLOCK)
    mask = in_rows & in_columns
    grad = _load(grad_ptr + start + offsets, mask, 0.0)
    out = _load(out_ptr + start + offsets, mask, 0.0)
    grad_x = out * (grad - tl.sum(grad * out, axis=1, keep_dims=True))
    tl.store(grad_x_ptr + start + offsets, grad_x, mask)


# ------------------------------------------------------------------------------------------------------------------
# Longer rows, `BLOCK` columns at a time: a first pass for what the row has in common, a second that writes.


@triton.jit
def _mask(start, count, BLOCK: tl.constexpr):
    return tl.arange(0, BLOCK) < tl.minimum(count - start, BLOCK).to(tl.int32)


@triton.jit
def _maximum_and_sum(x_ptr, count, BLOCK: tl.constexpr):
    """max x and Σ e^(x - max x) over x_ptr[:count], both kept while reading ("online", arXiv:1805.02867).

    Of e^(x - maximum) and e^(maximum - x) one is a factor for the old sum, the other a new term, and the other of each
    pair is 1: e^-|x - maximum| serves for both. The maximum begins at a finite number, so that -Inf never meets -Inf.
    """
    wide: tl.constexpr = x_ptr.dtype.element_ty == tl.float64
    least: tl.constexpr = LEAST_FLOAT64 if wide else LEAST_FLOAT32
    maxima = tl.full([BLOCK], least, tl.float64 if wide else tl.float32)
    sums = tl.zeros_like(maxima)
    for start in range(0, count, BLOCK):
        x = _load(x_ptr + start + tl.arange(0, BLOCK), _mask(start, count, BLOCK), -float("inf"))
        factor = tl.exp(-tl.abs(x - maxima))
        sums = tl.where(x > maxima, sums * factor + 1.0, sums + factor)
        maxima = tl.maximum(maxima, x)
    maximum = tl.max(maxima, axis=0)
    return maximum, tl.sum(sums * tl.exp(maxima - maximum), axis=0)


@triton.jit
def _write_forward(x_ptr, out_ptr, count, maximum, total, BLOCK: tl.constexpr):
    """From the end to the start: what was read last is still in the cache, where nothing written takes its place."""
    scale = 1.0 / total
    last = (count - 1) // BLOCK * BLOCK
    for back in range(0, count, BLOCK):
        start = last - back
        mask = _mask(start, count, BLOCK)
        x = _load(x_ptr + start + tl.arange(0, BLOCK), mask, -float("inf"))
        tl.store(out_ptr + start + tl.arange(0, BLOCK), tl.exp(x - maximum) * scale, mask, cache_modifier=".cs")


@triton.jit
def _product(grad_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """Σ grad · out over the first `count`."""
    sums = tl.zeros([BLOCK], tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32)
    for start in range(0, count, BLOCK):
        mask = _mask(start, count, BLOCK)
        grad = _load(grad_ptr + start + tl.arange(0, BLOCK), mask, 0.0)
        sums += grad * _load(out_ptr + start + tl.arange(0, BLOCK), mask, 0.0)
    return tl.sum(sums, axis=0)


@triton.jit
def _write_backward(grad_ptr, out_ptr, grad_x_ptr, count, product, BLOCK: tl.constexpr):
    last = (count - 1) // BLOCK * BLOCK
    for back in range(0, count, BLOCK):
        start = last - back
        mask = _mask(start, count, BLOCK)
        grad = _load(grad_ptr + start + tl.arange(0, BLOCK), mask, 0.0)
        out = _load(out_ptr + start + tl.arange(0, BLOCK), mask, 0.0)
        tl.store(grad_x_ptr + start + tl.arange(0, BLOCK), out * (grad - product), mask, cache_modifier=".cs")


# A program takes a row, both passes.


@triton.jit(do_not_specialize=["units"])
def long_forward(x_ptr, out_ptr, units, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    columns = units.to(tl.int64) * UNIT
    start = tl.program_id(0) * columns
    maximum, total = _maximum_and_sum(x_ptr + start, columns, BLOCK)
    _write_forward(x_ptr + start, out_ptr + start, columns, maximum, total, BLOCK)


@triton.jit(do_not_specialize=["units"])
def long_backward(grad_ptr, out_ptr, grad_x_ptr, units, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    columns = units.to(tl.int64) * UNIT
    start = tl.program_id(0) * columns
    product = _product(grad_ptr + start, out_ptr + start, columns, BLOCK)
    _write_backward(grad_ptr + start, out_ptr + start, grad_x_ptr + start, columns, product, BLOCK)


# Where rows are few, each is cut into parts of `blocks` times BLOCK columns, and a program takes a part: one kernel for
# the first pass, which leaves what it found in a workspace [rows, parts], and one for the second. The grid is (parts,
# rows). Every program of a row combines the parts in the same order, so all agree on every bit.


@triton.jit
def _part(units, blocks, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    """Where the program's part starts, and how many elements it has."""
    columns = units.to(tl.int64) * UNIT
    part = blocks.to(tl.int64) * BLOCK
    first = tl.program_id(0) * part
    return tl.program_id(1) * columns + first, tl.minimum(columns - first, part)


@triton.jit
def _parts_of_row(PARTS: tl.constexpr):
    """The offsets of the row's parts in a workspace, and the mask of those that exist."""
    part = tl.arange(0, PARTS)
    return tl.program_id(1) * tl.num_programs(0) + part, part < tl.num_programs(0)


@triton.jit(do_not_specialize=["units", "blocks"])
def part_forward(x_ptr, maxima_ptr, sums_ptr, units, blocks, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    start, count = _part(units, blocks, UNIT, BLOCK)
    maximum, total = _maximum_and_sum(x_ptr + start, count, BLOCK)
    part = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(maxima_ptr + part, maximum)
    tl.store(sums_ptr + part, total)


@triton.jit(do_not_specialize=["units", "blocks"])
def finish_forward(
    x_ptr, maxima_ptr, sums_ptr, out_ptr, units, blocks,
    UNIT: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):
    parts, exists = _parts_of_row(PARTS)
    maxima = tl.load(maxima_ptr + parts, exists, other=-float("inf"))
    maximum = tl.max(maxima, axis=0)
    total = tl.sum(tl.load(sums_ptr + parts, exists, other=0.0) * tl.exp(maxima - maximum), axis=0)
    start, count = _part(units, blocks, UNIT, BLOCK)
    _write_forward(x_ptr + start, out_ptr + start, count, maximum, total, BLOCK)


@triton.jit(do_not_specialize=["units", "blocks"])
def part_backward(grad_ptr, out_ptr, products_ptr, units, blocks, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    start, count = _part(units, blocks, UNIT, BLOCK)
    part = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(products_ptr + part, _product(grad_ptr + start, out_ptr + start, count, BLOCK))


@triton.jit(do_not_specialize=["units", "blocks"])
def finish_backward(
    grad_ptr, out_ptr, products_ptr, grad_x_ptr, units, blocks,
    UNIT: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):
    parts, exists = _parts_of_row(PARTS)
    product = tl.sum(tl.load(products_ptr + parts, exists, other=0.0), axis=0)
    start, count = _part(units, blocks, UNIT, BLOCK)
    _write_backward(grad_ptr + start, out_ptr + start, grad_x_ptr + start, count, product, BLOCK)
