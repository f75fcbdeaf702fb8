"""What a declaration adds to a call on this machine: the same formula, with more and more around it."""

from __future__ import annotations

import torch

from kernels import runtime
from lessons.n11_make_it_an_op import declarations
from lessons.shared.timing import print_times


def calls(rows: int = 64, columns: int = 64) -> None:
    """µs of relu(x + bias) by PyTorch: alone, and as the body of an op by torch.library, declared in both ways."""
    device = runtime.device()
    x, bias = torch.randn(rows, columns, device=device), torch.randn(columns, device=device)
    decorated, defined = declarations.by_decorator("torch"), declarations.by_define("torch")
    print_times(
        {
            "relu(x + bias)": lambda: declarations.with_torch(x, bias),
            "as an op, define and impl": lambda: defined(x, bias),
            "as an op, custom_op": lambda: decorated(x, bias),
        }
    )
