"""The forms that a right kernel may have, and wrong ones: run whole, and with more elements than 32 bits count.

All forms are one program's, which takes the number of one as its activation. The puzzles' own answers are in
wrong_answers.txt.
"""

import functools
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.check.host import inline, programs
from lessons.n10_cuda_kernels import op_puzzles, puzzles
from lessons.n10_cuda_kernels.op_puzzles import GUARD, WIDE_HINT
from lessons.shared.puzzle.in_cuda import Wrong, not_on_host

PARAMETERS = "const float* x, const float* bias, const float* y, float m, float* out, int columns, int64_t n"
ARGUMENTS = (
    "x.data_ptr<float>(), bias.const_data_ptr<float>(), y.data_ptr<float>(), multiplier, "
    "out.mutable_data_ptr<float>(), columns, n"
)
FORM = """
namespace form_{number} {{
__device__ __forceinline__ float relu(float z) {{ return z < 0 ? 0 : z; }}
{kernel}
torch::Tensor run(torch::Tensor x, torch::Tensor bias, torch::Tensor y, double multiplier) {{
    {guard}
    x = x.contiguous(), bias = bias.contiguous(), y = y.contiguous();
    auto out = {out};
    const int64_t n = x.numel(), columns = x.size(-1), rows = n / columns;
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    {launch};
    {check};
    return out;
}}
}}  // namespace
"""


def form(body="", grid="(n + 255) / 256", block="256", **more) -> dict[str, str]:
    """The parts of FORM around a kernel with this body; @c@ in it stands for out[i] = … of column c."""
    body = re.sub("@(.+?)@", r"out[i] = relu(x[i] + m * y[i] + bias[\1]);", body)
    parts = {
        "guard": "", "out": "torch::empty_like(x)", "check": "C10_CUDA_KERNEL_LAUNCH_CHECK()",
        "kernel": f"__global__ void kernel({PARAMETERS}) {{ {body} }}",
        "launch": f"form_{{number}}::kernel<<<{grid}, {block}, 0, stream>>>({ARGUMENTS})",
    }  # fmt: skip
    return parts | more


PLACE = "int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;"
ONE = PLACE + " if (i < n) @i % columns@"
COLUMNS = "for (int c = threadIdx.x; c < columns; c += blockDim.x)"
ROWS = f"int64_t r = blockIdx.x; {COLUMNS} {{ int64_t i = r * columns + c; @c@ }}"
ON_Y = "int c = blockIdx.y * 256 + threadIdx.x; int64_t i = (int64_t)blockIdx.x * columns + c; if (c < columns) @c@"
TILES = (
    "int c = blockIdx.y * 32 + threadIdx.x; int64_t i = ((int64_t)blockIdx.x * 8 + threadIdx.y) * columns + c; "
    "if (c < columns && i < n) @c@"
)
FEWER = "n < (1 << 22) ? (n + 255) / 256 : 1 << 20"
STRIDE = f"for ({PLACE} i < n; i += (int64_t)gridDim.x * blockDim.x) @i % columns@"
NEIGHBOURS = PLACE + " i *= 4; for (int k = 0; k < 4 && i < n; ++k, ++i) @i % columns@"
ACCESSORS = """template <typename scalar_t>
__global__ void kernel(torch::PackedTensorAccessor64<scalar_t, 2, torch::RestrictPtrTraits> x,
                       torch::PackedTensorAccessor32<scalar_t, 1> bias,
                       at::PackedTensorAccessor64<scalar_t, 2> y, float m,
                       torch::PackedTensorAccessor64<scalar_t, 2> out) {
    int64_t r = blockIdx.x;
    for (int c = threadIdx.x; c < x.size(1); c += blockDim.x)
        out[r][c] = relu(__fmaf_rn(m, y[r][c], __fadd_rn(x[r][c], bias[c])));
}"""
BY_ACCESSORS = """auto flat = out.view({-1, columns});
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "act", ([&] {
        kernel<scalar_t><<<rows, 256, 0, stream>>>(
            x.view({rows, columns}).packed_accessor64<scalar_t, 2, torch::RestrictPtrTraits>(),
            bias.packed_accessor32<scalar_t, 1>(), y.reshape({-1, y.size(-1)}).packed_accessor64<scalar_t, 2>(),
            multiplier, flat.packed_accessor64<scalar_t, 2>()); }))"""
