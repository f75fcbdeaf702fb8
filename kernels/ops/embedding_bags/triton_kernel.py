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
    return begin, tl.load(first_ptr + features + 1, mask, other=0) - begin


@triton.jit
def find(begin, height, ids, mask, rows, padding):
    """(row, whether there is one, whether the id is the padding) of ids of such tables. An id has 64 bits before
    anything is added to it, so that it cannot wrap round. Where a table begins is not trusted."""
    ids = ids.to(tl.int64)
    found = begin + ids
    padded = (ids == padding) & (padding >= 0)
    inside = mask & (ids >= 0) & (ids < height) & (found >= 0) & (found < rows) & (padded == 0)
    return found, inside, padded


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
def bag_bounds(offsets_ptr, bag, mask, bags, ids, report_ptr, TELLS: tl.constexpr):
    """Where the ids of these bags begin and end, clamped to what can be read."""
    begin = tl.load(offsets_ptr + bag, mask, other=0).to(tl.int64)
    end = tl.load(offsets_ptr + bag + 1, mask, other=0).to(tl.int64)
    bad_begin = (begin < 0) | (begin > ids) | ((bag == 0) & (begin != 0))
    bad_end = (end < begin) | (end > ids) | ((bag == bags - 1) & (end != ids))
    if TELLS:
        where = mask & (bad_begin | bad_end) & (tl.program_id(1) == 0)
        position, value = tl.where(bad_begin, bag, bag + 1), tl.where(bad_begin, begin, end)
        write_report(report_ptr, where, BAD_OFFSET, 0, position.to(tl.int64), value)
    begin = tl.minimum(tl.maximum(begin, 0), ids)
    return begin, tl.minimum(tl.maximum(end, begin), ids)


@triton.jit
def bags_kernel(
    tables_ptr, first_ptr, indices_ptr, offsets_ptr, weights_ptr, out_ptr, found_ptr, report_ptr,
    bags, batch, ids, rows, padding,
    FEATURES: tl.constexpr, WIDTH: tl.constexpr, MODE: tl.constexpr, MISSING: tl.constexpr,
    BAGS: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):
    """BAGS bags × COLUMNS of their columns. Consecutive bags of a feature lie side by side, and so do their ids.

    found_ptr: for the backward of a maximum, instead of out_ptr: the position of the id that it comes from, -1 if from
    none, [B F, D].
    """
    dtype = tl.float64 if tables_ptr.dtype.element_ty == tl.float64 else tl.float32
    bag = tl.program_id(0).to(tl.int64) * BAGS + tl.arange(0, BAGS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    mask = bag < bags
    if offsets_ptr is None:  # one id a bag, in the output's order
        feature, out, begin = bag % FEATURES, bag, bag
        end = begin + mask.to(tl.int64)
    else:
        feature = bag // batch
        out = (bag - feature * batch) * FEATURES + feature
        begin, end = bag_bounds(offsets_ptr, bag, mask, bags, ids, report_ptr, TELLS=out_ptr is not None)
    in_columns = column < WIDTH
    first, height = table_of(first_ptr, feature, mask)
    # Of each bag: where its first id that is out of range stands, and how many are. What is told within the loop would
    # keep the loads of an iteration behind the one before.
    bad, missing = tl.full([BAGS], -1, tl.int64), tl.zeros([BAGS], tl.int32)
    total = tl.zeros([BAGS, COLUMNS], dtype)
    winner = tl.full([BAGS, COLUMNS], -1, tl.int64)
    counted = tl.zeros([BAGS], tl.int64)
    for step in range(0, tl.max(end - begin, axis=0), AHEAD):
        for ahead in tl.static_range(AHEAD):
            position = begin + step + ahead
            more = position < end
            id_ = tl.load(indices_ptr + position, more, other=0)
            row, inside, padded = find(first, height, id_, more, rows, padding)
            where = more & (inside == 0) & (padded == 0)
            if MISSING == "error":
                bad = tl.where(where & (bad < 0), position, bad)
            elif MISSING == "count":
                missing += where.to(tl.int32)
            read = inside[:, None] & in_columns
            value = tl.load(tables_ptr + row[:, None] * WIDTH + column, read, other=0.0).to(dtype)
            counts = more & (padded == 0)
            if MODE == "max":
                # A NaN stays only if it comes first, as in PyTorch.
                better = counts[:, None] & ((counted == 0)[:, None] | (value > total))
                total = tl.where(better, value, total)
                winner = tl.where(better, tl.where(inside, position, -1)[:, None], winner)
            else:
                if weights_ptr is not None:
                    value *= tl.load(weights_ptr + position, inside, other=0.0).to(dtype)[:, None]
                total += tl.where(counts[:, None], value, 0.0)
            counted += counts.to(tl.int64)
    is_told = tl.program_id(1) == 0
    if MISSING == "error":
        where = (bad >= 0) & is_told
        ids_there = tl.load(indices_ptr + bad, where, other=0)
        write_report(report_ptr, where, BAD_ID, feature.to(tl.int64), bad, ids_there.to(tl.int64))
    elif MISSING == "count":
        count_report(report_ptr, tl.where(is_told, missing, 0))
    stored = mask[:, None] & in_columns
    if found_ptr is not None:
        tl.store(found_ptr + out[:, None] * WIDTH + column, winner, stored)
    if out_ptr is not None:
        if MODE == "mean":
            total = tl.where((counted > 0)[:, None], total / tl.maximum(counted, 1).to(dtype)[:, None], 0.0)
        tl.store(out_ptr + out[:, None] * WIDTH + column, total, stored, cache_modifier=".cs")
