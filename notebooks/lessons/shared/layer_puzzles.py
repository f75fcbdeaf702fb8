"""The layers of an MLP in Triton as puzzles: what each must compute, and what launches a reader's kernel.

    layer        x [B, K], weight [N, K], bias [N] → relu(x weightᵀ + bias): a tile of it a program, K in steps
    chained      two layers, K-N1-N2, relu and sigmoid: a tile of rows a program, N1 in chunks
    mlp          four layers, K-N1-N2-N3-N4, relu after each, in float32 and in float16

The reference is the op's own, and what results may be off by, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec
from kernels.ops.fused_mlp.eager import fused_mlp
from kernels.ops.fused_mlp.spec import Layers, draw_mlp
from lessons.shared.puzzle import InTriton

ROWS, COLUMNS, STEP = 16, 32, 16  # of a program's tile, and of its loop
HIGH = 256  # rows of a tile where there are MANY
NAN = "row 7 of x is NaN, and its sums too; relu(NaN) is NaN. tl.maximum gives 0, a comparison is false."
WITH_NAN = 20  # rows, of which one is NaN
WITH_INF = 21  # rows, where a number of each bias is -Inf
WITH_MORE = 22  # rows, where a number of the last bias is Inf
MANY = 33_000  # rows, whose numbers and places 16 bits do not hold
MINUS_INF = "the bias of column 1 is -Inf. Its relu is 0, and -Inf · 0 is NaN: choose, do not multiply."
OF_MANY = f"there are {MANY:,} rows: their numbers and places need more than 16 bits."
INF = "the bias of column 2 is Inf, and so is its relu."
HALVES = (
    "x and the weights are halves. Sums are float32: here they go beyond 65,504, which is a half's largest number, and "
    "come back. What goes into the next product is a half again."
)


def height(rows: int) -> int:
    """The rows of a program's tile."""
    return HIGH if rows == MANY else ROWS


