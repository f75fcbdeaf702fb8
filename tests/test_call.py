"""kernels.dispatch.call: what a public function does with its backend and its numbers, before any kernel is reached.

The op is one of this file's own, whose launcher is plain PyTorch: its backend "triton" runs here on any machine, and
which backends a machine has is set by the tests.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import kernels
from kernels import dispatch, runtime
from kernels.dispatch import checks, core, scalars
from kernels.dispatch.op import Op, like

TESTS = Path(__file__).resolve().parent
MODES = {"plain": 1, "twice": 2}


def eager(x, factor, mode):
    return x * factor * MODES[mode]


def check(op, x, factor, mode):
    checks.has_dtype(op, "x", x)
    checks.is_one_of(op, "mode", mode, MODES)


sys.modules["toy_call.triton_launch"] = SimpleNamespace(
    forward=lambda x, factor, mode, out: out.copy_(eager(x, factor, mode)),
    backward=lambda grad, factor, mode, grad_x: grad_x.copy_(eager(grad, factor, mode)),
)
OP = Op(
    "toy_scaled",
    "(Tensor x, Number factor, str mode) -> Tensor out",
    eager=eager,
    eager_in_place=lambda x, factor, mode: x.copy_(eager(x, factor, mode)),
    check=check,
    outputs={"out": like("x")},
    gradients={"x": like("grad_out")},
    in_place="x",
    elementwise=True,
    package="toy_call",
)


def scaled(x, factor=1.0, mode="plain", *, backend="auto"):
    return OP.call(backend, x, factor, mode)


def scaled_(x, factor=1.0, mode="plain", *, backend="auto"):
    OP.call_in_place(backend, x, factor, mode)
    return x


@pytest.fixture(autouse=True)
def missing(monkeypatch):
    """What the backends lack on this machine; a test may change it."""
    missing = {"cuda": "nvcc is missing: buy one"}
    monkeypatch.setattr(runtime, "why_not", lambda backend, device_type: missing.get(backend, ""))
    return missing


@pytest.fixture
def numbers(monkeypatch):
    """The cache of numbers, empty."""
    numbers = {}
    monkeypatch.setattr(scalars, "_kept", numbers)
    return numbers


@pytest.fixture(autouse=True)
def _dynamo_forgets():
    yield
    torch._dynamo.reset()


X = torch.tensor([[1.0, -2.0, 3.0]])
both = pytest.mark.parametrize("backend", ["eager", "triton"])
both_forms = pytest.mark.parametrize("function", [scaled, scaled_])


def compiled(function, **options):
    return torch.compile(lambda *arguments: function(*arguments, **options), fullgraph=True, backend="eager")


# ------------------------------------------------------------------------------------------------------------ backends


@both_forms
def test_an_unknown_backend_is_named(function):
    for backend in ("cutlass", "", None, ["eager"]):
        with pytest.raises(ValueError, match=r"backend must be one of auto, eager, triton, cuda; got ") as raised:
            function(X.clone(), backend=backend)
        assert str(raised.value).endswith(f"got {backend!r}")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"backend must be one of auto, eager, triton, cuda; got"):
        compiled(function, backend="cutlass")(X.clone())


@both_forms
def test_a_missing_backend_raises_and_says_why(function):
    with pytest.raises(RuntimeError, match=r'^backend="cuda" does not run here: nvcc is missing: buy one$'):
        function(X.clone(), backend="cuda")
    with pytest.raises(RuntimeError, match=r'backend="cuda" does not run here: nvcc is missing: buy one'):
        compiled(function, backend="cuda")(X.clone())


@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_a_missing_backend_raises_when_the_overload_itself_is_called(backend, missing):
    missing["triton"] = "Triton is not installed"
    for form in ("", "_"):
        with pytest.raises(RuntimeError, match=f'backend="{backend}" does not run here: {missing[backend]}'):
            OP.overload(backend, form)(X.clone(), torch.tensor(2.0), "plain")


@both_forms
def test_a_backend_that_was_missing_is_found_once_it_is_there(function, missing):
    missing["triton"] = "Triton is not installed"
    with pytest.raises(RuntimeError, match="Triton is not installed"):
        function(X.clone(), 2, backend="triton")
    with pytest.raises(RuntimeError, match="Triton is not installed"):
        compiled(function, backend="triton")(X.clone(), 2)
    del missing["triton"]
    assert torch.equal(function(X.clone(), 2, backend="triton"), 2 * X)
    assert torch.equal(compiled(function, backend="triton")(X.clone(), 2), 2 * X)


def test_auto_is_eager_on_a_cpu_whatever_is_missing(missing):
    missing["triton"] = "Triton is not installed"
    assert torch.equal(scaled(X, 2), 2 * X)
    assert torch.equal(compiled(scaled)(X, 2), 2 * X)


def test_a_cpu_tensor_never_loads_the_core(monkeypatch):
    monkeypatch.setattr(core, "load_core", lambda: pytest.fail("loads the core"))
    assert torch.equal(scaled(X, 2, backend="triton"), 2 * X)
    assert not OP.loader.load("triton", "cpu")
    with pytest.raises(RuntimeError, match="does not run here"):
        OP.loader.load("cuda", "cpu")


# ---------------------------------------------------------------------------------------------- without a C++ compiler

# Tensors without memory on a GPU that need not be there; prints whether the core is loaded, and what was warned of.
WITHOUT_COMPILER = """
import warnings, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from test_call import OP, scaled
from kernels.dispatch import build, core
build.EXTENSIONS = build.EXTENSIONS / "none"  # what was built before would do, whatever is missing now
with warnings.catch_warnings(record=True) as caught, FakeTensorMode(allow_non_fake_inputs=True):
    warnings.simplefilter("always")
    x = torch.empty(2, 3, device="cuda")
    for _ in range(3):
        out = scaled(x, 2.0, backend="triton")
        OP.call_in_place("triton", x, 2.0, "plain")
