"""The puzzles of notebook 07, on generated kernels.

traffic    rows, columns → bytes that eager's four kernels move, and that the fused one moves
original   x [rows, 24], w [5] → what KERNEL computes of them, in PyTorch
width      block, warps, known → bytes that a lane moves in one instruction
The last puzzle, a kernel for open sizes, is in kernel_puzzles.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec
from lessons.n07_read_the_generated_triton import arithmetic, kernel_puzzles
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

PLACES = "the result has x2, x1 and x0 as places, in this order (6 · 5 · 24). Which does each load take?"
_KERNELS = "Eager: four kernels, each of which reads its inputs and writes its output. A number has 4 bytes."
_BIAS = "Of one row, the bias is as large as x: who reads it?"
_LANES = "A program has 32 · warps lanes, which share its block: how many neighbours has each, and how many go at once?"
NUMBERS: dict[str, tuple[tuple[str, tuple, str], ...]] = {
    "traffic": (
        ("16,777,216 rows of 1", (2**24, 1), _KERNELS),
        ("1 row of 1000", (1, 1000), _BIAS),
        ("7 rows of 1023", (7, 1023), _KERNELS),
    ),
    "width": (
        ("512, 8 warps", (512, 8, 1), _LANES),
        ("512, 4 warps", (512, 4, 1), _LANES),
        ("1024, 4 warps", (1024, 4, 1), "No instruction moves more than 16 bytes a lane: the rest is another one."),
        (
            "512, 4 warps, nothing known",
            (512, 4, 0),
            "An access of 16 bytes needs an address that is a multiple of 16.",
        ),
        ("64, 4 warps", (64, 4, 1), "There are more lanes than numbers; a number has 4 bytes all the same."),
        ("2048, 32 warps, nothing known", (2048, 32, 0), "Nothing is known: number by number."),
    ),
}


def _exchanged(want: list[int], got: object) -> str:
    """A hint for what is right but in its form."""
    if got == want[::-1]:
        return "eager's number comes first, then the fused kernel's."
    if isinstance(got, list) and got and want[0] > 1e6 and abs(got[0] - want[0] / 1e6) < 1:
        return "bytes, not MB."
    if isinstance(got, list) and len(got) == 2 and abs(got[0] - want[0]) < 1e-6 * want[0]:
        return "nearly: who reads the bias, and how many numbers has it?"
    return ""


def relu_of_difference(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x[:, None, :] - 2 * w[:, None])


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows = case.shape[0]
    generator = torch.Generator().manual_seed(rows)
    x, w = (torch.randn(*shape, generator=generator) for shape in ((rows, 24), (5,)))
    if rows == 6:
        yield Call("6 rows", (x, w), hint=f"{PLACES} Then: what do tmp3 to tmp6 compute?")
        x = x.clone()
        x[0, 0] = float("nan")
        yield Call("6 rows, a NaN in x", (x, w), hint="triton_helpers.maximum of a NaN is NaN; is yours?")
    else:
        yield Call(f"{rows} rows", (x, w), hint="the kernel was written for 6 rows; what you write is for any.")


PUZZLES = kernel_puzzles.PUZZLES | {
    "traffic": OfNumbers(arithmetic.traffic, NUMBERS["traffic"], unit="bytes", wrong=_exchanged),
    "width": OfNumbers(arithmetic.width, NUMBERS["width"], unit="bytes"),
    "original": InPyTorch(Spec(relu_of_difference, _calls, cases=lambda names: [Case((6,)), Case((2,))])),
}
attempt = Judge(PUZZLES).attempt
