"""Which backend is faster for which look-up: what backend="auto" goes by."""

from __future__ import annotations

import functools

from torch import Tensor
from torch.compiler import is_compiling

from ... import runtime

cuda_runs = functools.cache(lambda: not runtime.why_not("cuda", "cuda"))
triton_runs = functools.cache(lambda: not runtime.why_not("triton", "cuda"))


def auto(tables: Tensor, row_offsets: Tensor, indices: Tensor, offsets: Tensor | None, *_) -> str:
    """What backend="auto" is for CUDA tensors: Triton, which by the H200's record takes as long as CUDA for one id a
    bag, and two thirds of it for bags of several. Eager where neither runs, and of so many ids that their gradient
    cannot be sorted."""
    if indices.numel() >= 2**31:
        return "eager"
    return "triton" if is_compiling() or triton_runs() else "cuda" if cuda_runs() else "eager"
