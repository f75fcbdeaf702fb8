"""The puzzles of notebook 07, on generated kernels.

original      x [rows, 24], w [5] → what KERNEL computes of them, in PyTorch
load_widths   PTX → bytes that a lane reads in each load from memory, in order
The last puzzle, a kernel for any sizes, is in kernel_puzzles.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec
from lessons.n07_read_the_generated_triton import kernel_puzzles
from lessons.shared.puzzle import InPyTorch, Judge, OfNumbers

# As torch 2.13 writes it of relu_of_difference, x [6, 24], w [5]; the function's head is shortened.
KERNEL = """\
def triton_poi_fused_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 720
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 24)
    x2 = xindex // 120
    x1 = ((xindex // 24) % 5)
    x3 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 24*x2), xmask, eviction_policy='evict_last')
    tmp1 = tl.load(in_ptr1 + (x1), xmask, eviction_policy='evict_last')
    tmp2 = tl.full([1], 2.0, tl.float32)
    tmp3 = tmp1 * tmp2
    tmp4 = tmp0 - tmp3
    tmp5 = tl.full([1], 0, tl.int32)
    tmp6 = triton_helpers.maximum(tmp5, tmp4)
    tl.store(out_ptr0 + (x3), tmp6, xmask)"""

INDICES = "The result's shape is [6, 5, 24], and its indices are x2, x1 and x0. Which of them does each load use?"


def relu_of_difference(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x[:, None, :] - 2 * w[:, None])


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows = case.shape[0]
    generator = torch.Generator().manual_seed(rows)
    x, w = (torch.randn(*shape, generator=generator) for shape in ((rows, 24), (5,)))
    if rows == 6:
        yield Call("6 rows", (x, w), hint=f"{INDICES} What do tmp3 to tmp6 compute?")
        x = x.clone()
        x[0, 0] = float("nan")
        hint = "triton_helpers.maximum of a NaN is NaN. Is yours NaN too?"
        yield Call("6 rows, a NaN in x", (x, w), hint=hint)
        x[0, 0] = float("inf")
        yield Call("6 rows, an Inf in x", (x, w), hint="tmp6 has a lower limit but no upper one: of Inf it is Inf.")
    else:
        hint = "The kernel was generated for 6 rows. Your function must take any number of rows."
        yield Call(f"{rows} rows", (x, w), hint=hint)


def widths(ptx: str) -> list[int]:
    """Bytes that a lane reads in each load from global memory, in order."""
    matches = re.findall(r"\bld\.global\S*?(?:\.v(\d))?\.[a-z](\d+)\s", ptx)
    return [int(vector or 1) * int(bits) // 8 for vector, bits in matches]


BODY = """\
    ld.param.b64 %rd10, [fused_param_0];
    mov.u32 %r33, %ctaid.x;
    ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    ld.global.v4.b32 { %r5, %r6, %r7, %r8 }, [ %rd2 + 0 ];
    st.global.v4.b32 [ %rd8 + 0 ], { %r25, %r26, %r27, %r28 };"""
PTX: tuple[tuple[str, tuple, str], ...] = (
    ("one load", ("    ld.global.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];",), "v2.b32 means two registers of 32 bits each."),
    ("one register", ("    ld.global.b32 { %r1 }, [ %rd1 + 0 ];",), "Without .v2 or .v4, a load fills one register."),
    ("a kernel", (BODY,), "Count only ld.global: ld.param reads an argument of the kernel, and st.global writes."),
    (
        "a hint",
        ("    ld.global.L1::evict_last.L2::cache_hint.v4.b32 { %r17, %r18, %r19, %r20 }, [ %rd5 + 0 ], %rd6;",),
        "There may be other words between ld.global and .v4, and they may contain digits.",
    ),
    (
        "a mask", ("    @%p1 ld.global.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];",),
        "@%p1 before a load is its mask. The load still counts.",
    ),
    (
        "other types",
        ("    ld.global.v4.b16 { %rs1, %rs2, %rs3, %rs4 }, [ %rd1 + 0 ];\n    ld.global.f64 %fd1, [ %rd2 + 0 ];",),
        "b16 has 16 bits and f64 has 64: the width is the number after the letter.",
    ),
    (
        "three widths",
        (
            "    ld.global.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];\n    ld.global.b32 { %r3 }, [ %rd2 + 0 ];\n"
            "    ld.global.v4.b32 { %r4, %r5, %r6, %r7 }, [ %rd3 + 0 ];",
        ),
        "The numbers stand in the order of the loads.",
    ),
    ("no load", ("    st.global.b32 [ %rd1 + 0 ], { %r1 };",), "Where there is no load, the list is empty."),
)


def _slip(want: object, got: object) -> str:
    """A hint for what is right but in its unit or its form."""
    if got and got == [8 * width for width in want]:
        return "These are bits. A byte has 8 of them."
    if want and not isinstance(got, list):
        return "Return a list with one number for each load."
    return ""


PUZZLES = kernel_puzzles.PUZZLES | {
    "original": InPyTorch(Spec(relu_of_difference, _calls, cases=lambda names: [Case((6,)), Case((2,))])),
    "load_widths": OfNumbers(widths, PTX, unit="bytes", wrong=_slip),
}
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt


def passed(name: str) -> object:
    """The reader's answer, if it passed when it was last tried; else the lecture's."""
    return JUDGE.solved.get(name, {"load_widths": widths}[name])
