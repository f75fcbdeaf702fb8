"""The lesson's function, what of its sizes the compiler knows, and what is generated and compiled for each."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.inductor import Compiled, compile_candidates, split, triton_source

COLUMNS = 512


def layer(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """x, y [rows, columns], bias [columns] → sigmoid(x + 0.5 y + bias)"""
    return torch.sigmoid(x + 0.5 * y + bias)


@dataclass(frozen=True)
class Variant:
    """fewer: rows less than asked for; columns; open_: the dimensions of x and y that are not written into the code."""

    fewer: int = 0
    columns: int = COLUMNS
    open_: tuple[int, ...] = ()

    def shape(self, rows: int) -> tuple[int, int]:
        return rows - self.fewer, self.columns

    def mark(self, x: Tensor, y: Tensor, bias: Tensor) -> None:
        """Tell Dynamo which sizes it is to leave open."""
        for dimension in self.open_:
            for tensor in (x, y, *([bias] if dimension else [])):
                torch._dynamo.mark_dynamic(tensor, dimension if tensor.dim() == 2 else 0)


VARIANTS = {
    "literal": Variant(),
    "rows open": Variant(open_=(0,)),
    "columns open": Variant(open_=(1,)),
    "both open": Variant(open_=(0, 1)),
    "511 columns": Variant(columns=511),
    "an odd size": Variant(fewer=1, columns=511),
}


@functools.cache
def module(variant: str = "literal", rows: int = 65536) -> str:
    """What torch.compile writes for it: the whole module. Without a GPU no number is computed."""
    chosen = VARIANTS[variant]
    shape = chosen.shape(rows)
    x, y, bias = torch.empty(shape), torch.empty(shape), torch.empty(shape[1])
    chosen.mark(x, y, bias)
    (found,) = triton_source(layer, x, y, bias)
    return found


def kernel(variant: str = "literal", rows: int = 65536) -> str:
    """The source of its one kernel."""
    (found,) = split(module(variant, rows))
    return found.source


@functools.cache
def candidates(variant: str = "literal", rows: int = 65536, aligned: bool = True) -> tuple[Compiled, ...]:
    """That kernel compiled for an H200, which need not be here, in each of Inductor's candidates."""
    return tuple(compile_candidates(kernel(variant, rows), aligned=aligned))
