"""The layer relu(x weightᵀ + bias) by tiles: x [M, K], weight [N, K], bias [N], out [M, N].

layer_kernel       the answer to the notebook's capstone, of contiguous matrices. Of float32 the float32 units multiply
                   ("ieee"), of bfloat16 the tensor cores.
descriptor_kernel  the same by TMA. Rows begin at multiples of 16 bytes. float32 is cut to tf32.

The texts are the cells'. Indices have 32 bits: no matrix here has 2³¹ elements. Sums are float32. NaN stays NaN.
"""

import kernels  # noqa: I001, F401  before Triton, so that it interprets
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SMS = torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 4


@triton.jit
def layer_kernel(
    x, weight, bias, out, M, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr
):
    rows, columns = tl.cdiv(M, ROWS), tl.cdiv(N, COLUMNS)
    first = tl.program_id(0) // (GROUP * columns) * GROUP
    inside = tl.program_id(0) % (GROUP * columns)
    high = tl.minimum(rows - first, GROUP)
    row = (first + inside % high) * ROWS + tl.arange(0, ROWS)
    column = inside // high * COLUMNS + tl.arange(0, COLUMNS)
    in_rows, in_columns = (row < M)[:, None], (column < N)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row[:, None] * K + k[None, :], in_rows & (k < K)[None, :], 0.0)
        b = tl.load(weight + column[None, :] * K + k[:, None], in_columns & (k < K)[:, None], 0.0)
        sums = tl.dot(a, b, sums, input_precision="ieee")
    z = sums + tl.load(bias + column, column < N, 0.0)[None, :]
    z = tl.where(z < 0, 0.0, z)
    tl.store(out + row[:, None] * N + column[None, :], z, in_rows & in_columns)


def launch(kernel, x, weight, bias, ROWS=64, COLUMNS=64, STEP=32, GROUP=1, num_warps=4, num_stages=1):
    (M, K), N = x.shape, len(weight)
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    kernel[(triton.cdiv(M, ROWS) * triton.cdiv(N, COLUMNS),)](
        x, weight, bias, out, M, N, K, ROWS=ROWS, COLUMNS=COLUMNS, STEP=STEP, GROUP=GROUP,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return out


@triton.jit
def descriptor_kernel(
    x, weight, bias, out, M, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, FLATTEN: tl.constexpr
):
    columns = tl.cdiv(N, COLUMNS)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, ROWS) * columns, tl.num_programs(0), flatten=FLATTEN):
        row, column = tile // columns * ROWS, tile % columns * COLUMNS
        sums = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, K, STEP):
            sums = tl.dot(x.load([row, start]), weight.load([column, start]).T, sums)
        i = column + tl.arange(0, COLUMNS)
        z = sums + tl.load(bias + i, i < N, 0.0)[None, :]
        out.store([row, column], tl.where(z < 0, 0.0, z).to(out.dtype))


def describe(x, weight, bias, ROWS=128, COLUMNS=128, STEP=64, num_warps=8, num_stages=3, persistent=False):
    (M, K), N = x.shape, len(weight)
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    described = TensorDescriptor.from_tensor
    tiles = triton.cdiv(M, ROWS) * triton.cdiv(N, COLUMNS)
    descriptor_kernel[(min(tiles, SMS) if persistent else tiles,)](
        described(x, [ROWS, STEP]), described(weight, [COLUMNS, STEP]), bias, described(out, [ROWS, COLUMNS]),
        M, N, K, ROWS=ROWS, COLUMNS=COLUMNS, STEP=STEP, FLATTEN=persistent,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return out


LARGE = {"ROWS": 128, "COLUMNS": 128, "STEP": 64, "num_warps": 8, "num_stages": 3}
STEPS = {"tiles": {}, "stages": {"num_stages": 3}, "larger tiles": LARGE, "grouped": LARGE | {"GROUP": 8}}
STEPS["wider tiles"] = STEPS["grouped"] | {"COLUMNS": 256}
WIDE = {"ROWS": 128, "COLUMNS": 256}
MORE = {
    "descriptors": {"ROWS": 128, "COLUMNS": 128}, "two stages": {"ROWS": 128, "COLUMNS": 128, "num_stages": 2},
    "wide descriptors": WIDE, "persistent": WIDE | {"persistent": True},
}