INCLUDED = """
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/detail/KernelUtils.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>
#include <algorithm>
#define CHECK_CUDA(x) TORCH_CHECK(x.device().is_cuda(), #x " must be a CUDA tensor")
#define CHECK_INPUT(x) CHECK_CUDA(x); TORCH_CHECK(x.scalar_type() == at::ScalarType::Float && x.is_cuda(), "float32")"""
CHECKS = """CHECK_INPUT(x); CHECK_INPUT(bias); TORCH_CHECK(x.sizes() == y.sizes(), "sizes", x.sizes().size());
    TORCH_CHECK(x.device() == bias.device() && bias.dim() == 1 && bias.size(0) == x.size(-1));
    TORCH_CHECK(x.dtype() == torch::kFloat32);
    c10::cuda::OptionalCUDAGuard guard; guard.set_device(x.device());"""
RIGHT = {
    "an element": form(ONE, guard="const at::cuda::OptionalCUDAGuard guard(device_of(x));"),
    "rows": form(ROWS, "rows", guard="const at::cuda::OptionalCUDAGuard guard(x.device());"),
    "rows by a stride": form(
        ROWS.replace("int64_t r = blockIdx.x;", "for (int64_t r = blockIdx.x; r < n / columns; r += gridDim.x)"),
        "std::min<int64_t>(rows, at::cuda::getCurrentDeviceProperties()->maxGridSize[1])", "128"),
    "columns on y": form(ON_Y, "dim3(rows, (columns + 255) / 256)", guard="c10::cuda::CUDAGuard guard{x.device()};"),
    "tiles": form(TILES, "dim3((rows + 7) / 8, (columns + 31) / 32)", "dim3(32, 8)"),
    "a stride": form(STRIDE, FEWER),
    "four neighbours": form(NEIGHBOURS, "at::ceil_div(n, (int64_t)1024)"),
    "backwards": form(PLACE + " i = n - 1 - i; if (i >= 0) @i % columns@", "(n + 127) / 128", "128"),
    "accessors": form(kernel=ACCESSORS, launch=BY_ACCESSORS, out="torch::zeros_like(x)"),
    "a copy": form(ONE, out="x.clone()"),
    "checks": form(ONE, guard=CHECKS, out="torch::empty(x.sizes(), x.options())",
                   check="cudaError_t e = cudaGetLastError(); TORCH_CHECK(e == cudaSuccess, cudaGetErrorString(e))"),
    "a macro": form("CUDA_KERNEL_LOOP_TYPE(i, n, int64_t) @i % columns@", FEWER,
                    check="AT_CUDA_CHECK(cudaGetLastError())"),
}  # fmt: skip


