"""The gradients of triton_kernel.py's formula, from grad [B, H], c [B, C] and weight [H, C²]; g = grad · act'(z):

    grad_weight[h, i C + j] = Σ_b g[b, h] c[b, i] c[b, j]                                           symmetric in i and j
    grad_c[b, i] = Σ_j S[b, i, j] c[b, j],   S[b, i, j] = Σ_h g[b, h] (weight[h, i C + j] + weight[h, j C + i])
    grad_bias[h] = Σ_b g[b, h]

Both products with C² columns are symmetric, so each is computed for pairs of blocks of 16 columns I <= J alone: FLOPs
2 · 256 T (T + 1) B H with T = ⌈C / 16⌉, half of what the formulas say. Neither c cᵀ nor its gradient is ever written.

grad_weight: a program's tile is a pair of blocks, 256 products c_i c_j formed in registers, by OUTPUTS outputs. It is
stored twice, to (i, j) and to (j, i).

grad_c: S of a pair is g [B, H] times the folded weight's 256 columns [H, 256], a plain product: both operands are
copied to shared memory while tensor cores multiply what came before. A program contracts its tile S[ROWS, 256] with c
at once, in both its roles. The sums of the columns i go to the program's own part of a workspace [splits, B, C] after
each pair, those of j after the last pair of that J; c_sum_kernel adds the parts up. No atomics. The folded weight is
written on the way by fold_kernel, some pairs at a time, for a workspace of all of them would be half of the weight.

In tf32 g and the folded weight are rounded when they are written, for they pass through no register where they are
multiplied; a weight as given and c_i c_j are where they do. A bias's gradient is a sum of g as it is: where it is
wanted, bias_kernel rounds the turned g once it has read it.

Tensor cores take a right operand in tf32 along its columns alone. So the weight is folded as [pairs, 256, H], and
grad_weight reads g and c transposed, [H, B] and [C, B], which transpose_kernel writes first, with the activation's
derivative.

For few rows in tf32 the memory counts, and direct_c_kernel takes the weight as given: 382 MB once in, and twice the
products. On an H200 grad_c of 128 rows took 202 µs so, and 344 folded (223 of it folding, 26 adding up 64 parts, one
after the other then).

Bytes: grad_weight once out; weight once in, half of it out and, for each ROWS rows, in again; g and c besides. For
grad_c in tf32, C = 432, H = 512, where folding moves 382 + 198 MB (140 µs at 4.2 TB/s) and a program's step of 32
outputs takes 48 KB of the L2 for 2^20 products, at most 1024 a clock:

    B                 2048    16384
    GFLOP              203     1624       0.5 ms, 4.1 ms at 400 TFLOP/s
    GB of the L2       4.8       38       0.6 to 0.9 ms, 5.1 to 6.9 ms at 7.5 or 5.5 TB/s
"""

import triton
import triton.language as tl

from ...device.activations import input_gradient
from ...device.tf32 import rounded
from .triton_kernel import BLOCK, no_sums, number, pair, sum_of_parts


@triton.jit(do_not_specialize=["rows", "columns", "stride"])
def transpose_kernel(
    x_ptr, out_ptr, turned_ptr, rows, columns, stride,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr,
):
    """turned[column, row] = x[row, column], times the activation's derivative, out being what it returned; in rows of
    `stride` numbers, those beyond the last row zero. PRECISION: of the products that take them."""
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    places = row[:, None] * columns + column[None, :]
    x = tl.load(x_ptr + places, mask, other=0.0)
    if ACTIVATION != "identity":
        x = input_gradient(x, tl.load(out_ptr + places, mask, other=0.0), ACTIVATION)
    mask = (column < columns)[:, None] & (row < stride)[None, :]
    tl.store(turned_ptr + column[:, None] * stride + row[None, :], tl.trans(rounded(x, PRECISION)), mask)


