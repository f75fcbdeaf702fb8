"""out[i] = the row that ids[i] names, or zeros           out [count, H]; rows of table, image and audio, as in eager.py

Bytes: count rows read, count rows written. No arithmetic on them: the row is chosen by its address, so that one load
serves every source, and a NaN stays where it is. A program of 4 warps moves 8 KB: four accesses of 16 bytes a thread.

The backward writes each row of a dense gradient once: the sum, in the order of their positions, of the gradients of the
ids that name it. A row that many ids name (padding, an image's token) would be one program's work, term after term. So
the positions, grouped by row (eager.by_row), are cut into pieces of PIECE: one that belongs to a row as a whole is
summed by a program of its own. What is added in which order hangs on the ids alone.
"""

import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    ids_ptr, table_ptr, image_ptr, audio_ptr, indices_ptr, out_ptr, count,
    table_rows, image_rows, audio_rows, vocab_size, image_token, audio_token,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = i < count
    id = tl.load(ids_ptr + i, there, other=-1).to(tl.int64)  # widened first: what is added to it cannot wrap
    if indices_ptr is not None:
        index = tl.load(indices_ptr + i, there, other=-1).to(tl.int64)

    # For each row of out: its source, how many rows that source has, and which of them is wanted.
    if table_ptr is not None:
        source, rows, row = table_ptr, table_rows, id
    else:
        source, rows, row = image_ptr, 0, id
    if image_ptr is not None:
        if indices_ptr is not None:
            chosen, its_row = id == image_token, index
        else:
            chosen, its_row = id >= vocab_size, id - vocab_size
        source = tl.where(chosen, image_ptr, source)
        rows, row = tl.where(chosen, image_rows, rows), tl.where(chosen, its_row, row)
    if audio_ptr is not None:
        chosen = id == audio_token
        if image_ptr is not None:
            chosen = chosen & (id != image_token)
        source = tl.where(chosen, audio_ptr, source)
        rows, row = tl.where(chosen, audio_rows, rows), tl.where(chosen, index, row)

    hit = there & (row >= 0) & (row < rows)
    start = source + tl.where(hit, row, 0) * COLUMNS
    columns = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    if COLUMNS % BLOCK == 0:
        read, written = hit[:, None], there[:, None]
    else:
        read, written = hit[:, None] & (columns < COLUMNS), there[:, None] & (columns < COLUMNS)
    found = tl.load(start[:, None] + columns, read, other=0.0)
    tl.store(out_ptr + i[:, None] * COLUMNS + columns, found, written)


@triton.jit
def _add(sums, grad_ptr, order_ptr, k, columns, mask, COLUMNS: tl.constexpr):
    position = tl.load(order_ptr + k)
    return sums + tl.load(grad_ptr + position * COLUMNS + columns, mask, other=0.0).to(sums.dtype)


@triton.jit
def piece_kernel(
    grad_ptr, sorted_rows_ptr, order_ptr, sums_ptr, rows,
    COLUMNS: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr,
):
    piece = tl.program_id(0).to(tl.int64)
    start = piece * PIECE
    row = tl.load(sorted_rows_ptr + start)
    if (row == tl.load(sorted_rows_ptr + start + PIECE - 1)) & (row < rows):
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = columns < COLUMNS
        sums = tl.zeros([BLOCK], sums_ptr.dtype.element_ty)
        for k in range(PIECE):
            sums = _add(sums, grad_ptr, order_ptr, start + k, columns, mask, COLUMNS)
        tl.store(sums_ptr + piece * COLUMNS + columns, sums, mask)


@triton.jit
def backward_kernel(
    grad_ptr, order_ptr, starts_ptr, sums_ptr, grad_source_ptr, first_row,
    COLUMNS: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr,
):
    dtype = tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < COLUMNS
    k, end = tl.load(starts_ptr + first_row + row), tl.load(starts_ptr + first_row + row + 1)
    sums = tl.zeros([BLOCK], dtype)
    while k < end:
        if sums_ptr is not None:  # there are ids enough for a piece
            if (k % PIECE == 0) & (k + PIECE <= end):
                sums += tl.load(sums_ptr + k // PIECE * COLUMNS + columns, mask, other=0.0)
                k += PIECE
            else:
                sums = _add(sums, grad_ptr, order_ptr, k, columns, mask, COLUMNS)
                k += 1
        else:
            sums = _add(sums, grad_ptr, order_ptr, k, columns, mask, COLUMNS)
            k += 1
    tl.store(grad_source_ptr + row * COLUMNS + columns, sums.to(grad_source_ptr.dtype.element_ty), mask)