SCATTERED = ONE.replace("blockIdx.x", "blockIdx.x * 7919 % gridDim.x")
FLOAT, UNSIGNED = ONE.replace("(int64_t)b", "(float)b"), ONE.replace("(int64_t)", "").replace("int64_t", "unsigned")
PART = "int64_t r = blockIdx.x, i = r * columns + threadIdx.x; if (threadIdx.x < columns) @threadIdx.x@"
SWAPPED = "int c = blockIdx.x * 256 + threadIdx.x; int64_t i = (int64_t)blockIdx.y * columns + c; if (c < columns) @c@"
BY_GRID = "Check the grid"
WRONG = {  # what → the kernel's body, its grid, what is said, the hint
    "an int": (ONE.replace("int64_t", "int"), "", r"thread \d+ of block \d+ reads x\[-[\d,]+\]", WIDE_HINT),
    "unsigned": (UNSIGNED, "", r"thread 0 of block \d and thread 0 of block 1677721\d both write", WIDE_HINT),
    "rows of int": (ROWS.replace("int64_t", "int"), "rows", r"reads x\[-[\d,]+\]", WIDE_HINT),
    "the count": (ONE.replace("i < n", "i < (int)n"), "", "not written, and 16 parts .* write 256 elements", WIDE_HINT),
    "the column": (ONE.replace("i %", "(unsigned)i %"), "", r"expected [\d.]+, got", WIDE_HINT),
    "float": (FLOAT, "", "both write", WIDE_HINT),
    "the grid": (ONE, "((int)n + 255) / 256", "the launch starts 3 blocks", BY_GRID),
    "a row too few": (ROWS, "rows - (rows > 9)", "starts 4,294,967 blocks. Each writes 1,000 elements", BY_GRID),
    "a row too many": (ROWS, "rows + (rows > 9)", r"thread 0 of block 4294968 reads x\[4,294,968,000\]", GUARD),
    "the last block": (ONE, "n / 256 + (n < 2000)", "starts 16,777,218 blocks. Each writes 256 elements", BY_GRID),
    "a capped grid": (ONE, "std::min<int64_t>((n + 255) / 256, 65535)", "65,535 blocks. Each writes 256 ", BY_GRID),
    "part of a row": (PART, "rows", "starts 4,294,968 blocks. Each writes 256 ", BY_GRID),
    "rows on y": (SWAPPED, "dim3((columns + 255) / 256, rows)", "fails: 4×4294968 blocks .*65,535", BY_GRID),
}


ENDLESS = form(STRIDE.replace("int64_t", "unsigned"), FEWER)
FORMS = RIGHT | {"scattered": form(SCATTERED), "endless": ENDLESS} | {
    what: form(body, grid or "(n + 255) / 256") for what, (body, grid, *_) in WRONG.items()
}


@functools.cache
def source() -> str:
    forms = "".join(
        FORM.format(number=number, **{name: part.replace("{number}", str(number)) for name, part in parts.items()})
        for number, parts in enumerate(FORMS.values())
    )
    cases = "".join(f"case {k}: return form_{k}::run(x, bias, y, multiplier); " for k in range(len(FORMS)))
    forward = op_puzzles.DECLARATION.replace(";", f" {{ switch (activation) {{ {cases} }} return x; }}")
    return f"{INCLUDED}\n{forms}\n{forward}\n"


class Chosen(inline.Function):
    """One of the forms as forward(), which has computed a case of some blocks in either order."""

    def __init__(self, what: str):
        super().__init__(source())
        self.number = list(FORMS).index(what)
        x, y, bias = torch.randn(9, 130), torch.randn(9, 130), torch.randn(130)
        for _ in range(2):
            torch.testing.assert_close(self(x, bias, y, 0.5, 0), torch.relu(x + 0.5 * y + bias))

    def run(self, buffers, integers, inputs):
        return super().run(buffers, [*integers[:-1], self.number], inputs)


@pytest.mark.parametrize("what", RIGHT)
def test_a_right_kernel_may_have_any_form(what):
    assert op_puzzles._hold_wide(Chosen(what)) == ""


def test_what_the_search_does_not_find_is_not_tried():
    text = op_puzzles._hold_wide(Chosen("scattered"))
    assert text == "4,294,968×1,000: not tried here: none of the threads that were looked at comes to the last elements"


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_beyond_32_bits_is_said_as_it_is(what):
    *_, message, hint = WRONG[what]
    with pytest.raises(Wrong) as wrong:
        op_puzzles._hold_wide(Chosen(what))
    words, _, guess = str(wrong.value).partition("\nHint: ")
    assert re.search(message, words), words
    assert re.search(hint if hint not in (WIDE_HINT, GUARD) else re.escape(hint), guess), guess