assert (out.device.type, out.shape) == ("cuda", (2, 3))
print(core.core_is_loaded(), *[str(warning.message) for warning in caught], sep="\\n")
"""


def test_where_no_compiler_is_tritons_own_launcher_is_used_and_one_warning_says_why():
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    environment = os.environ | {"CXX": "/nonexistent", "PYTHONPATH": path}
    command = [sys.executable, "-c", WITHOUT_COMPILER]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert ended.returncode == 0, ended.stderr
    loaded, *messages = ended.stdout.splitlines()
    assert loaded == "False"
    slower = "Triton's own launcher is used, and a call costs several times as much"
    missing = "the C++ compiler /nonexistent is missing: set CXX to one that is there, or unset it"
    assert messages == [f"{slower}: the extension core cannot be built: {missing}"]


def test_without_a_compiler_and_without_triton_the_error_says_how_to_get_triton(monkeypatch, missing):
    def load_core():
        raise RuntimeError("a C++ compiler is missing")

    monkeypatch.setattr(core, "load_core", load_core)
    missing["triton"] = "Triton is not installed"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Triton is not installed"):
                OP.loader.load("triton", "cuda")
    assert ("triton", "cuda") not in OP.loader._runs


# ------------------------------------------------------------------------------------------------------------- numbers


@both
@both_forms
@pytest.mark.parametrize(
    "factor",
    [
        2.5, 2, True, np.float32(0.1), np.float64(0.1), np.int64(-3), Fraction(1, 3),
        torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64),
    ],
    ids=repr,
)
def test_every_kind_of_number(function, backend, factor):
    for x in (X, X.double()):
        want = eager(x, float(factor), "twice")
        torch.testing.assert_close(function(x.clone(), factor, "twice", backend=backend), want)
        with torch.no_grad():
            assert torch.equal(function(x.clone(), factor, "twice", backend=backend), want)


@both
@both_forms
@pytest.mark.parametrize(
    ("factor", "error", "message"),
    [
        ("2", TypeError, "factor must be a number or a 0-d tensor; got str"),
        (None, TypeError, "factor must be a number or a 0-d tensor; got NoneType"),
        (2j, TypeError, "factor must be a number or a 0-d tensor; got complex"),
        (np.array(2.0), TypeError, "factor must be a number or a 0-d tensor; got ndarray"),
        (torch.tensor([2.0]), TypeError, r"0-d tensor of float32 or float64; got one of shape \[1\] and dtype float32"),
        (torch.tensor(2), TypeError, r"0-d tensor of float32 or float64; got one of shape \[\] and dtype int64"),
        (torch.tensor(2.0).half(), TypeError, r"of float32 or float64; got one of shape \[\] and dtype float16"),
        (torch.tensor(2.0, device="meta"), ValueError, "factor must be on the CPU or on cpu; got meta"),
        (torch.tensor(2.0, requires_grad=True), RuntimeError, r"factor has no gradient: detach\(\) it"),
    ],
    ids=repr,
)
def test_a_wrong_number_is_named(function, backend, factor, error, message):
    x = X.clone()
    with pytest.raises(error, match=f"^{function.__name__.replace('scaled', 'toy_scaled')}: .*{message}$"):
        function(x, factor, backend=backend)
    assert torch.equal(x, X)


@both
def test_a_number_that_no_float_holds(backend):
    with pytest.raises(OverflowError):
        scaled(X, 10**400, backend=backend)


def test_a_tensors_value_is_read_at_the_call():
    factor = torch.tensor(2.0)
    assert torch.equal(scaled(X, factor, backend="triton"), 2 * X)
    factor.fill_(3.0)
    assert torch.equal(scaled(X, factor, backend="triton"), 3 * X)


def test_the_cached_numbers_are_plain_tensors(numbers):
    """A number that is first seen under FakeTensorMode or inference_mode is the same to the calls that follow."""
    with FakeTensorMode() as mode:
        assert isinstance(scaled(mode.from_tensor(X), 0.3, backend="triton"), FakeTensor)
    assert numbers == {}
    with torch.inference_mode():
        scaled(X, 0.3, backend="triton")
    (kept,) = numbers.values()
    assert type(kept) is torch.Tensor
    assert not kept.is_inference()
    assert (kept.dtype, kept.device.type) == (torch.float64, "cpu")
    x = X.clone().requires_grad_()
    scaled(x, 0.3, backend="triton").sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(X, 0.3))
    assert [*numbers.values()] == [kept]


def test_a_cached_number_does_for_fake_tensors_too(numbers):
    scaled(X, 0.3, backend="triton")
    with FakeTensorMode() as mode:
        assert isinstance(scaled(mode.from_tensor(X), 0.3, backend="triton"), FakeTensor)


def test_the_cache_tells_zeros_apart(numbers):
    assert not torch.signbit(scaled(X.abs(), 0.0, backend="triton")).any()
    assert torch.signbit(scaled(X.abs(), -0.0, backend="triton")).all()


def test_the_cache_is_bounded(numbers):
    for n in range(3000):
        scaled(X, n / 7, backend="triton")
    assert 0 < len(numbers) <= 1024


# --------------------------------------------------------------------------------------------------- the op's own words


@both
@both_forms
def test_the_message_is_the_ops_whatever_raised_first(function, backend):
    name = function.__name__.replace("scaled", "toy_scaled")
    for mode in (["plain"], "wrong", None, 2):
        with pytest.raises(ValueError, match=rf"^{name}: mode must be one of plain, twice; got ") as raised:
            function(X.clone(), 1.0, mode, backend=backend)
        assert str(raised.value).endswith(f"got {mode!r}")
    for x in (None, "x", 2.0):
        with pytest.raises(TypeError, match=f"^{name}: x must be a tensor; got {type(x).__name__}$"):
            function(x, 1.0, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_in_place_refuses_gradients_while_it_is_traced(backend):
    traced = torch.compile(lambda x: scaled_(1 * x, 2.0, backend=backend), fullgraph=True, backend="eager")
    with pytest.raises(RuntimeError, match="toy_scaled_ has no gradient: call toy_scaled"):
        traced(X.clone().requires_grad_())


def test_on_host_ends_with_its_block(monkeypatch):
    monkeypatch.setitem(OP.loader._runs, ("cuda", "cpu"), True)
    with pytest.raises(RuntimeError, match="nvcc is missing"):
        OP.loader.require("cuda", "cpu")


def test_an_activation_in_a_list_gets_the_ops_own_message():
    x = torch.ones(2, 3)
    for backend in ("eager", "triton"):
        with pytest.raises(ValueError, match=r"^add_mul_activation: activation must be one of .*; got \['relu'\]$"):
            kernels.add_mul_activation(x, x[0], x, activation=["relu"], backend=backend)


def test_an_error_that_no_argument_is_to_blame_for_is_left_alone(monkeypatch):
    def forward(*arguments):
        raise OSError("out of paper")

    monkeypatch.setattr(sys.modules["toy_call.triton_launch"], "forward", forward)
    with pytest.raises(OSError, match=r"^out of paper$"):
        scaled(X, 2.0, backend="triton")


def test_under_torch_func_it_says_to_use_eager():
    with pytest.raises(RuntimeError, match=r'^toy_scaled does not work under torch\.func here: use backend="eager"$'):
        torch.func.grad(lambda x: scaled(x, 2.0, backend="triton").sum())(X)
    assert torch.equal(torch.func.grad(lambda x: scaled(x, 2.0, backend="eager").sum())(X), torch.full_like(X, 2.0))


# ----------------------------------------------------------------------------------------------------- finding the ops


def test_ops_are_the_folders_that_have_a_declaration(monkeypatch, tmp_path):
    assert dispatch.ops() == sorted(path.parent.name for path in runtime.KERNELS.glob("ops/*/op.py"))
    assert dispatch.ops()
    for name in ("b", "a", "unfinished"):
        (tmp_path / "ops" / name).mkdir(parents=True)
    for name in ("b", "a"):
        (tmp_path / "ops" / name / "op.py").touch()
    monkeypatch.setattr(dispatch, "KERNELS", tmp_path)
    assert dispatch.ops() == ["a", "b"]


def test_find_gives_the_declaration_and_names_what_it_does_not_know():
    assert len({*dispatch.names()}) == len(dispatch.names()) >= len(dispatch.ops())
    for name in dispatch.names():
        op = dispatch.find(name)
        assert isinstance(op, Op)
        assert op.name == name
        assert op.folder in dispatch.ops()
        public = {*importlib.import_module(op.package).__all__}
        assert public
        assert public <= {*kernels.__all__}
    for unknown in ("nothing", "", "add_relu/../add_relu"):
        with pytest.raises(ValueError, match=f"unknown op '{unknown}': expected one of {', '.join(dispatch.names())}"):
            dispatch.find(unknown)
