"""What a kernel reads and writes, as it is recorded and drawn."""

from __future__ import annotations

import matplotlib
import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.check import accesses_of, draw_accesses

matplotlib.use("agg")
x = 3.0  # as a notebook may have it: the kernels' x is another


@triton.jit
def shifted_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i + 1), i < n)


@triton.jit
def by_descriptors(read, x, out, ROWS: tl.constexpr):
    """From row 1 on they are read, and written from the row before the first on."""
    row, shift = tl.program_id(0) * 2, tl.program_id(0) * 0
    values = tl.make_tensor_descriptor(x, [3, 4], [4, 1], [2, 4]).load([row + 1, shift])
    values += read.load([row + 1, shift])
    tl.store(tl.make_block_ptr(out, (ROWS, 4), (4, 1), (row - 1, 0), (2, 4), (1, 0)), values)


@triton.jit
def count_kernel(counts, ids, far):
    i = tl.program_id(1) * 2 + tl.arange(0, 2)
    tl.atomic_add(counts + tl.load(ids + i), 1)
    tl.store(counts + far, 1)


def test_each_program_reads_and_writes():
    accesses = accesses_of(shifted_kernel, (2,), torch.randn(6), torch.empty(6), 6, BLOCK=4)
    assert accesses == [
        (0, "load", "x", [1, 2, 3, 4]), (0, "store", "out", [0, 1, 2, 3]),
        (1, "load", "x", [5, 6, 7, 8]), (1, "store", "out", [4, 5]),
    ]


def test_what_lies_far_beside_is_left_out():
    counts, ids = torch.zeros(4, dtype=torch.int32), torch.tensor([3, 0, 2, 2])
    accesses = accesses_of(count_kernel, (1, 2), counts, ids, 1 << 40)
    atomics = [(access.program, access.offsets) for access in accesses if access.what == "atomic"]
    assert atomics == [(0, [3, 0]), (1, [2, 2])]
    assert [access.offsets for access in accesses if access.what == "store"] == [[], []]
    assert counts.tolist() == [0, 0, 0, 0], "the caller's tensors are copied"


def test_a_kernel_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"shifted_kernel: .*BLOCK"):
        accesses_of(shifted_kernel, (2,), torch.randn(6), torch.empty(6), 6)


def test_descriptors_and_block_pointers_are_drawn():
    x, out = torch.randn(3, 4), torch.zeros(3, 4)
    read = TensorDescriptor.from_tensor(x, [2, 4])
    figure = draw_accesses(by_descriptors, (2,), read, x, out, ROWS=3)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["x, read", "read, read", "out, written"]
    panels = [{text.get_text() for text in ax.texts} for ax in figure.axes]
    assert ["4 beside the tensor" in texts for texts in panels] == [False, False, True]
    assert len(figure.axes[2].patches) == 12 + 4
    used = [sum(patch.get_facecolor()[:3] != (1, 1, 1) for patch in ax.patches) for ax in figure.axes]
    assert used == [8, 8, 16]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["program 0", "program 1"]
