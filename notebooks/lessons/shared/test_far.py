"""A launch's last programs: their numbers, in either order, and that the interpreter runs no others."""

from __future__ import annotations

import pytest
import torch

from kernels import runtime  # before anything that imports Triton
from kernels.check.interpreter import watched
from lessons.shared.far import late_programs

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

FIRST, COUNT = 70_000, 3


@triton.jit
def number_kernel(out_ptr):
    tl.store(out_ptr + tl.program_id(0), tl.program_id(0) + tl.num_programs(0))


@pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="of the interpreter")
@pytest.mark.parametrize("first", [0, FIRST])
@pytest.mark.parametrize("backwards", [False, True])
def test_the_last_programs_have_their_numbers(first, backwards):
    out = torch.zeros(first + COUNT, dtype=torch.int32)
    with watched(backwards=backwards), late_programs(first, COUNT) as grid:
        number_kernel[grid](out)
    assert out[first:].tolist() == [2 * first + COUNT + i for i in range(COUNT)]
    assert not out[:first].any()