def test_a_loop_that_does_not_end_beyond_32_bits():
    with pytest.raises(Wrong, match="does not end: it goes on with lower ones\nHint: From element 2,147,483,648"):
        op_puzzles._hold_wide(Chosen("endless"))


def launch(body: str, grid: str, block: str = "256") -> puzzles.Runner:
    parameters = "const float* x, const float* bias, float* out, int columns, int n"
    return puzzles.Runner(f"""__global__ void add_relu({parameters}) {{ {body} }}
void launch({parameters}) {{ int rows = n / columns; add_relu<<<{grid}, {block}>>>(x, bias, out, columns, n); }}""")


COLUMN = "if (c < columns) { int i = r * columns + c; float z = x[i] + bias[c]; out[i] = z < 0 ? 0 : z; }"


ROWS_OF_8 = f"int r = blockIdx.y * 8 + threadIdx.y, c = blockIdx.x * 32 + threadIdx.x; if (r < n / columns) {COLUMN}"


@pytest.mark.parametrize(
    ("body", "grid", "block"),
    [
        (f"int r = blockIdx.x; {COLUMNS} {COLUMN}", "rows", "256"),
        (f"int r = blockIdx.y, c = blockIdx.x * 64 + threadIdx.x; {COLUMN}", "dim3((columns + 63) / 64, rows)", "64"),
        (ROWS_OF_8, "dim3((columns + 31) / 32, (rows + 7) / 8)", "dim3(32, 8)"),
    ],
    ids=["rows", "columns and rows", "tiles"],
)
def test_a_case_of_some_100_000_elements_runs_whole(body, grid, block):
    x, bias = torch.randn(300, 1000), torch.randn(1000)
    torch.testing.assert_close(launch(body, grid, block)(x, bias), torch.relu(x + bias))


TEMPLATE = """template <int WARPS> __global__ void sums(const float* x, float* out, int rows, int columns) {
    __shared__ float part[WARPS][33];
    int lane = threadIdx.x, warp = threadIdx.y, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int r = warp; r < rows && column < columns; r += WARPS) sum += __ldg(&x[r * columns + column]);
    part[warp][lane] = sum;
    __syncthreads();
    for (int other = 1; warp == 0 && other < WARPS; ++other) sum += part[other][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    sums<16><<<(columns + 31) / 32, dim3(32, 16)>>>(x, out, rows, columns); }"""


def test_a_shared_array_may_be_a_templates():
    x, out = torch.randn(40, 77), torch.zeros(77)
    outcomes = [
        programs.run(programs.build(text), [x.numpy(), out.numpy()], x.shape)
        for text in (TEMPLATE, TEMPLATE.replace("__syncthreads();", ""))
    ]
    (result,) = outcomes[0].buffers[1]
    torch.testing.assert_close(torch.from_numpy(result), x.sum(0), atol=1e-4, rtol=1e-4)
    assert outcomes[1].text.endswith("of shared memory, which no thread has written")


def test_a_row_too_many_is_seen_in_it():
    runner = launch(f"int r = blockIdx.x; {COLUMNS} {COLUMN}", "rows + 1")
    with pytest.raises(Wrong, match=r"thread 0 of block 300 reads x\[300,000\], and x has 300,000 elements"):
        runner(torch.randn(300, 1000), torch.randn(1000))


