"""kernels/check/faster.py: what it keeps is what Triton computes."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

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


def test_the_language_of_a_kernel(interpreter, monkeypatch):
    tl = interpreter.tl

    kernel = SimpleNamespace(__globals__={"tl": tl})

    def patched():
        """triton.language's functions and tensors' while a kernel runs, and what stands there afterwards."""
        scope = interpreter._patch_lang(kernel)
        places = {(owner, name) for owner, name, _ in scope._changes}
        within = {place: vars(place[0])[place[1]] for place in places}
        scope.restore()
        return within, {(owner, name): vars(owner).get(name) for owner, name in places}

    patched()
    first, second = patched(), patched()
    assert first == second
    assert all(first[0][place] is not first[1][place] for place in first[0])
    assert (tl, "load") in first[0]
    own = tl.core.builtin(lambda pointer, _semantic=None: pointer)
    monkeypatch.setattr(tl, "load", own)
    within, after = patched()
    assert within[tl, "load"](7) == 7
    assert after[tl, "load"] is own