@triton.jit
def masked_kernel(
    grad_ptr, out_ptr, masked_ptr, elements, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr
):
    """masked = grad times the activation's derivative, as grad lies. PRECISION: of the products that take it."""
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    grad = tl.load(grad_ptr + place, place < elements, other=0.0)
    if ACTIVATION != "identity":
        grad = input_gradient(grad, tl.load(out_ptr + place, place < elements, other=0.0), ACTIVATION)
    tl.store(masked_ptr + place, rounded(grad, PRECISION), place < elements)


@triton.jit(do_not_specialize=["outputs", "depths"])
def bias_kernel(
    turned_ptr, grad_bias_ptr, outputs, depths, PRECISION: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr
):
    """grad_bias[h] = Σ_b turned[h, b], b below depths · DEPTH; then turned as products in PRECISION take it."""
    h = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    sums = no_sums(turned_ptr, OUTPUTS, DEPTH)
    places = turned_ptr + h.to(tl.int64)[:, None] * (depths * DEPTH) + tl.arange(0, DEPTH)[None, :]
    for depth in range(0, depths):
        g = tl.load(places + depth * DEPTH, (h < outputs)[:, None], other=0.0)
        sums += g.to(sums.dtype)
        if PRECISION == "tf32":
            tl.store(places + depth * DEPTH, rounded(g, PRECISION), (h < outputs)[:, None])
    tl.store(grad_bias_ptr + h, tl.sum(sums, axis=1), h < outputs)


@triton.jit(do_not_specialize=["outputs", "units", "depths"])
def weight_kernel(
    c_turned_ptr, g_turned_ptr, grad_weight_ptr, outputs, units, depths,
    UNIT: tl.constexpr, PRECISION: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
):
    """grad_weight of a pair of blocks and OUTPUTS outputs. The grid is (pairs, output tiles). The turned operands have
    depths · DEPTH rows, zeros from B on."""
    columns, stride = units * UNIT, depths * DEPTH
    block_i, block_j = pair(tl.program_id(0))
    across, b = tl.arange(0, BLOCK), tl.arange(0, DEPTH)
    i, j = block_i * BLOCK + across, block_j * BLOCK + across
    h = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    # Columns and outputs that are none repeat the last, and are not stored.
    c_i = c_turned_ptr + tl.minimum(i, columns - 1).to(tl.int64)[:, None] * stride + b[None, :]
    c_j = c_turned_ptr + tl.minimum(j, columns - 1).to(tl.int64)[:, None] * stride + b[None, :]
    g = g_turned_ptr + tl.minimum(h, outputs - 1).to(tl.int64)[None, :] * stride + b[:, None]
    sums = no_sums(c_turned_ptr, BLOCK * BLOCK, OUTPUTS)
    for depth in tl.range(0, depths, num_stages=STAGES):
        ci, cj = number(tl.load(c_i + depth * DEPTH)), number(tl.load(c_j + depth * DEPTH))
        products = tl.reshape(ci[:, None, :] * cj[None, :, :], [BLOCK * BLOCK, DEPTH])
        gradient = number(tl.load(g + depth * DEPTH))
        products = rounded(products.to(gradient.dtype), PRECISION)
        sums = tl.dot(products, gradient, sums, input_precision=PRECISION, out_dtype=sums.dtype)
    tile = tl.reshape(sums, [BLOCK, BLOCK, OUTPUTS])
    real = (i < columns)[:, None, None] & (j < columns)[None, :, None] & (h < outputs)[None, None, :]
    places = grad_weight_ptr + h.to(tl.int64)[None, None, :] * (columns.to(tl.int64) * columns)
    tl.store(places + (i[:, None, None] * columns + j[None, :, None]), tile, real)
    if block_i != block_j:
        tl.store(places + (j[None, :, None] * columns + i[:, None, None]), tile, real)


