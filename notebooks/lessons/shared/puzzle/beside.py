"""What a Triton kernel reads or writes beside its tensors, seen in the interpreter."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from kernels.check import OutOfBounds, accesses_of


def look_beside(kernel, grid: Sequence[int], *arguments, **constants) -> None:
    """Raise OutOfBounds if a program of kernel[grid](*arguments, **constants) reads or writes beside its tensors, which
    are small and contiguous. On a GPU a load beside one, of what is never stored, leaves no trace."""
    names = inspect.signature(getattr(kernel, "fn", kernel)).parameters
    tensors = {name: getattr(value, "base", value) for name, value in zip(names, arguments, strict=False)}
    spans = {name: value.numel() for name, value in tensors.items() if isinstance(value, Tensor)}
    with ThreadPoolExecutor(1) as pool:  # the modes of a check hold for its own thread
        accesses = pool.submit(accesses_of, kernel, grid, *arguments, **constants).result()
    for access in accesses:
        span = spans[access.tensor]
        beside = [offset for offset in access.offsets if not 0 <= offset < span]
        if beside:
            what = {"load": "a load from", "store": "a store to"}.get(access.what, "an atomic to")
            lanes = f"{len(beside)} lane{'s' * (len(beside) > 1)}"
            first = beside[0]
            far = f"{-first} before its first element" if first < 0 else f"{first - span + 1} beyond its last"
            raise OutOfBounds(
                f"{what} {access.tensor} is out of bounds in {lanes}: the first is at offset {first}, {far} (it "
                f"spans {span})"
            )
