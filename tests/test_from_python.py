"""kernels/dispatch/from_python.h: a call of an overload from Python gives what torch.ops gives, whatever it gets."""

from __future__ import annotations

import gc
import shutil
import sys
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.dispatch import core

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
SCHEMA = "(Tensor x, Tensor? maybe, Tensor[] many, str text, SymInt size, int number, float real, bool flag) -> Tensor"
library = torch.library.Library("toy_from_python", "FRAGMENT")
library.define(f"all{SCHEMA}")
library.define("pair(Tensor x) -> (Tensor, Tensor)")
library.define("nothing(Tensor x) -> ()")
library.define("failing(Tensor x) -> Tensor")
library.define("integers(Tensor x, int[] sizes) -> Tensor")
seen = []


@torch.library.impl(library, "all", "CompositeExplicitAutograd")
def _all(*arguments):
    seen.append(arguments)
    if arguments[3] == "raise":
        raise IndexError("an error of Python's")
    return arguments[0] + 1


@torch.library.impl(library, "failing", "CompositeExplicitAutograd")
def _failing(x):
    raise IndexError("an error of Python's")


torch.library.impl(library, "pair", "CompositeExplicitAutograd")(lambda x: (x + 1, x + 2))
torch.library.impl(library, "nothing", "CompositeExplicitAutograd")(seen.append)
torch.library.impl(library, "integers", "CompositeExplicitAutograd")(lambda x, sizes: x.new_zeros(sizes))


class Watched:
    """An overload of torch.ops that notes whether it is asked."""

    def __init__(self, name: str) -> None:
        self.overload = getattr(torch.ops.toy_from_python, name).default
        self._schema, self._overloadname, self.asked = self.overload._schema, "", 0

    def __call__(self, *arguments):
        self.asked += 1
        return self.overload(*arguments)


@pytest.fixture
def watched_op():
    """(callable, the overload behind it) by the op's name."""
    core.load_core()
    seen.clear()

    def of(name):
        watched = Watched(name)
        return core.from_python(watched), watched

    return of


def arguments(**changed):
    defaults = {
        "x": torch.randn(3), "maybe": torch.randn(2), "many": [torch.randn(2), torch.nn.Parameter(torch.randn(4))],
        "text": "ünï", "size": 7, "number": -(2**62), "real": 0.1, "flag": True,
    }  # fmt: skip
    return list((defaults | changed).values())


@pytest.mark.parametrize("changed", [
    {}, {"maybe": None}, {"many": []}, {"flag": False, "text": "", "size": 0, "number": 2**63 - 1}, {"real": -0.0},
], ids=" ".join)  # fmt: skip
def test_the_op_is_given_what_the_call_was(watched_op, changed):
    call, overload = watched_op("all")
    values = arguments(**changed)
    assert torch.equal(call(*values), values[0] + 1)
    assert overload.asked == 0
    assert repr(seen[0]) == repr(tuple(values))
    assert all(one is other for one, other in zip(seen[0][2], values[2], strict=True)), "the tensors, and no copies"


def test_a_tuple_is_a_list(watched_op):
    call, overload = watched_op("all")
    values = arguments()
    call(*arguments(many=tuple(values[2])))
    assert len(seen[0][2]) == 2
    assert overload.asked == 0


def test_what_is_returned(watched_op):
    x = torch.randn(3)
    first, second = watched_op("pair")[0](x)
    assert torch.equal(first, x + 1)
    assert torch.equal(second, x + 2)
    assert watched_op("nothing")[0](x) is None
    assert seen[0] is x


class Seeing(torch.Tensor):
    """A subclass of Tensor that names what it is given to."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return f"seen {function}" if "toy_from_python" in str(function) else super().__torch_function__(
            function, types, args, kwargs)


@pytest.mark.parametrize("changed", [
    {"x": torch.randn(2).as_subclass(Seeing)}, {"many": [torch.randn(2).as_subclass(Seeing)]}, {"x": 1.5}, {"x": None},
    {"many": [None]}, {"many": torch.randn(3)}, {"many": "2"}, {"many": {}}, {"text": 3}, {"text": b"2"}, {"size": 2.5},
    {"size": True}, {"number": 2**63}, {"number": None}, {"real": 3}, {"real": "3"}, {"flag": 1}, {"flag": None},
    {"text": "\udc80"}, {"size": torch.tensor(3)},
], ids=" ".join)  # fmt: skip
def test_what_it_does_not_take_torch_ops_takes_or_refuses(watched_op, changed):
    call, overload = watched_op("all")
    values, outcomes = arguments(**changed), []
    for function in (call, overload.overload):
        try:
            outcomes.append(str(function(*values)))
        except Exception as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]
    assert overload.asked == 1


def test_another_number_of_arguments_and_other_types_are_torch_ops(watched_op):
    call, overload = watched_op("all")
    for values in (arguments()[:-1], [*arguments(), 1], []):
        with pytest.raises((RuntimeError, TypeError), match="argument"):
            call(*values)
    assert overload.asked == 3
    call, overload = watched_op("integers")
    assert call(torch.randn(1), [2, 3]).shape == (2, 3)
    assert overload.asked == 1


def test_errors_keep_their_types(watched_op):
    with pytest.raises(IndexError, match="an error of Python's"):
        watched_op("all")[0](*arguments(text="raise"))


@pytest.mark.filterwarnings("default:There is a performance drop")
def test_an_error_behind_a_warning_is_not_lost(watched_op):
    """vmap warns, as it has no rule for the op. A mode leaves the call to torch.ops."""
    call, overload = watched_op("failing")
    for asked, mode in enumerate((nullcontext(), torch.device("cpu"))):
        with mode, pytest.raises(IndexError, match="an error of Python's"):
            torch.vmap(call)(torch.randn(2, 3))
        assert overload.asked == asked


def test_modes_and_the_profiler_see_the_call(watched_op):
    names = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    call, _ = watched_op("all")
    for mode in (Functions, Dispatched):
        names.clear()
        values = arguments()
        with mode():
            call(*values)
        assert any("toy_from_python.all" in name for name in names), mode
    with torch.profiler.profile() as profile:
        call(*arguments())
    assert "toy_from_python::all" in {event.key for event in profile.key_averages()}


def test_nothing_is_kept_of_a_call(watched_op):
    call, _ = watched_op("all")
    values = arguments()
    objects = [values[0], values[2], *values[2], values[3]]
    before = [sys.getrefcount(item) for item in objects]
    for _ in range(10):
        call(*values)
        seen.clear()
    assert [sys.getrefcount(item) for item in objects] == before
    alive = weakref.ref(values[2][0])
    del values, objects
    gc.collect()
    assert alive() is None
