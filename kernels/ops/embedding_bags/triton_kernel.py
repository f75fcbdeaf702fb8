"""out[b, f] = Σ (or mean, or maximum) of the rows of table f that bag (b, f) names     tables [R, D], out [B, F, D]

Row `id` of table f is row first[f] + id of `tables`, if 0 <= id < first[f + 1] - first[f]; else zeros. One id a bag:
indices [B, F]. Ragged: indices [N], and bag (b, f) is offsets[f B + b] … offsets[f B + b + 1].

Bytes: the rows (one of 64 bytes is two sectors of 32, the least that memory is read by), the ids, the output. There is
next to nothing to compute, so the time is the memory's, and it takes many rows on their way at once to fill it.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ...device.report import count_report, write_report

BAD_ID: tl.constexpr = tl.constexpr(1)  # what a report says
BAD_OFFSET: tl.constexpr = tl.constexpr(2)


@triton.jit
def table_of(first_ptr, features, mask):
    """(where the tables of these features begin, their heights)"""
    begin = tl.load(first_ptr + features, mask, other=0)
    return begin, tl.maximum(tl.load(first_ptr + features + 1, mask, other=0) - begin, 0)


@triton.jit
def find(begin, height, ids, mask, rows, padding):
    """(row, whether there is one, whether the id is the padding) of ids of such tables. An id has 64 bits before
    anything is added to it, so that it cannot wrap round. Where a table begins is not trusted."""
    ids = ids.to(tl.int64)
    found = begin + ids
    padded = (ids == padding) & (padding >= 0)
    in_table = ids.to(tl.uint64) < height.to(tl.uint64)  # without a sign: one comparison tells of ids below 0, too
    in_tables = found.to(tl.uint64) < tl.cast(rows, tl.uint64)
    return found, mask & in_table & in_tables & (padded == 0), padded


@triton.jit
def tell(report_ptr, where, ids, features, positions, MISSING: tl.constexpr):
    """Report the ids of `where`, which are out of range."""
    if MISSING == "error":
        write_report(report_ptr, where, BAD_ID, features.to(tl.int64), positions.to(tl.int64), ids.to(tl.int64))
    elif MISSING == "count":
        count_report(report_ptr, where.to(tl.int32))


@triton.jit
def rows_kernel(
    tables_ptr, first_ptr, indices_ptr, out_ptr, report_ptr, positions, rows, padding,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, MISSING: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
    POSITIONS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """One id a bag: a tile of POSITIONS rows × COLUMNS of their columns. EARLY: it may begin before its predecessor in
    the stream has ended: of 2048 × 26 rows of 64 bytes that saves 0.7 µs of 4.0 on an H200."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    start = tl.program_id(0)
    if WIDE:  # 2^31 elements of output or more
        start = start.to(tl.int64)
    position = start * POSITIONS + tl.arange(0, POSITIONS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = position < positions
    ids = tl.load(indices_ptr + position, mask, other=-1)
    feature = position % FEATURES
    begin, height = table_of(first_ptr, feature, mask)
    row, inside, padded = find(begin, height, ids, mask, rows, padding)
    read, written = inside[:, None], mask[:, None]
    if WIDTH % COLUMNS != 0:
        in_columns = (column < WIDTH)[None, :]
        read, written = read & in_columns, written & in_columns
    values = tl.load(tables_ptr + row[:, None] * WIDTH + column[None, :], read, other=0.0)
    tl.store(out_ptr + position[:, None] * WIDTH + column[None, :], values, written, cache_modifier=".cs")
    if MISSING != "zero":
        where = mask & (inside == 0) & (padded == 0) & (tl.program_id(1) == 0)
        tell(report_ptr, where, ids, feature, position, MISSING)


@triton.jit
def bag_at(bag, batch, FEATURES: tl.constexpr, RAGGED: tl.constexpr):
    """(the feature of bag number `bag`, its row of the output, which is [B F, D])"""
    if not RAGGED:  # one id a bag, in the output's order
        return bag % FEATURES, bag
    feature = bag // batch
    return feature, (bag - feature * batch) * FEATURES + feature


@triton.jit
def said_bounds(offsets_ptr, bag, mask, bags, ids):
    """(where these bags begin, where they end, which begin, which end where they cannot), as their offsets say."""
    begin = tl.load(offsets_ptr + bag, mask, other=0).to(tl.int64)
    end = tl.load(offsets_ptr + bag + 1, mask, other=0).to(tl.int64)
    bad_begin = (begin < 0) | (begin > ids) | ((bag == 0) & (begin != 0))
    bad_end = (end < begin) | (end > ids) | ((bag == bags - 1) & (end != ids))
    return begin, end, mask & bad_begin, mask & bad_end


@triton.jit
def tell_offsets(report_ptr, offsets_ptr, bag, mask, bags, ids):
    """Report the bad offsets of these bags."""
    begin, end, bad_begin, bad_end = said_bounds(offsets_ptr, bag, mask, bags, ids)
    position, value = tl.where(bad_begin, bag, bag + 1), tl.where(bad_begin, begin, end)
    write_report(report_ptr, bad_begin | bad_end, BAD_OFFSET, 0, position.to(tl.int64), value)


@triton.jit
def bags_kernel(
    tables_ptr, first_ptr, indices_ptr, offsets_ptr, weights_ptr, out_ptr, found_ptr, report_ptr,
    bags, batch, ids, rows, padding,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr, MISSING: tl.constexpr, WIDE: tl.constexpr,
    BAGS: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):
    """BAGS bags × COLUMNS of their columns. Consecutive bags of a feature lie side by side, and so do their ids.

    A step takes AHEAD ids of each bag, and finds the row of each: line k BAGS + b is id k of bag b. It asks for all of
    these rows, then for the ids of the next step, and only then adds what has come; so a step takes as long as a row,
    not as long as an id and its row. Each line has a sum of its own until the end. A maximum, where the order counts,
    takes AHEAD = 1. What is wrong is counted in the loop and told behind it, for what tells of it keeps the loads of a
    step behind the one before.

    found_ptr: for the backward of a maximum, instead of out_ptr: the position of the id that it comes from, -1 if from
    none, [B F, D]. WIDE: bags, ids and rows are counted in 64 bits.
    """
    dtype = tl.float64 if tables_ptr.dtype.element_ty == tl.float64 else tl.float32
    index = tl.int64 if WIDE else tl.int32
    first_bag = tl.program_id(0).to(index) * BAGS
    line = tl.arange(0, AHEAD * BAGS)
    bag, ahead = first_bag + line % BAGS, line // BAGS
    mask = bag < bags
    feature, _ = bag_at(bag, batch, FEATURES, offsets_ptr is not None)
    if offsets_ptr is None:
        position, left = bag.to(tl.int64), mask.to(index) - ahead
        wrong = 0
    else:
        begin, end, bad_begin, bad_end = said_bounds(offsets_ptr, bag, mask, bags, ids)
        wrong = tl.max((bad_begin | bad_end).to(tl.int32), axis=0)
        position = tl.minimum(tl.maximum(begin, 0), ids)  # what can be read
        left = (tl.minimum(tl.maximum(end, position), ids) - position).to(index) - ahead
    position += ahead
    first, height = table_of(first_ptr, feature, mask)
    steps = tl.max(left, axis=0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros([AHEAD * BAGS, COLUMNS], dtype)
    winner = tl.full([AHEAD * BAGS, COLUMNS], -1, tl.int64)
    counted, missed = tl.zeros([AHEAD * BAGS], index), tl.zeros([AHEAD * BAGS], tl.int32)
    asked = tl.load(indices_ptr + position, left > 0, other=0)
    for step in range(0, steps, AHEAD):
        more = step < left
        row, inside, padded = find(first, height, asked, more, rows, padding)
        row = tl.where(inside, row, -1).to(index)[:, None]
        read = row >= 0
        if WIDTH % COLUMNS != 0:
            read = read & (column < WIDTH)
        values = tl.load(tables_ptr + row.to(tl.int64) * WIDTH + column, read, other=0.0).to(dtype)
        if weights_ptr is not None:
            values *= tl.load(weights_ptr + position + step, inside, other=0.0).to(dtype)[:, None]
        asked = tl.load(indices_ptr + position + (step + AHEAD), step + AHEAD < left, other=0)
        counts = more & (padded == 0)
        missed += (counts & (inside == 0)).to(tl.int32)
        if MODE == "max":
            # A NaN stays only if it comes first, as in PyTorch.
            better = counts[:, None] & ((counted == 0)[:, None] | (values > total))
            total = tl.where(better, values, total)
            winner = tl.where(better, tl.where(inside, position + step, -1)[:, None], winner)
        else:  # what has no row is zeros
            total += values
        counted += counts.to(index)
    bag = first_bag + tl.arange(0, BAGS)
    stored = (bag < bags)[:, None]
    if WIDTH % COLUMNS != 0:
        stored = stored & (column < WIDTH)
    _, out = bag_at(bag, batch, FEATURES, offsets_ptr is not None)
    out = out.to(tl.int64)[:, None] * WIDTH + column
    if found_ptr is not None:
        tl.store(found_ptr + out, winner, stored)
    if out_ptr is not None:
        total = tl.sum(tl.reshape(total, [AHEAD, BAGS, COLUMNS]), axis=0)
        if MODE == "mean":
            count = tl.sum(tl.reshape(counted, [AHEAD, BAGS]), axis=0)
            total = tl.where((count > 0)[:, None], total / tl.maximum(count, 1).to(dtype)[:, None], 0.0)
        tl.store(out_ptr + out, total, stored, cache_modifier=".cs")
        if MISSING != "zero":
            wrong += tl.max(missed, axis=0)
        if (tl.program_id(1) == 0) & (wrong > 0):
            if offsets_ptr is not None:
                tell_offsets(report_ptr, offsets_ptr, bag, bag < bags, bags, ids)
            if MISSING == "count":
                count_report(report_ptr, missed)
            elif MISSING == "error":
                for step in range(0, steps, AHEAD):
                    more = step < left
                    again = tl.load(indices_ptr + position + step, more, other=0)
                    row, inside, padded = find(first, height, again, more, rows, padding)
                    where = more & (inside == 0) & (padded == 0)
                    tell(report_ptr, where, again, feature, position + step, MISSING)