@triton.jit(do_not_specialize=["rows", "outputs", "units", "first_pair", "pairs", "at_once", "splits", "depths"])
def c_kernel(
    c_ptr, folded_ptr, g_ptr, parts_ptr, rows, outputs, units, first_pair, pairs, at_once, splits, depths,
    UNIT: tl.constexpr, H_UNIT: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr,
):
    """parts[split] += the terms of that split of the pairs from first_pair on, at_once of them or as many as are left.

    The grid is (row tiles, splits). folded: [at_once, 256, depths · DEPTH], zeros from H on, which is outputs · H_UNIT.
    WHOLE: all columns of the last block exist."""
    columns, width, length = units * UNIT, outputs * H_UNIT, depths * DEPTH
    b = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    exist = b < rows
    row = tl.minimum(b, rows - 1)
    c = c_ptr + row * columns
    across, depth, k = tl.arange(0, BLOCK), tl.arange(0, DEPTH), tl.arange(0, BLOCK * BLOCK)
    g = g_ptr + row[:, None] * width + depth[None, :]
    parts = parts_ptr + (split.to(tl.int64) * rows + b) * columns
    if first_pair == 0:
        for block in range(0, tl.cdiv(columns, BLOCK)):
            i = block * BLOCK + across
            mask = exist[:, None] & (i < columns)[None, :]
            tl.store(parts[:, None] + i[None, :], tl.zeros([ROWS, BLOCK], parts_ptr.dtype.element_ty), mask)
        tl.debug_barrier()
    here = tl.minimum(pairs - first_pair, at_once)
    low, high = here * split // splits, here * (split + 1) // splits
    block_i, block_j = pair(first_pair + low)
    sums_j = no_sums(c_ptr, ROWS, BLOCK)  # of the pairs with this J
    for index in range(low, high):
        i, j = block_i * BLOCK + across, block_j * BLOCK + across
        real_i, real_j = exist[:, None] & (i < columns)[None, :], exist[:, None] & (j < columns)[None, :]
        places_i, places_j = parts[:, None] + i[None, :], parts[:, None] + j[None, :]
        # Read here, so that they come while the product is computed.
        ci = tl.load(c[:, None] + i[None, :], (i < columns)[None, :], other=0.0).to(sums_j.dtype)
        cj = tl.load(c[:, None] + j[None, :], (j < columns)[None, :], other=0.0).to(sums_j.dtype)
        before = tl.load(places_i, real_i, other=0.0)
        folded = folded_ptr + (k + index * (BLOCK * BLOCK))[None, :] * length.to(tl.int64) + depth[:, None]
        tile = no_sums(c_ptr, ROWS, BLOCK * BLOCK)
        for step in tl.range(0, depths, num_stages=STAGES):
            h = step * DEPTH
            gradient = number(tl.load(g + h, (h + depth < width)[None, :], other=0.0))
            weight = number(tl.load(folded + h))
            tile = tl.dot(gradient, weight, tile, input_precision=PRECISION, out_dtype=tile.dtype)
        tile = tl.reshape(tile, [ROWS, BLOCK, BLOCK])
        of_i, of_j = tile * cj[:, None, :], tile * ci[:, :, None]
        if not WHOLE:  # where there is no i or j the tile is 0, or NaN of an infinite g, and c may be infinite
            of_i = tl.where((j < columns)[None, None, :], of_i, 0.0)
            of_j = tl.where((i < columns)[None, :, None], of_j, 0.0)
        tl.store(places_i, before + tl.sum(of_i, axis=2), real_i)
        sums_j += tl.sum(of_j, axis=1)
        tl.debug_barrier()  # what was stored may be loaded by another thread
        ends = block_i == block_j
        if ends | (index == high - 1):
            tl.store(places_j, tl.load(places_j, real_j, other=0.0) + sums_j, real_j)
            tl.debug_barrier()
            sums_j = tl.zeros_like(sums_j)
        # After a pair I = J comes the first with the next J.
        block_i, block_j = tl.where(ends, 0, block_i + 1), tl.where(ends, block_j + 1, block_j)


