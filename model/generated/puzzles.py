"""Puzzles on generated kernels; attempt(name, answer) checks one.

traffic    rows, columns → bytes that eager's four kernels move, and that the fused one moves
original   x [rows, 24], w [5] → what KERNEL computes of them, in PyTorch
width      block, warps, known → bytes that a lane moves in one instruction
The last puzzle, a kernel for open sizes, is kernels/ops/add_mul_activation/puzzles.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from kernels import check
from kernels.check import Call, Case, Spec
from model import number_puzzles
from model.generated import facts

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
_OURS = {"traffic": facts.traffic, "width": facts.width}


def attempt(name: str, function: Callable) -> bool:
    """Whether the reader's function is right; if not, why is printed, with the case and a hint."""
    if name in NUMBERS:
        return number_puzzles.attempt(name, function, SPECS[name], Path(facts.__file__))
    function = _of_shape(number_puzzles.alone(function, Path(__file__)))
    return check.attempt(name, function, spec=SPECS[name], device="cpu", isolated=False, kernels_only=False)


def _of_shape(function: Callable) -> Callable:
    """The function, its result contiguous; AssertionError with a hint if it raises, or if it has not three places."""

    @functools.wraps(function)
    def of_shape(x: Tensor, w: Tensor) -> Tensor:
        try:
            found = function(x, w)
        except RuntimeError as error:
            raise AssertionError(f"RuntimeError: {error}\nHint: {PLACES}") from None
        expected = (x.shape[0], 5, 24)
        if isinstance(found, Tensor) and found.shape != expected:
            raise AssertionError(f"expected shape {list(expected)}, got {list(found.shape)}\nHint: {PLACES}")
        return found.contiguous() if isinstance(found, Tensor) else found

    return of_shape


def relu_of_difference(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x[:, None, :] - 2 * w[:, None])


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows = case.shape[0]
    generator = torch.Generator().manual_seed(rows)
    x, w = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((rows, 24), (5,)))
    if rows == 6:
        yield Call("6 rows", (x, w), hint=f"{PLACES} Then: what do tmp3 to tmp6 compute?")
        x = x.clone()
        x[0, 0] = float("nan")
        yield Call("6 rows, a NaN in x", (x, w), hint="triton_helpers.maximum of a NaN is NaN; is yours?")
    else:
        yield Call(f"{rows} rows", (x, w), hint="the kernel was written for 6 rows; what you write is for any.")


SPECS = {name: number_puzzles.spec(ours, NUMBERS[name]) for name, ours in _OURS.items()} | {
    # In float64, which the generated kernel itself does not take.
    "original": Spec(
        relu_of_difference, _calls, cases=lambda names: [Case((6,)), Case((2,))], wide_cases=lambda names: []
    )
}
