"""BROKEN ON PURPOSE: out = sigmoid(relu(x W1ᵀ + b1) W2ᵀ + b2) as a lecture sketched it, and marked INCORRECT.

The sketch is the question that this op answers; it stands in https://github.com/kapilsh/cuda-mode-lecture, README, "Can
we write the whole thing as triton/cuda kernel?". In other words: the batch (b), the input's width (n) and both layers'
(m, l) are cut into blocks, and a program multiplies one block of each. Its wrong lines are steps 2 to 4, which take of
one block's product what belongs to the sum over all n, and 7 to 9, which do so with the sum over all m.

Widths are multiples of their blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.check import check
from lessons.shared import layer_puzzles


@triton.jit
def sketch_kernel(
    x, W1, b1, W2, b2, out, N: tl.constexpr, M: tl.constexpr, L: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_L: tl.constexpr,
):
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)[:, None]
    n = tl.program_id(1) // (M // BLOCK_M) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) % (M // BLOCK_M) * BLOCK_M + tl.arange(0, BLOCK_M)
    l = tl.program_id(2) * BLOCK_L + tl.arange(0, BLOCK_L)  # noqa: E741
    x_block, W1_block = tl.load(x + b * N + n[None, :]), tl.load(W1 + m[None, :] * N + n[:, None])
    h = tl.dot(x_block, W1_block, input_precision="ieee")  # step 1
    h += tl.load(b1 + m % M)[None, :]  # steps 2, 3
    h = tl.maximum(h, 0.0)  # step 4
    z = tl.dot(h, tl.load(W2 + l[None, :] * M + m[:, None]), input_precision="ieee")  # steps 5, 6
    z += tl.load(b2 + l % L)[None, :]  # steps 7, 8
    tl.store(out + b * L + l[None, :], tl.sigmoid(z))  # step 9


def cut(b: int, n: int, m: int, l: int) -> Callable[..., Tensor]:  # noqa: E741
    """The sketch with blocks of these sizes, powers of two from 16 on, as a function of what fused_mlp takes."""
    return functools.partial(_run, (b, n, m, l))


def held(*blocks: int) -> str:
    """What `check` says of the sketch with such blocks: "right", or the element that is furthest off."""
    try:
        with redirect_stdout(StringIO()):
            check("two_layers", cut(*blocks), spec=layer_puzzles.SKETCH)
    except AssertionError as error:
        return str(error).partition("\n")[0].partition(", ")[2]
    return "right"


def _run(blocks: tuple, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *options) -> Tensor:
    (w1, w2), (b1, b2) = weights, biases
    (rows, inputs), between, outputs = x.shape, len(w1), len(w2)
    b, n, m, l = blocks  # noqa: E741
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    sketch_kernel[(rows // b, (inputs // n) * (between // m), outputs // l)](
        x, w1, b1, w2, b2, out, inputs, between, outputs, BLOCK_B=b, BLOCK_N=n, BLOCK_M=m, BLOCK_L=l
    )
    return out
