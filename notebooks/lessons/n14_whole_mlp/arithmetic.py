"""What an output of the MLP hangs on, at which batch two kernels a layer become faster, the bytes that eager moves at
each step of the interaction."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.measure.records import recorded
from kernels.ops.dot_interaction import eager
from kernels.ops.fused_mlp.eager import fused_mlp

BOTTOM, TOP = (13, 512, 256, 64, 16), (367, 512, 256, 1)  # DLRM's two MLPs
STEPS = {"cat": "cat", "bmm": "T Tᵀ", "index": "the pairs"}


class _Moved(TorchDispatchMode):
    """The bytes of each step: what an operator writes, and what it reads; of an indexed tensor the elements taken."""

    def __init__(self):
        super().__init__()
        self.steps: dict[str, int] = {}

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        out = operator(*arguments, **(named or {}))
        name = operator._schema.name.removeprefix("aten::")
        if name in STEPS:
            tensors = arguments[0] if name == "cat" else arguments[:1]  # both operands of bmm are one tensor
            read = out.nbytes if name == "index" else sum(tensor.nbytes for tensor in tensors)
            label = STEPS[name] if name != "cat" else f"cat {1 + sum(key.startswith('cat') for key in self.steps)}"
            self.steps[label] = read + out.nbytes
        return out


def moved(rows: int, features: int, columns: int) -> dict[str, int]:
    """Bytes read and written by each of eager's steps in float32, the indices of the pairs left out."""
    dense = torch.empty(rows, columns, device="meta")
    sparse = torch.empty(rows, features, columns, device="meta")
    with _Moved() as counted:
        eager.interact(dense, sparse, eager.pairs(features, torch.device("meta")))
    return counted.steps


def dependency(row: int, column: int, rows: int = 8, widths: tuple[int, int, int] = (6, 12, 5)) -> tuple:
    """The numbers of x and of layer 1 of which out[row, column] changes: two boolean tensors, by the derivative."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    (w1, b1), (w2, b2) = ((draw(b, a), draw(b)) for a, b in itertools.pairwise(widths))
    x = draw(rows, widths[0]).requires_grad_()
    between = fused_mlp(x, [w1], [b1], final_activation="gelu")
    out = fused_mlp(between, [w2], [b2], final_activation="sigmoid")
    return tuple(grad != 0 for grad in torch.autograd.grad(out[row, column], (x, between)))


def curve(widths: tuple[int, ...], peer: str = "torch.compile") -> dict[int, tuple[float, float]]:
    """{rows: (µs of the one kernel, µs of the peer)} as recorded, float32 in tf32; the faster of our kernels."""
    table = recorded("fused_mlp")
    parts = table["part"].isin(["curve", "bandwidth"]) | table["part"].str.fullmatch(r"top \d+")
    table = table[parts & (table["widths"] == "-".join(map(str, widths))) & (table["dtype"] == "float32")]
    us = table.pivot(index="rows", columns="implementation", values="us_p50").sort_index()
    ours = us[[name for name in ("triton", "cuda") if name in us]].min(axis=1)
    return {int(rows): (float(ours[rows]), float(us[peer][rows])) for rows in us.index[us[peer].notna()]}


def crossing(points: dict[int, tuple[float, float]]) -> float | None:
    """Rows at which the first time becomes longer than the second, between two points on a logarithmic scale; None if
    it does not; the first point's rows if it is from there on."""
    rows = sorted(points)
    gaps = [np.log(points[count][0] / points[count][1]) for count in rows]
    if gaps[0] > 0:
        return rows[0]
    for (low, before), (high, after) in itertools.pairwise(zip(rows, gaps, strict=True)):
        if after > 0:
            return float(np.exp(np.interp(0, [before, after], np.log([low, high]))))
    return None
