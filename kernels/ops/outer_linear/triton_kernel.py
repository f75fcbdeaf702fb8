"""out[b, h] = act(Σ_ij c[b, i] c[b, j] weight[h, i C + j] + bias[h])         c [B, C], weight [H, C²], out [B, H]

A product of matrices whose left operand, c_i c_j, is formed where it is needed: a program takes ROWS rows and OUTPUTS
outputs, holds c[rows, j] of WIDTH columns in registers, and multiplies them by c[rows, i], GROUP columns i at a time.
What it gets is in the layout in which tensor cores take a left operand from registers: of the operands only weights go
through shared memory. For each i that costs ROWS · WIDTH multiplications, beside ROWS · OUTPUTS · WIDTH of the tensor
cores. Scaling the sums instead, Σ_i c_i (Σ_j c_j weight_ij), would cost ROWS · OUTPUTS of them, 8 times as many with
128 outputs and 16 columns, and a second set of sums.

In tf32 both operands are rounded (kernels/device/tf32.py): c_i c_j where it is formed, an instruction more than its
multiplication; a weight of many rows by a launch before, which folds it if it is not; other weights when they are read,
for which they pass through registers on their way to the tensor cores.

Bytes: weight once for every ROWS rows, from the L2 but for the first; needed is once. FLOPs: 2 B H C², of a folded
weight (folding.py) about half: 256 T (T + 1) B H with T = ⌈C / 16⌉.

The sum over (i, j) is cut into `splits` parts, so that few rows have a program for every processor. A part's sums go to
a workspace [splits, B, H], which finish_kernel adds up in a fixed order: no atomics, the same bits in every run.

Few rows in tf32 are bound by the memory, and there what is read at a time must lie together: few_rows_kernel. On an
H200, of 382 MB and 128 rows, runs of 128 bytes took 207 µs where runs of 256 took 163, the floor being 90.

Columns beyond C, where a block of 16 or WIDTH is not full, give products that are set to 0, not multiplied by it: c may
be infinite. C is units · UNIT, so that the compiler knows how far accesses are aligned without one kernel for each C.
"""

import triton
import triton.language as tl

from ...device.activations import INTERPRETED, activate
from ...device.tf32 import rounded

BLOCK = tl.constexpr(16)  # folding.BLOCK


@triton.jit
def number(values):
    """As the products are computed: in the dtype itself, of which the interpreter lacks bfloat16."""
    if INTERPRETED and values.dtype == tl.bfloat16:
        return values.to(tl.float32)
    return values


