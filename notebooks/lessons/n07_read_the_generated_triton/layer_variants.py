"""The lesson's function, and what of its sizes the compiler knows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

COLUMNS = 512


def layer(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """x, y [rows, columns], bias [columns] → sigmoid(x + 0.5 y + bias)"""
    return torch.sigmoid(x + 0.5 * y + bias)


@dataclass(frozen=True)
class Variant:
    """fewer: rows less than asked for; columns; open_: the dimensions of x and y that are dynamic."""

    fewer: int = 0
    columns: int = COLUMNS
    open_: tuple[int, ...] = ()

    def shape(self, rows: int) -> tuple[int, int]:
        return rows - self.fewer, self.columns

    def mark(self, x: Tensor, y: Tensor, bias: Tensor) -> None:
        """Tell Dynamo which sizes are dynamic."""
        for dimension in self.open_:
            for tensor in (x, y, *([bias] if dimension else [])):
                torch._dynamo.mark_dynamic(tensor, dimension if tensor.dim() == 2 else 0)


# As the record calls them: "open" is what PyTorch calls dynamic.
VARIANTS = {
    "literal": Variant(),
    "rows open": Variant(open_=(0,)),
    "columns open": Variant(open_=(1,)),
    "both open": Variant(open_=(0, 1)),
    "511 columns": Variant(columns=511),
    "an odd size": Variant(fewer=1, columns=511),
}