FAST = {
    "__expf(z)": torch.exp, "__frcp_rn(z)": torch.reciprocal, "__fdividef(1, z)": torch.reciprocal,
    "__fmaf_rn(z, z, 1)": lambda z: z * z + 1, "rsqrtf(z)": torch.rsqrt, "__logf(z)": torch.log,
    "__powf(z, 2)": torch.square, "__ldg(x + i)": lambda z: z, "__sinf(z)": torch.sin, "__cosf(z)": torch.cos,
    "__log2f(z)": torch.log2, "__frsqrt_rn(z)": torch.rsqrt, "__saturatef(z)": lambda z: z.clamp(0, 1),
    "__fsqrt_rn(z)": torch.sqrt, "__int_as_float(__float_as_int(z))": lambda z: z, "max(z, 1.0)": lambda z: z.clamp(1),
    "make_float2(z, 2).y * make_int4(1, 2, 3, 4).z": lambda z: 6 + 0 * z, "normcdff(z)": torch.special.ndtr,
}  # fmt: skip


def test_fast_functions_are_there():
    cases = "".join(f" if (r == {at}) out[i] = {code};" for at, code in enumerate(FAST))
    body = f"int r = blockIdx.x, i = r * columns + threadIdx.x; float z = x[i]; {cases}"
    source = f"""__global__ void fast(const float* x, float* out, int columns) {{ {body} }}
void launch(const float* x, float* out, int columns) {{
    size_t shared = 0;
    fast<<<{len(FAST)}, columns, shared>>>(x, out, columns); }}"""
    x = torch.rand(len(FAST), 8) + 0.5
    outcome = programs.run(programs.build(source), [x.numpy(), np.zeros_like(x.numpy())], (8,))
    assert outcome.status == "ok", outcome.text
    expected = torch.stack([function(row) for function, row in zip(FAST.values(), x, strict=True)])
    torch.testing.assert_close(torch.from_numpy(outcome.buffers[1][0]).view_as(x), expected)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("atomicAdd(out, 1.0f)", "without atomics"),
        ("__shfl_xor_sync(0xffffffff, 1, 1)", "a warp's lanes"),
        ("__syncwarp()", "a warp's lanes"),
        ("__hadd(1, 2)", "CUDA's fast functions of float"),
        ("clock64()", ""),
    ],
)
def test_what_the_host_lacks_is_named(code, hint):
    source = f"__global__ void f(float* out) {{ {code}; }}\nvoid launch(float* out) {{ f<<<1, 1>>>(out); }}"
    with pytest.raises(programs.DoesNotCompile) as error:
        programs.build(source)
    assert re.search(hint, not_on_host(str(error.value))) if hint else not not_on_host(str(error.value))


STRIDES = """__global__ void strides(float* out, int64_t a, int64_t b, int64_t c) {{
    out[0] = a, out[1] = b, out[2] = c;
}}
torch::Tensor forward(torch::Tensor x) {{
    auto like = {like};
    auto out = torch::empty({{3}});
    strides<<<1, 1, 0, at::cuda::getCurrentCUDAStream()>>>(
        out.data_ptr<float>(), like.stride(0), like.stride(1), like.stride(2));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}}"""
VIEWS = {
    "contiguous": lambda x: x, "transposed": lambda x: x.mT, "turned": lambda x: x.permute(2, 0, 1),
    "some rows": lambda x: x[:, ::2], "some, turned": lambda x: x[:, :, ::2].permute(1, 2, 0),
    "expanded": lambda x: x[:, :1].expand(-1, 3, -1), "of one": lambda x: x.permute(1, 0, 2)[:1],
}  # fmt: skip


@pytest.mark.parametrize(
    ("like", "expected"),
    [("torch::empty_like(x)", torch.empty_like), ("x.clone()", torch.clone), ("x.contiguous()", Tensor.contiguous)],
)
def test_what_is_like_a_view_has_pytorchs_strides(like, expected):
    function, whole = inline.Function(STRIDES.format(like=like)), torch.randn(4, 6, 5)
    for name, view in VIEWS.items():
        x = view(whole)
        buffers = [inline._memory(x), np.zeros(x.numel(), np.float32), np.zeros(3, np.float32)]
        function.run(buffers, inline.integers_of([x]), 1)
        (strides,) = function.last.buffers[-1]
        assert [*strides] == [*expected(x).stride()], name