@triton.jit
def no_sums(pointer, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Zeros of what numbers like the pointer's are added up in."""
    return tl.zeros([ROWS, COLUMNS], tl.float64 if pointer.dtype.element_ty == tl.float64 else tl.float32)


@triton.jit
def _multiply(
    sums, c_rows, weights, block, start, low, high, columns,
    FOLDED: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr, OF_WEIGHTS: tl.constexpr, GROUP: tl.constexpr,
    WIDTH: tl.constexpr, STAGES: tl.constexpr,
):
    """sums + the products of block j and the columns i of steps low to high, times the weights. start: the steps before
    this block, by which a folded weight goes. WHOLE: all columns of the block exist."""
    k = tl.arange(0, GROUP * WIDTH)
    j = block * WIDTH + tl.arange(0, WIDTH)
    if WHOLE:
        cj = number(tl.load(c_rows[:, None] + j[None, :]))
    else:
        cj = number(tl.load(c_rows[:, None] + j[None, :], (j < columns)[None, :], other=0.0))
    for step in tl.range(low, high, num_stages=STAGES):
        i = step * GROUP + tl.arange(0, GROUP)
        if FOLDED:
            place = (start + step).to(tl.int64) * (GROUP * WIDTH) + k
        else:
            place = (step * columns + block * WIDTH).to(tl.int64) + k
        if WHOLE:
            ci = number(tl.load(c_rows[:, None] + i[None, :]))
            products = ci[:, :, None] * cj[:, None, :]
        else:
            ci = number(tl.load(c_rows[:, None] + i[None, :], (i < columns)[None, :], other=0.0))
            exists = (i < columns)[None, :, None] & (j < columns)[None, None, :]
            products = tl.where(exists, ci[:, :, None] * cj[:, None, :], 0.0)
        if WHOLE or FOLDED:
            weight = number(tl.load(weights[None, :] + place[:, None]))
        else:
            weight = number(tl.load(weights[None, :] + place[:, None], (j < columns)[:, None], other=0.0))
        weight = rounded(weight, OF_WEIGHTS)
        products = rounded(tl.reshape(products, [c_rows.shape[0], GROUP * WIDTH]).to(weight.dtype), PRECISION)
        sums = tl.dot(products, weight, sums, input_precision=PRECISION, out_dtype=sums.dtype)
    return sums


@triton.jit(do_not_specialize=["rows", "outputs", "units", "first_block", "last_block", "first_part", "splits"])
def forward_kernel(
    c_ptr, weight_ptr, bias_ptr, out_ptr, rows, outputs, units, first_block, last_block, first_part, splits,
    UNIT: tl.constexpr, FOLDED: tl.constexpr, WHOLE: tl.constexpr, SPLIT: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr, OF_WEIGHTS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, GROUP: tl.constexpr,
    WIDTH: tl.constexpr, STAGES: tl.constexpr,
):
    """The sum over the blocks j from first_block (FOLDED: 0) to before last_block; WHOLE: all their columns exist.
    OF_WEIGHTS: the precision that weights are rounded for when they are read, "ieee" where they are already.

    The grid is (row tiles, output tiles, splits). Of SPLIT there is neither bias nor activation, and out is the
    workspace, in which this launch's parts begin at first_part. A weight as given goes by rows of i, so its GROUP is 1;
    a folded one by blocks of WIDTH = 16."""
    columns = units * UNIT
    b = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    c_rows = c_ptr + tl.minimum(b, rows - 1) * columns  # rows and outputs that are none repeat the last, unstored
    start = 0  # steps before the block, in all
    total = (last_block - first_block) * columns
    length = columns.to(tl.int64) * columns
    if FOLDED:
        total = last_block * (last_block + 1) // 2 * (BLOCK // GROUP)
        blocks = tl.cdiv(columns, BLOCK).to(tl.int64)
        length = blocks * (blocks + 1) // 2 * (BLOCK * BLOCK)
    weights = weight_ptr + tl.minimum(h, outputs - 1).to(tl.int64) * length
    split = tl.program_id(2)
    first = start + (total.to(tl.int64) * split // splits).to(tl.int32)
    last = start + (total.to(tl.int64) * (split + 1) // splits).to(tl.int32)

    sums = no_sums(c_ptr, ROWS, OUTPUTS)
    for block in range(first_block, last_block):
        steps = (block + 1) * (BLOCK // GROUP) if FOLDED else columns
        low, high = tl.maximum(first - start, 0), tl.minimum(last - start, steps)
        if low < high:
            sums = _multiply(
                sums, c_rows, weights, block, start, low, high, columns, FOLDED, WHOLE, PRECISION, OF_WEIGHTS,
                GROUP, WIDTH, STAGES,
            )
        start += steps

    mask = (b < rows)[:, None] & (h < outputs)[None, :]
    if SPLIT:
        b += (first_part + split).to(tl.int64) * rows
    else:
        bias = tl.load(bias_ptr + h, h < outputs, other=0.0).to(sums.dtype)
        sums = activate(sums + bias[None, :], ACTIVATION)
    tl.store(out_ptr + b[:, None] * outputs + h[None, :], sums, mask)


@triton.jit(do_not_specialize=["rows", "outputs", "units", "blocks", "splits"])
def few_rows_kernel(
    c_ptr, weight_ptr, parts_ptr, rows, outputs, units, blocks, splits,
    UNIT: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """parts [blocks · splits, B, H] of the sum, of a weight as given with C >= WIDTH: where the memory counts.

    The grid is (blocks · splits, row tiles, output tiles). A program has one block of columns j and its split of the
    columns i. Neighbours have neighbouring blocks of the same i, so that what is read at a time lies together: DRAM
    gives less of many short runs that lie far apart.

    Σ_i c_i (Σ_j weight_ij c_j): here the sums are scaled, OUTPUTS · ROWS multiplications for each i, and the weights
    are the left operand. So they go to the tensor cores from registers, where they are rounded. As right operands they
    would be written back to shared memory first: of 128 rows 205 µs on an H200, and 138 so."""
    columns = units * UNIT
    block, split = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    b = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    c_rows = c_ptr + tl.minimum(b, rows - 1) * columns  # rows and outputs that are none repeat the last, unstored
    weights = weight_ptr + tl.minimum(h, outputs - 1).to(tl.int64) * (columns.to(tl.int64) * columns)
    # The last block begins where it is whole, and leaves out what the one before has.
    begin = tl.multiple_of(tl.minimum(block * WIDTH, columns - WIDTH), UNIT)
    j = begin + tl.arange(0, WIDTH)
    own = j >= block * WIDTH
    cj = rounded(number(tl.load(c_rows[None, :] + j[:, None], own[:, None], other=0.0)), PRECISION)
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for i in tl.range(columns * split // splits, columns * (split + 1) // splits, num_stages=STAGES):
        k = tl.multiple_of(i * columns + begin, UNIT) + tl.arange(0, WIDTH)
        weight = rounded(number(tl.load(weights[:, None] + k[None, :], own[None, :], other=0.0)), PRECISION)
        sums += number(tl.load(c_rows + i))[None, :] * tl.dot(weight, cj, input_precision=PRECISION)
    b_part = tl.program_id(0).to(tl.int64) * rows + b
    mask = (h < outputs)[:, None] & (b < rows)[None, :]
    tl.store(parts_ptr + b_part[None, :] * outputs + h[:, None], sums, mask)


@triton.jit
def sum_of_parts(parts_ptr, place, elements, parts, AT_ONCE: tl.constexpr):
    """Σ parts [parts, elements] at `place`. AT_ONCE of them are on their way together: one at a time each would wait
    for the memory."""
    part = tl.arange(0, AT_ONCE)
    sums = tl.zeros([AT_ONCE, place.shape[0]], parts_ptr.dtype.element_ty)
    for first in range(0, parts, AT_ONCE):
        exist = (first + part < parts)[:, None] & (place < elements)[None, :]
        starts = (first + part).to(tl.int64) * elements
        sums += tl.load(parts_ptr + starts[:, None] + place[None, :], exist, other=0.0)
    return tl.sum(sums, axis=0)


@triton.jit(do_not_specialize=["elements", "outputs", "splits"])
def finish_kernel(
    parts_ptr, bias_ptr, out_ptr, elements, outputs, splits,
    ACTIVATION: tl.constexpr, TILE: tl.constexpr, AT_ONCE: tl.constexpr,
):
    """out = act(Σ parts [splits, B, H] + bias); elements: B · H."""
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    sums = sum_of_parts(parts_ptr, place, elements, splits, AT_ONCE)
    bias = tl.load(bias_ptr + place % outputs, place < elements, other=0.0).to(sums.dtype)
    tl.store(out_ptr + place, activate(sums + bias, ACTIVATION), place < elements)


@triton.jit
def pair(index):
    """(I, J) of a pair of blocks: index = J (J + 1) / 2 + I, I <= J."""
    j = ((tl.sqrt(8.0 * index.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    j = tl.where(j * (j + 1) // 2 > index, j - 1, j)  # the root is rounded
    j = tl.where((j + 1) * (j + 2) // 2 <= index, j + 1, j)
    return index - j * (j + 1) // 2, j


@triton.jit
def folded_tile(weight_ptr, h, exists, i, j, columns, diagonal):
    """[h, a, b]: weight[h, i_a C + j_b] + weight[h, j_b C + i_a], on the diagonal the first alone.

    Each is read along its own rows, 16 numbers at a time; the second is turned over on chip.
    """
    rows = weight_ptr + h.to(tl.int64)[:, None, None] * (columns.to(tl.int64) * columns)
    real = exists[:, None, None] & (i < columns)[None, :, None] & (j < columns)[None, None, :]
    tile = number(tl.load(rows + (i[None, :, None] * columns + j[None, None, :]), real, other=0.0))
    real = exists[:, None, None] & (j < columns)[None, :, None] & (i < columns)[None, None, :] & (not diagonal)
    other = number(tl.load(rows + (j[None, :, None] * columns + i[None, None, :]), real, other=0.0))
    return tile + tl.permute(other, (0, 2, 1))


@triton.jit(do_not_specialize=["first_pair", "outputs", "units", "length"])
def fold_kernel(
    weight_ptr, folded_ptr, first_pair, outputs, units, length,
    UNIT: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr, OUTPUTS: tl.constexpr,
):
    """The folded weight. The grid is (pairs, output tiles).

    folded [outputs, 256 pairs], in rows of `length`; or TURNED [pairs from first_pair on, 256, outputs], in rows of
    `length`, those beyond the outputs zero."""
    columns = units * UNIT
    index = first_pair + tl.program_id(0)
    block_i, block_j = pair(index)
    across = tl.arange(0, BLOCK)
    h = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    i, j = block_i * BLOCK + across, block_j * BLOCK + across
    tile = folded_tile(weight_ptr, h, h < outputs, i, j, columns, block_i == block_j)
    tile = rounded(tile, PRECISION)
    inside = across[:, None] * BLOCK + across[None, :]
    if TURNED:
        place = (tl.program_id(0).to(tl.int64) * (BLOCK * BLOCK) + inside) * length
        mask = (h < length)[None, None, :]
        tl.store(folded_ptr + place[:, :, None] + h[None, None, :], tl.permute(tile, (1, 2, 0)), mask)
    else:
        place = h.to(tl.int64) * length + index * (BLOCK * BLOCK)
        tl.store(folded_ptr + place[:, None, None] + inside[None, :, :], tile, (h < outputs)[:, None, None])