@triton.jit(do_not_specialize=["rows", "units", "steps", "blocks", "splits"])
def direct_c_kernel(
    c_ptr, weight_ptr, g_ptr, parts_ptr, rows, units, steps, blocks, splits,
    UNIT: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr,
):
    """parts [blocks + splits, B, C], whose sum is grad_c, of a weight as given with C >= WIDTH and H = steps · DEPTH.

    The grid is (blocks · splits, row tiles): a program has WIDTH columns j and, GROUP at a time, its split's columns i.
    Its tile is turned, R[i, j, b] = Σ_h weight[h, i C + j] g[b, h]: a weight that lies along j can only be turned in
    registers, and from there tensor cores take a left operand. Σ_j R c_j goes to part `block`, Σ_i R c_i to part
    blocks + split: no other program has the same i, or j, in either."""
    columns, width = units * UNIT, steps * DEPTH
    block, split = tl.program_id(0) % blocks, tl.program_id(0) // blocks  # neighbours read neighbouring columns
    b = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exist = (b < rows)[None, :]
    row = tl.minimum(b, rows - 1)
    c = c_ptr + row[None, :] * columns
    depth, k = tl.arange(0, DEPTH), tl.arange(0, GROUP * WIDTH)
    g = g_ptr + row[None, :] * width + depth[:, None]
    # The last block begins where it is whole, and leaves out what the one before has.
    begin = tl.multiple_of(tl.minimum(block * WIDTH, columns - WIDTH), UNIT)
    j = begin + tl.arange(0, WIDTH)
    real_j = (j >= block * WIDTH)[:, None]
    size, length = rows.to(tl.int64) * columns, columns.to(tl.int64) * columns
    parts = parts_ptr + b[None, :] * columns
    places_j = parts + (blocks + split) * size + j[:, None]
    groups = tl.cdiv(columns, GROUP)
    low, high = groups * split // splits, groups * (split + 1) // splits
    for group in range(low, high):
        inside = tl.minimum(group * GROUP + k // WIDTH, columns - 1) * columns + (begin + k % WIDTH)
        weights = weight_ptr + depth[:, None] * length + inside[None, :]
        tile = no_sums(c_ptr, GROUP * WIDTH, ROWS)
        for step in tl.range(0, steps, num_stages=STAGES):
            weight = number(tl.load(weights + step * DEPTH * length))
            # Always so. It makes the weight pass through registers: else it would be copied turned, 4 bytes at a time.
            weight = tl.where((step * DEPTH + depth < width)[:, None], weight, 0.0)
            gradient = number(tl.load(g + step * DEPTH))
            weight = rounded(weight, PRECISION)
            tile = tl.dot(tl.trans(weight), gradient, tile, input_precision=PRECISION, out_dtype=tile.dtype)
        tile = tl.reshape(tile, [GROUP, WIDTH, ROWS])
        i = group * GROUP + tl.arange(0, GROUP)
        real_i = (i < columns)[:, None]
        ci = tl.load(c + i[:, None], real_i, other=0.0).to(tile.dtype)
        cj = tl.load(c + j[:, None]).to(tile.dtype)
        sums_i = tl.sum(tl.where(real_j[None, :, :], tile * cj[None, :, :], 0.0), axis=1)
        tl.store(parts + block * size + i[:, None], sums_i, real_i & exist)
        # In memory, for in registers there is no room beside the tile.
        sums_j = tl.sum(tl.where(real_i[:, None, :], tile * ci[:, None, :], 0.0), axis=0)
        if group > low:
            sums_j += tl.load(places_j, real_j & exist, other=0.0)
        tl.store(places_j, sums_j, real_j & exist)
        tl.debug_barrier()  # what was stored may be loaded by another thread


@triton.jit(do_not_specialize=["elements", "splits"])
def c_sum_kernel(parts_ptr, grad_c_ptr, elements, splits, TILE: tl.constexpr, AT_ONCE: tl.constexpr):
    """grad_c = Σ parts [splits, B · C]."""
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    tl.store(grad_c_ptr + place, sum_of_parts(parts_ptr, place, elements, splits, AT_ONCE), place < elements)
