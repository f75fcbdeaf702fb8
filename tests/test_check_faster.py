"""kernels/check/faster.py: what it keeps is what Triton computes."""

from __future__ import annotations

import inspect
from types import FunctionType

import numpy as np
import pytest
import torch

from kernels import runtime
from kernels.check import faster

pytestmark = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")


@pytest.fixture
def interpreter():
    from triton.runtime import interpreter

    faster.install()
    return interpreter


def seen(value) -> dict:
    return {name: repr(each) for name, each in vars(value).items()}


def test_tensors_and_their_types(interpreter):
    tl, core = interpreter.tl, interpreter.tl.core
    own_block, own_tensor = inspect.unwrap(core.block_type.__init__), inspect.unwrap(core.tensor.__init__)
    assert own_tensor is not core.tensor.__init__
    assert own_block is not core.block_type.__init__
    pointers = tl.pointer_type(tl.float32), tl.pointer_type(tl.int64, const=True)
    for element in (tl.float32, tl.bfloat16, tl.int1, *pointers):
        for shape in ([], [8], [2, 4], [core.constexpr(16), 1], core.tuple([4, 2])):
            for _ in range(2):  # computed, and kept
                kind, want = element, element
                if len(shape):
                    kind, want = core.block_type(element, shape), object.__new__(core.block_type)
                    own_block(want, element, shape)
                    assert kind.element_ty is element
                    assert seen(kind) == seen(want)
                made, wanted = core.tensor("handle", kind), object.__new__(core.tensor)
                own_tensor(wanted, "handle", want)
                assert made.type is kind
                assert seen(made) == seen(wanted)
                assert bool(made.shape == wanted.shape)
                assert not bool(made.shape == [*wanted.shape, 1])
            assert interpreter._get_np_dtype(kind) == inspect.unwrap(interpreter._get_np_dtype)(kind)
    for wrong in ([3], [], [1 << 21]):
        for _ in range(2):
            with pytest.raises((ValueError, TypeError)):
                core.block_type(tl.float32, wrong)
    assert isinstance(interpreter._get_np_dtype(tl.float32), np.dtype)


def test_an_overflow_is_found_where_triton_debugs(interpreter, monkeypatch):
    tl = interpreter.tl

    @interpreter.triton.jit
    def kernel(a, b):
        tl.store(a, tl.load(a) + tl.load(b))

    def add_to_the_largest(number: int):
        a, b = (torch.tensor([value], dtype=torch.int32) for value in (torch.iinfo(torch.int32).max, number))
        kernel[(1,)](a, b)
        return a.item()

    assert add_to_the_largest(1) == torch.iinfo(torch.int32).min
    monkeypatch.setattr(interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(debug=True))
    assert add_to_the_largest(-1) == torch.iinfo(torch.int32).max - 1
    with pytest.raises(interpreter.InterpreterError, match="int32 overflow detected"):
        add_to_the_largest(1)


def test_the_language_is_patched_once_a_launch(interpreter):
    """What was added meanwhile is there, as in Triton, and launches that overlap leave nothing behind."""
    tl = interpreter.tl
    kernel = FunctionType((lambda: None).__code__, {"tl": tl})
    load = tl.load
    scope, called, other = (interpreter._patch_lang(kernel) for _ in range(3))
    assert tl.load is not load
    assert not called._changes
    scope.restore()
    other.restore()
    assert tl.load is load
    tl.twice = tl.core.builtin(lambda x, _semantic=None: 2 * x)
    try:
        scope = interpreter._patch_lang(kernel)
        assert tl.load is not load
        assert tl.twice(4) == 8
        scope.restore()
    finally:
        del tl.twice
    assert tl.load is load


def test_a_shape_that_triton_refuses(interpreter):
    core = interpreter.tl.core
    core.block_type(core.float32, [4, 4])
    with pytest.raises(AssertionError):
        core.block_type(core.float32, (4, 4))
