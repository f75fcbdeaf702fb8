"""Cases at the edges of blocks: of the blocks that a launcher chooses, whatever they are."""

from __future__ import annotations

import functools

import pytest

import kernels
from kernels import dispatch
from kernels.check import edges, spec
from kernels.check.contract.base import ON_HOST, running, why_not
from kernels.ops.add_relu import triton_launch

OPS = [op for op in spec.names() if op in dispatch.names()]


@pytest.fixture
def anew():
    """The launchers are asked again, before and after."""
    edges._edges.cache_clear()
    yield
    edges._edges.cache_clear()


@pytest.mark.parametrize("block", [64, 512])
def test_sizes_follow_the_launchers_block(monkeypatch, anew, block):
    monkeypatch.setattr(triton_launch, "pointwise_block", lambda elements, itemsize: block)
    shapes = {case.shape for case in edges.edges("add_relu")}
    assert {(1, block - 1), (1, block), (1, block + 1)} <= shapes
    assert {(block - 1, 3), (block, 3), (block + 1, 3)} <= shapes
    assert max(columns for _, columns in shapes) == block + 1
    assert [*edges.edges("add_relu_")] == [*edges.edges("add_relu")]


def test_the_backward_has_blocks_of_its_own(monkeypatch, anew):
    monkeypatch.setattr(triton_launch, "tile_shape", lambda columns, itemsize: (8, 32))
    shapes = {case.shape for case in edges.edges("add_relu", backward=True)}
    assert {(size + step, 3) for size in (8, 32) for step in (-1, 0, 1)} <= shapes
    assert {(1, size + step) for size in (8, 32) for step in (-1, 0, 1)} <= shapes
    assert (1, 1023) not in shapes


@pytest.mark.parametrize("op", OPS)
def test_an_op_that_python_launches_has_such_cases(op):
    """Without being named anywhere; and each case gives the op a call."""
    declaration = dispatch.find(op)
    backends = [*declaration.launchers]
    cases = edges.edges(op)
    assert bool(cases) == bool(backends)
    assert set(cases) <= set(edges.cases_of(op))
    for case in cases[:: -(-len(cases) // 4) or 1]:
        assert spec.calls_of(op, case)
    backward = bool(declaration.gradients) and "triton" in backends
    assert bool(edges.edges(op, backward=True)) == backward


@pytest.mark.skipif(bool(why_not(ON_HOST)), reason=why_not(ON_HOST) or "the host build runs here")
def test_the_host_build_is_asked_for_the_blocks_of_cuda_kernels():
    """The 256 threads of a block of add_relu's compute four elements each."""
    with running(ON_HOST):
        function = functools.partial(kernels.add_relu, backend="cuda")
        forward = {case.shape for case in edges.edges_on_host("add_relu", function)}
        backward = {case.shape for case in edges.edges_on_host("add_relu", function, backward=True)}
    assert {(1, 1023), (1, 1024), (1, 1025), (341, 3), (342, 3)} <= forward
    assert {(1, 127), (1, 128), (1, 129)} <= backward
    assert (1, 1023) not in backward
