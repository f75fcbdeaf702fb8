"""The interaction step by step, for the reader: the bytes that eager moves at each, and those that are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.ops.dot_interaction import eager

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def draw_moved(rows: int, features: int, columns: int) -> Figure:
    """A bar of eager's steps, one behind the other, and one of the bytes that are needed."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(10, 1.7), layout="constrained")
    start = 0.0
    for i, (step, size) in enumerate(moved(rows, features, columns).items()):
        ax.barh("eager", size / 1e6, left=start, color=f"C{i}", alpha=0.5)
        ax.text(start + size / 2e6, 0, step, ha="center", va="center", size=9)
        start += size / 1e6
    ax.barh("needed", eager.forward_bytes(rows, features, columns, torch.float32) / 1e6, color="C0")
    ax.set(xlabel=f"MB read and written, {rows:,} rows of {features + 1} vectors of {columns}")
    ax.invert_yaxis()
    return figure