def launch_layer(kernel, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *options) -> Tensor:
    """kernel[row tiles, column tiles](x, weight, bias, out, B, K, N, ROWS, COLUMNS, STEP)."""
    (rows, inputs), outputs = x.shape, len(biases[0])
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    grid = -(-rows // height(rows)), -(-outputs // COLUMNS)
    kernel[grid](x, *weights, *biases, out, rows, inputs, outputs, ROWS=height(rows), COLUMNS=COLUMNS, STEP=STEP)
    return out


def launch_chained(kernel, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *options) -> Tensor:
    """kernel[row tiles](x, w1, b1, w2, b2, out, B, N1, K, N2, ROWS, CHUNK); K and N2 are powers of two from 16 on."""
    (rows, inputs), (between, outputs) = x.shape, map(len, biases)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    (w1, w2), (b1, b2) = weights, biases
    kernel[(-(-rows // height(rows)),)](
        x, w1, b1, w2, b2, out, rows, between, K=inputs, N2=outputs, ROWS=height(rows), CHUNK=STEP
    )
    return out


def launch_mlp(kernel, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *options) -> Tensor:
    """kernel[row tiles](x, w1, b1, …, w4, b4, out, M, K, N1, N2, N3, N4, ROWS, CHUNK, PRECISION); the widths are powers
    of two from 16 on."""
    rows, inputs = x.shape
    out = torch.empty(rows, len(biases[-1]), dtype=x.dtype, device=x.device)
    layers = [each for layer in zip(weights, biases, strict=True) for each in layer]
    widths = {f"N{i + 1}": len(bias) for i, bias in enumerate(biases)}
    kernel[(-(-rows // height(rows)),)](
        x, *layers, out, rows, K=inputs, **widths, ROWS=height(rows), CHUNK=STEP, PRECISION="ieee"
    )
    return out


def _calls(options: tuple, hints: Callable[..., str]) -> Callable[[Case, torch.device], Iterator[Call]]:
    """Calls of cases whose shape is (rows, K, N1, …)."""

    def calls(case: Case, device: torch.device) -> Iterator[Call]:
        rows, *widths = case.shape
        tensors = draw_mlp(Case((rows, widths[0]), case.dtype), widths, device)
        if rows == WITH_NAN:
            tensors[0][7] = math.nan
        if rows == WITH_INF:
            for bias in tensors[2]:
                bias[1] = -math.inf
        if rows == WITH_MORE:
            tensors[2][-1][2] = math.inf
        if case.dtype == torch.float16:  # whose sums go beyond 65,504 and come back
            half = widths[1] // 2
            tensors[1][1][:, :half] += 1000
            tensors[1][1][:, half:] -= 1000
        name = f"{rows} rows of {'-'.join(map(str, widths))}" + ", float16" * (case.dtype == torch.float16)
        yield Call(name, tensors, options, hint=HALVES if case.dtype == torch.float16 else hints(rows, *widths))

    return calls


def _layer_hint(rows: int, inputs: int = 0, outputs: int = 0) -> str:
    if rows == MANY:
        return OF_MANY
    if rows in (WITH_NAN, WITH_INF, WITH_MORE):
        return {WITH_NAN: NAN, WITH_INF: MINUS_INF, WITH_MORE: INF}[rows]
    if inputs <= STEP and rows == ROWS:
        return "multiply the two tiles, add the bias, take relu; store what is inside, row by row, N numbers a row."
    if inputs > STEP:
        return f"K = {inputs} takes {-(-inputs // STEP)} steps: of which sum are bias and relu, and how many times?"
    return "tiles stand out beyond B and N: which of their elements does `out` have, and where? N numbers are a row."


def _chained_hint(rows: int, inputs: int = 0, between: int = 0, outputs: int = 0) -> str:
    if rows == MANY:
        return OF_MANY
    if rows in (WITH_NAN, WITH_INF, WITH_MORE):
        hidden = "b1[1] and b2[1] are -Inf. Relu gives 0, and -Inf · 0 is NaN: choose, do not multiply."
        last = "b2[2] is Inf, and its sigmoid is 1. From z = 89 on e^z is infinite, and Inf / Inf is NaN: use e^-z."
        return {WITH_NAN: NAN, WITH_INF: hidden, WITH_MORE: last}[rows]
    if between % STEP:
        return f"N1 = {between}: the last chunk stands out by {-between % STEP} columns, which must add 0 to the sums."
    if between <= STEP and rows == ROWS:
        return "relu(x w1 + b1) of the chunk, times the chunk of w2; then b2, the sigmoid and the store."
    if between > STEP:
        return f"layer 1 has {-(-between // STEP)} chunks, each complete by itself; when is layer 2 complete?"
    return "the last tile has rows beyond B, which `out` does not have."


def _mlp_hint(rows: int, inputs: int = 0, between: int = 0, *others: int) -> str:
    if rows in (MANY, WITH_NAN):
        return _chained_hint(rows)
    if rows == WITH_INF:
        return "number 1 of each bias is -Inf. Its relu is 0, and -Inf · 0 is NaN: choose, do not multiply."
    if rows == WITH_MORE:
        return "b4[2] is Inf, and so is its relu."
    if rows == ROWS and between <= STEP:
        return "relu(x w1 + b1) of a chunk, times the chunk of w2; behind the loop b2, relu, and layers 3 and 4 whole."
    if between > STEP:
        return f"layer 1 has {-(-between // STEP)} chunks, each complete by itself; when is layer 2 complete?"
    return "the last tile has rows beyond M, which `out` does not have."


def _spec(options: tuple, hints: Callable[..., str], *shapes: tuple, halves: Sequence[tuple] = ()) -> Spec:
    cases = [*map(Case, shapes), *(Case(shape, torch.float16) for shape in halves)]
    return Spec(fused_mlp, _calls(options, hints), scale=Layers(), cases=lambda names: cases)


_NO_NUMBERS = (WITH_NAN, 16, 32), (WITH_INF, 16, 32), (WITH_MORE, 16, 32)
_LAYER = ((16, 16, 32), (5, 16, 7), (16, 48, 32), (33, 40, 45), (1, 1, 1), *_NO_NUMBERS, (MANY, 2, 4))
_CHAINED = (
    (16, 16, 16, 16), (5, 16, 16, 32), (16, 16, 48, 32), (33, 32, 40, 16),
    *((rows, inputs, 16, 16) for rows, inputs, _ in _NO_NUMBERS), (MANY, 16, 16, 16),
)  # fmt: skip
_MLP = (
    (16, 16, 16, 16, 16, 16), (5, 16, 16, 32, 16, 16), (16, 16, 64, 32, 16, 16), (33, 32, 32, 64, 32, 16),
    *((rows, 16, 16, 16, 16, 16) for rows in (*(rows for rows, *_ in _NO_NUMBERS), MANY)),
)  # fmt: skip
_ONE = ("identity", "relu", "ieee")
_TWO = ("relu", "sigmoid", "ieee")
_FOUR = ("relu", "relu", "ieee")
PUZZLES = {
    "layer": InTriton(_spec(_ONE, _layer_hint, *_LAYER), launch_layer, __name__),
    "chained": InTriton(_spec(_TWO, _chained_hint, *_CHAINED), launch_chained, __name__),
    "mlp": InTriton(_spec(_FOUR, _mlp_hint, *_MLP, halves=[(17, 16, 512, 32, 16, 16)]), launch_mlp, __name__),
}
