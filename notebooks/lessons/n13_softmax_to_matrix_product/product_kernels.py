"""Row softmax, and out = relu(x weightᵀ + bias) step by step: x [M, K], weight [N, K], bias [N], out [M, N].

Indices have 32 bits: no matrix of these kernels has 2³¹ numbers. Masks select, so that the NaN of a row stays in it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.device.activations import INTERPRETED


@triton.jit
def softmax_rows(x, out, rows, columns, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    z = tl.load(x + row * stride + column, mask, -float("inf"))
    powers = tl.exp(z - tl.max(z, axis=1, keep_dims=True))
    tl.store(out + row * columns + column, powers / tl.sum(powers, axis=1, keep_dims=True), mask)


@triton.jit
def relu(z):
    """NaN stays NaN."""
    return tl.where(z < 0, 0.0, z)


@triton.jit
def naive_kernel(x, weight, bias, out, M, N, K, STEP: tl.constexpr):
    row, column = tl.program_id(0) // N, tl.program_id(0) % N
    sums = tl.zeros([STEP], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row * K + k, k < K, 0.0)
        b = tl.load(weight + column * K + k, k < K, 0.0)
        sums += a.to(tl.float32) * b.to(tl.float32)
    tl.store(out + row * N + column, relu(tl.sum(sums) + tl.load(bias + column).to(tl.float32)))


@triton.jit
def multiply_add(a, b, sums, UNITS: tl.constexpr):
    """sums + a b, in float32. UNITS: "ordinary", or "tensor" cores, which cut float32 to tf32. The interpreter gets
    products of bfloat16 wrong; of float32 they are the same."""
    if UNITS == "ordinary" or INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sums, input_precision="ieee")
    else:
        return tl.dot(a, b, sums, input_precision="tf32")


@triton.jit
def place(program, rows, columns, GROUP: tl.constexpr):
    """The tile of out that a program takes: GROUP rows of tiles at a time, down and then to the right."""
    group = program // (GROUP * columns)
    high = tl.minimum(rows - group * GROUP, GROUP)
    inside = program % (GROUP * columns)
    return group * GROUP + inside % high, inside // high


@triton.jit
def tile_sums(
    x, weight, row, column, M, N, K,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, UNITS: tl.constexpr,
):
    """x weightᵀ in these rows and columns, [ROWS, COLUMNS]: STEP of K at a time."""
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row[:, None] * K + k[None, :], (row < M)[:, None] & (k < K)[None, :], 0.0)
        b = tl.load(weight + column[None, :] * K + k[:, None], (column < N)[None, :] & (k < K)[:, None], 0.0)
        sums = multiply_add(a, b, sums, UNITS)
    return sums


@triton.jit
def tiled_kernel(
    x, weight, bias, out, M, N, K,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr,
    UNITS: tl.constexpr, EPILOGUE: tl.constexpr,
):
    i, j = place(tl.program_id(0), tl.cdiv(M, ROWS), tl.cdiv(N, COLUMNS), GROUP)
    row, column = i * ROWS + tl.arange(0, ROWS), j * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, UNITS)
    if EPILOGUE:
        z = relu(z + tl.load(bias + column, column < N, 0.0).to(tl.float32)[None, :])
    mask = (row < M)[:, None] & (column < N)[None, :]
    tl.store(out + row[:, None] * N + column[None, :], z.to(out.dtype.element_ty), mask)


@triton.jit
def persistent_kernel(
    x, weight, bias, out, M, N, K,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr,
    EPILOGUE: tl.constexpr, PARTS: tl.constexpr, FLATTEN: tl.constexpr,
):
    """x, weight and out are descriptors, whose tiles TMA moves. A program takes one tile after the other.

    PARTS: in how many pieces a tile is stored, which take that much less shared memory. FLATTEN: the two loops become
    one, so that the next tile's loads begin before this one's end.
    """
    rows, columns = tl.cdiv(M, ROWS), tl.cdiv(N, COLUMNS)
    for tile in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0), flatten=FLATTEN):
        i, j = place(tile, rows, columns, GROUP)
        z = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, K, STEP):
            a, b = x.load([i * ROWS, start]), weight.load([j * COLUMNS, start])
            z = multiply_add(a, b.T, z, "tensor")
        if EPILOGUE:
            column = j * COLUMNS + tl.arange(0, COLUMNS)
            z = relu(z + tl.load(bias + column, column < N, 0.0).to(tl.float32)[None, :])
        if PARTS == 1:
            out.store([i * ROWS, j * COLUMNS], z.to(out.dtype))
        else:
            halves = tl.permute(tl.reshape(z, [ROWS, 2, COLUMNS // 2]), [0, 2, 1])
            left, right = tl.split(halves)
            out.store([i * ROWS, j * COLUMNS], left.to(out.dtype))
            out.store([i * ROWS, j * COLUMNS + COLUMNS // 2], right.to(out.dtype))
