"""The parts of a whole MLP in one kernel as puzzles: what each must compute, and what launches a reader's kernel.

    sums         x [B, K], weight [N, K] → x weightᵀ: the layer's loop alone
    epilogue     the layer, for a kernel that is given the sums: bias, relu and the store
    layer        x [B, K], weight [N, K], bias [N] → relu(x weightᵀ + bias): a tile of it a program, K in steps
    chained      two layers, K-N1-N2, relu and sigmoid: a tile of rows a program, N1 in chunks
    two_layers   the same as a function, of widths that sketch.py can cut into blocks

All but `sums` are the op's own reference, and what their results may be off by is the op's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from kernels.ops.fused_mlp.eager import fused_mlp
from kernels.ops.fused_mlp.spec import Layers, draw_mlp
from lessons.shared.puzzle import InTriton

ROWS, COLUMNS, STEP = 16, 32, 16  # of a program's tile, and of its loop
NAN = "row 7 of x is NaN, and its sums too; relu(NaN) is NaN. tl.maximum gives 0, a comparison is false."
WITH_NAN = 20  # rows, of which one is NaN
WITH_INF = 21  # rows, where a number of the first bias is -Inf
MANY = (1030, 64, 4)  # whose places in x 16 bits do not hold
WITH_MORE = 22  # rows, where a number of the last bias is Inf
MINUS_INF = "the bias of column 1 is -Inf. Its relu is 0, and -Inf · 0 is NaN: choose, do not multiply."
INF = "the bias of column 2 is Inf, and so is its relu."


def launch_layer(kernel, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *options) -> Tensor:
    """kernel[row tiles, column tiles](x, weight, bias, out, B, K, N, ROWS, COLUMNS, STEP)."""
    (rows, inputs), outputs = x.shape, len(biases[0])
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    grid = -(-rows // ROWS), -(-outputs // COLUMNS)
    kernel[grid](x, *weights, *biases, out, rows, inputs, outputs, ROWS=ROWS, COLUMNS=COLUMNS, STEP=STEP)
    return out


def launch_chained(kernel, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *options) -> Tensor:
    """kernel[row tiles](x, w1, b1, w2, b2, out, B, N1, K, N2, ROWS, CHUNK); K and N2 are powers of two from 16 on."""
    (rows, inputs), (between, outputs) = x.shape, map(len, biases)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    (w1, w2), (b1, b2) = weights, biases
    kernel[(-(-rows // ROWS),)](
        x, w1, b1, w2, b2, out, rows, between, K=inputs, N2=outputs, ROWS=ROWS, CHUNK=STEP
    )
    return out


def launch_sums(kernel, x: Tensor, weight: Tensor) -> Tensor:
    """kernel[row tiles, column tiles](x, weight, out, M, K, N, ROWS, COLUMNS, STEP)."""
    (rows, inputs), outputs = x.shape, len(weight)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    grid = -(-rows // ROWS), -(-outputs // COLUMNS)
    kernel[grid](x, weight, out, rows, inputs, outputs, ROWS=ROWS, COLUMNS=COLUMNS, STEP=STEP)
    return out


def sums(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T


def _sums_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, inputs, outputs = (*case.shape, 1)[:3]
    x, (weight,), _ = draw_mlp(Case((rows, inputs)), (inputs, outputs), device)
    if rows == WITH_NAN:
        x[7] = math.nan
    yield Call(f"{rows} rows of {inputs}-{outputs}", (x, weight), hint=_sums_hint(rows, inputs, outputs))


def _sums_hint(rows: int, inputs: int, outputs: int) -> str:
    if rows == MANY[0]:
        return f"x has {rows * inputs:,} elements: their places need more than 16 bits."
    if rows == WITH_NAN:
        return "row 7 of x is NaN: what the last step reads of it for row 6 is no 0, and NaN · 0 is NaN."
    if inputs % STEP:
        beyond = f"the last step reads {-inputs % STEP} places beyond a row's end, where the next row begins"
        return f"K = {inputs}, STEP = {STEP}: {beyond}. They must count as 0: does x's mask leave them out?"
    if rows % ROWS or outputs % COLUMNS:
        return f"x has {rows} rows and the weight {outputs}: a mask on each axis that a tile has."
    return f"x has {inputs} numbers a row: where do the {STEP} of this step lie?"


def _calls(options: tuple, hints: Callable[..., str]) -> Callable[[Case, torch.device], Iterator[Call]]:
    """Calls of cases whose shape is (rows, K, N1, …)."""

    def calls(case: Case, device: torch.device) -> Iterator[Call]:
        rows, *widths = case.shape
        tensors = draw_mlp(Case((rows, widths[0])), widths, device)
        if rows == WITH_NAN:
            tensors[0][7] = math.nan
        if rows == WITH_INF:
            tensors[2][0][1] = -math.inf
        if rows == WITH_MORE:
            tensors[2][-1][2] = math.inf
        yield Call(f"{rows} rows of {'-'.join(map(str, widths))}", tensors, options, hint=hints(rows, *widths))

    return calls


def _layer_hint(rows: int, inputs: int = 0, outputs: int = 0) -> str:
    if rows == MANY[0]:
        return f"x has {rows * inputs:,} elements: their places need more than 16 bits."
    if rows in (WITH_NAN, WITH_INF, WITH_MORE):
        return {WITH_NAN: NAN, WITH_INF: MINUS_INF, WITH_MORE: INF}[rows]
    if inputs <= STEP and rows == ROWS:
        return "multiply the two tiles, add the bias, take relu; store what is inside, row by row, N numbers a row."
    if inputs > STEP:
        return f"K = {inputs} takes {-(-inputs // STEP)} steps: of which sum are bias and relu, and how many times?"
    return "tiles stand out beyond B and N: which of their elements does `out` have, and where? N numbers are a row."


def _epilogue_hint(rows: int, inputs: int = 0, outputs: int = 0) -> str:
    if rows in (WITH_NAN, WITH_INF, WITH_MORE):
        return {WITH_NAN: NAN, WITH_INF: MINUS_INF, WITH_MORE: INF}[rows]
    if rows == ROWS and outputs == COLUMNS:
        return "the bias belongs to the columns: it is added to each row, and relu comes last."
    return f"out has {rows} rows and {outputs} columns, the bias {outputs} numbers: which places of the tile exist?"


def _chained_hint(rows: int, inputs: int = 0, between: int = 0, outputs: int = 0) -> str:
    if rows in (WITH_NAN, WITH_INF, WITH_MORE):
        hidden = "b1[1] is -Inf. Its relu is 0, and -Inf · 0 is NaN: choose, do not multiply."
        last = "b2[2] is Inf, and its sigmoid is 1. From z = 89 on e^z is infinite, and Inf / Inf is NaN: use e^-z."
        return {WITH_NAN: NAN, WITH_INF: hidden, WITH_MORE: last}[rows]
    if between <= STEP and rows == ROWS:
        return "relu(x w1 + b1) of the chunk, times the chunk of w2; then b2, the sigmoid and the store."
    if between > STEP:
        return f"layer 1 has {-(-between // STEP)} chunks, each complete by itself; when is layer 2 complete?"
    return "the last tile has rows beyond B, which `out` does not have."


def _sketch_hint(*sizes: int) -> str:
    return "is a sum complete where a bias is added to it and relu or the sigmoid is taken of it?"


def _spec(options: tuple, hints: Callable[..., str], *shapes: tuple) -> Spec:
    return Spec(fused_mlp, _calls(options, hints), scale=Layers(), cases=lambda names: [*map(Case, shapes)])


# K and N are multiples of 4 here: the rows of what a descriptor describes begin at multiples of 16 bytes.
_SUMS = (
    (16, 16, 32), (16, 48, 32), (5, 16, 8), (33, 48, 36), (16, 40, 32), (33, 44, 36), (1, 4, 4), (WITH_NAN, 40, 32),
    MANY,
)
_NO_NUMBERS = (WITH_NAN, 16, 32), (WITH_INF, 16, 32), (WITH_MORE, 16, 32)
_EPILOGUE = ((16, 16, 32), (16, 48, 7), (5, 16, 32), (33, 40, 45), (1, 1, 1), *_NO_NUMBERS)
_LAYER = ((16, 16, 32), (5, 16, 7), (16, 48, 32), (33, 40, 45), (1, 1, 1), *_NO_NUMBERS, MANY)
_CHAINED = (
    (16, 16, 16, 16), (5, 16, 16, 32), (16, 16, 48, 32), (33, 32, 40, 16),
    *((rows, inputs, 16, 16) for rows, inputs, _ in _NO_NUMBERS),
)  # fmt: skip
_ONE = ("identity", "relu", "ieee")
_TWO = ("relu", "sigmoid", "ieee")
SKETCH = _spec(_TWO, _sketch_hint, (32, 32, 64, 32))
PUZZLES = {
    "sums": InTriton(
        Spec(sums, _sums_calls, scale=Sums(k=8.0), cases=lambda names: [*map(Case, _SUMS)]), launch_sums, __name__
    ),
    "epilogue": InTriton(_spec(_ONE, _epilogue_hint, *_EPILOGUE), launch_layer, __name__),
    "layer": InTriton(_spec(_ONE, _layer_hint, *_LAYER), launch_layer, __name__),
    "chained": InTriton(_spec(_TWO, _chained_hint, *_CHAINED), launch_chained, __name__),
}
