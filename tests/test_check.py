"""What tests the kernels must be able to fail: check() and check_gradients() against functions that are wrong."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import check, dispatch, runtime
from kernels.check import Call, Case, check_gradients
from kernels.ops.add_mul_activation.eager import FUNCTIONS, add_mul_activation
from kernels.ops.add_relu.eager import add_relu, add_relu_

ROOT = Path(__file__).resolve().parent.parent
DEVICE = runtime.device()
# Plain PyTorch rounds half precision after every operation, and is not what a kernel is held to there.
CASES = [case for case in check.cases_of("add_relu") if case.dtype.itemsize >= 4]


# ------------------------------------------------------------------------------------------------------------------
# check().


def _writes_x(x, bias):
    return x.copy_(add_relu(x, bias))


def _misses_the_last(x, bias):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out.view(-1)[:-1] = add_relu(x, bias).view(-1)[:-1]
    return out


def _differs_each_time():
    calls = itertools.count()
    return lambda x, bias: add_relu(x, bias) * (1 + next(calls) % 2 * 2e-7)


def _ignores_strides(x, bias):
    return add_relu(x.as_strided(x.shape, [*x.new_empty(x.shape).stride()]) if x.stride(-1) > 1 else x, bias)


def _forgets_columns_from_1024(x, bias):
    out = add_relu(x, bias)
    out[..., 1024:] = x[..., 1024:] - 9 if x.dim() > 1 and len(x) == 3 else out[..., 1024:]
    return out


def _writes_beside(index):
    """Right, but it also writes one element `index`(out) from out's first."""

    def function(x, bias):
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        memory = torch.tensor([], dtype=x.dtype, device=x.device).set_(out.untyped_storage())
        memory[out.storage_offset() + index(out)] = 1.0
        return out.copy_(add_relu(x, bias))

    return function


def _reads_beside(x, bias):
    """The element behind each, as a wrong offset does."""
    memory = torch.tensor([], dtype=x.dtype, device=x.device).set_(x.untyped_storage())
    shifted = memory[x.storage_offset() + 1 :][: x.numel()] if x.is_contiguous() else x
    return add_relu(shifted.view(x.shape), bias)


def _keeps_its_output():
    kept = {}

    def function(x, bias):
        key = x.shape, x.dtype, x.device
        return kept.setdefault(key, torch.empty(x.shape, dtype=x.dtype, device=x.device)).copy_(add_relu(x, bias))

    return function


def _raises(x, bias):
    raise RuntimeError("no kernel for this")


def _asserts(x, bias):
    raise AssertionError


@pytest.mark.parametrize(
    ("function", "case", "message"),
    [
        (_writes_x, "1×1 float32", "x was changed"),
        (_misses_the_last, "1×1 float32", r"1 of 1 elements is wrong. At \[0, 0\]: expected [-\d.e]+, got nan.*"
            r"1 element was never written, the first at \[0, 0\]\nHint: grid or mask: "),
        (lambda x, bias: torch.relu(x), "1×1 float32", r".*At \[0, 0\]: expected "),
        (lambda x, bias: add_relu(x, bias)[:, :5], "1×7 float32", r"shape: expected \[1, 7\], got \[1, 5\]"),
        (lambda x, bias: add_relu(x, bias).double(), "0×5 float32", "dtype: expected float32, got float64"),
        (lambda x, bias: add_relu(x, bias).to("meta"), "0×5 float32", "device: expected (cpu|cuda:0), got meta"),
        (lambda x, bias: torch.relu(x + bias), "17×24 float32 transposed", "the output must be contiguous"),
        (lambda x, bias: (add_relu(x, bias), bias), "0×5 float32", r"must return 1 tensors, \('out',\); got 2"),
        (lambda x, bias: None, "0×5 float32", "must return a tensor; got NoneType"),
        (lambda x, bias: add_relu(x, bias).flatten(0, x.dim() - 2), "2×3×5 float32", "shape: expected "),
        (lambda x, bias: add_relu(x.nan_to_num(), bias), "13×40 float32 special", ".*Hint: NaN and Inf: "),
        (lambda x, bias: add_relu(x, bias).clamp(max=1e37), "13×40 float32 special", r".*expected inf, got 1e\+37"),
        (lambda x, bias: add_relu(x, bias.nan_to_num()), "13×40 float32 special", ".*expected (nan|inf), got "),
        (lambda x, bias: torch.relu(x.half() + bias.half()).to(x.dtype), "1×1 float32", ".*expected "),
        (lambda x, bias: add_relu(x, bias) - 1e-8, "13×40 float32 tiny", ".*expected .*Hint: small numbers: "),
        (lambda x, bias: add_relu(x.float(), bias.float()).to(x.dtype), "3×1025 float64", ".*Hint: dtype: "),
        (_differs_each_time(), "1×1 float32", "two runs gave different bits\nHint: race or atomics: "),
        (_keeps_its_output(), "1×1 float32", "its result lies in the memory of an earlier call's, which the caller"),
        (_ignores_strides, "17×24 float32 transposed", ".*Hint: layout: contiguous tensors pass"),
        (_forgets_columns_from_1024, "3×1025 float32", ".*Hint: columns: those before column 1024 are right"),
        (_writes_beside(lambda out: out.numel()), "0×5 float32", "the memory beside out was changed: 1 element was "
            "written after its last, the first 1 beyond it\nHint: mask: "),
        (_writes_beside(lambda out: -3), "0×5 float32", "the memory beside out was changed: 1 element was "
            "written before its first, the nearest 3 ahead of it"),
        (_reads_beside, "1×1 float32", ".*got nan"),
        (_raises, "0×5 float32", "RuntimeError: no kernel for this"),
        (_asserts, "0×5 float32", "AssertionError: "),
    ],
)
def test_check_rejects(function, case, message):
    with pytest.raises(AssertionError, match=re.compile(f"^add_relu, case {case}: {message}", re.DOTALL)):
        check.check("add_relu", function, cases=CASES)


def _aligned_x_is_assumed(x, bias):
    """What 16-byte accesses do that look at the bias's alignment alone."""
    start = x.storage_offset() * x.itemsize % 16 // x.itemsize
    whole = x.as_strided(x.shape, x.stride(), x.storage_offset() - start)
    return add_relu(whole if bias.data_ptr() % 16 == 0 else x, bias)


def test_check_misaligns_one_argument_at_a_time():
    with pytest.raises(AssertionError, match=r"^add_relu, case 17×24 float32 misaligned x: "):
        check.check("add_relu", _aligned_x_is_assumed, cases=CASES)


def _and_writes(beside, layout_stride):
    """Right, but where x's last stride is this it also writes `beside`(x) elements from x's first."""

    def function(x, bias):
        memory = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
        index = x.storage_offset() + beside(x)
        if x.stride(-1) == layout_stride and 0 <= index < len(memory):
            memory[index] = 1
        return add_relu_(x, bias)

    return function


@pytest.mark.parametrize(
    ("function", "case", "message"),
    [
        (add_relu, "0×5 float32", "must return its first argument"),
        (lambda x, bias: x, "1×1 float32", ".*expected "),
        (lambda x, bias: add_relu_(x, bias.mul_(2)), "0×5 float32", "bias was changed"),
        (_and_writes(lambda x: -1, 1), "0×5 float32", "the memory beside x was changed: 1 element was written before"),
        (_and_writes(lambda x: x.numel(), 1), "0×5 float32", "the memory beside x was changed: 1 element was written"),
        (_and_writes(lambda x: 1, 2), "17×24 float32 strided", "the memory beside x was changed"),
    ],
)
def test_check_rejects_in_place(function, case, message):
    with pytest.raises(AssertionError, match=re.compile(f"^add_relu_, case {case}: {message}", re.DOTALL)):
        check.check("add_relu_", function, cases=CASES)


def test_check_calls_with_the_positional_arguments_and_counts(capsys):
    seen = []

    def function(x, bias, y, multiplier, activation):
        seen.append((x.shape, bias.shape, y.shape, multiplier, activation))
        return add_mul_activation(x, bias, y, multiplier, activation)

    check.check("add_mul_activation", function, device="cpu", cases=[Case((2, 3, 8)), Case((4, 8), every_option=False)])
    options = [call.options for call in check.calls_of("add_mul_activation", Case((1, 1)))]
    assert capsys.readouterr().out == f"add_mul_activation: {len(options) + 1} cases passed on cpu\n"
    assert [(float(m), activation) for *_, m, activation in seen[:-2:2]] == [(float(m), a) for m, a in options]
    assert {shapes[:3] for shapes in seen} == {((2, 3, 8), (8,), (2, 3, 8)), ((4, 8), (8,), (4, 8))}


def test_every_activation_is_called_with_multipliers_of_either_sign():
    options = [call.options for call in check.calls_of("add_mul_activation", Case((1, 1)))]
    for activation, sign in itertools.product(FUNCTIONS, (1, -1)):
        assert any(a == activation and m * sign > 0 for m, a in options)
    assert any(isinstance(multiplier, torch.Tensor) for multiplier, _ in options)


def test_an_activation_that_is_wrong_is_named():
    def function(x, bias, y, multiplier, activation):
        return add_mul_activation(x, bias, y, multiplier, "sigmoid" if activation == "silu" else activation)

    with pytest.raises(AssertionError, match=r"^add_mul_activation, case 1×7 float32 0.5 silu: "):
        check.check("add_mul_activation", function, cases=CASES)


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
def test_an_activation_that_is_wrong_near_zero_is_found(activation):
    def function(x, bias, y, multiplier, name):
        out = add_mul_activation(x, bias, y, multiplier, name)
        return torch.where(out.abs() < 1e-5, 0.0, out) if name == activation else out

    with pytest.raises(AssertionError, match=f"^add_mul_activation, case .* {activation}: "):
        check.check("add_mul_activation", function, cases=CASES)


def test_check_says_what_it_cannot_check():
    with pytest.raises(ValueError, match=r"^unknown op 'add_gelu': expected one of add_mul_activation, add_relu"):
        check.check("add_gelu", add_relu)
    with pytest.raises(ValueError, match="no case was given"):
        check.check("add_relu", add_relu, cases=[])
    with pytest.raises(ValueError, match="no case was given"):
        check.check("add_relu_", add_relu_, cases=[Case((3, 8), layout="expanded")])


# ------------------------------------------------------------------------------------------------------------------
# The cases.


@pytest.mark.parametrize("dtype", check.FLOAT_DTYPES, ids=str)
def test_tensors_are_what_their_case_says(dtype):
    def tensor(layout="contiguous", values="normal"):
        return Case((17, 24), dtype, layout, values).tensor(3)

    for layout in ("contiguous", "transposed", "strided", "expanded", "misaligned"):
        x = tensor(layout)
        assert (x.shape, x.dtype) == ((17, 24), dtype)
        assert torch.equal(x, tensor(layout))
        assert x.is_contiguous() == (layout in ("contiguous", "misaligned"))
        assert (x < 0).any()
        assert (x > 0).any()
    assert (tensor("transposed").stride(), tensor("strided").stride()) == ((1, 17), (48, 2))
    assert tensor("expanded").stride() == (0, 1)
    assert tensor("misaligned").data_ptr() % 16 == dtype.itemsize % 16
    assert not torch.equal(tensor(), Case((17, 24), dtype).tensor(4))
    special = tensor(values="special")
    assert special.isnan().any()
    assert special.isposinf().any()
    assert special.isneginf().any()
    assert special.isfinite().any()
    assert 0 < tensor(values="tiny").abs().max() < 1e-3
    assert 100 < tensor(values="large").abs().max() < 300
    huge = tensor(values="huge")
    assert huge.isfinite().all()
    assert huge.abs().max() == torch.finfo(dtype).max / 8


def test_only_one_argument_has_the_layout():
    (call,) = check.calls_of("add_relu", Case((4, 8), layout="expanded", values="special", only="bias"), DEVICE)
    x, bias = call.tensors
    assert call.name == "4×8 float32 expanded special bias"
    assert x.is_contiguous()
    assert x.isfinite().all()
    assert bias.stride() == (0,)
    assert not check.calls_of("add_relu", Case((4, 8), only="y"), DEVICE)


def test_integers_are_laid_out_as_the_case_says():
    ids = Case((17, 24), layout="transposed").integers(1, 100)
    assert (ids.dtype, ids.shape, ids.stride()) == (torch.int64, (17, 24), (1, 17))
    assert 0 <= ids.min() < 10 < 90 < ids.max() < 100


@pytest.mark.parametrize("op", dispatch.names())
def test_an_op_has_the_arguments_that_its_declaration_names(op):
    spec, declaration = check.spec_of(op), dispatch.find(op)
    # An optional tensor may stand behind arguments of other kinds, and an overload may take more than the reference.
    tensors = [name for name in spec.tensors if name in declaration.tensors]
    assert tensors == [name for name in declaration.tensors if name in spec.arguments]
    assert len(tensors) == len(declaration.tensors) or spec.overload is not tuple
    # An output that is there for the backward alone is not returned to the user.
    assert spec.outputs == tuple(declaration.differentiable(declaration.outputs))
    assert spec.mutated == declaration.mutated
    for call in check.calls_of(op, Case((4, 8)), DEVICE):
        assert len(call.arguments()) == len(spec.arguments)


def test_check_names_no_op():
    """What an op needs stands in its spec.py."""
    for path in (ROOT / "kernels" / "check").rglob("*.py"):
        code = "\n".join(ast.unparse(node) for node in ast.parse(path.read_text()).body[1:])
        code = re.sub(r'""".*?"""', "", code, flags=re.DOTALL)
        assert not [op for op in dispatch.names() if op in code], path


# ------------------------------------------------------------------------------------------------------------------
# compare() and check_gradients().


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_an_inf_may_be_the_largest_number_and_nothing_else(dtype):
    largest, inf = torch.tensor([torch.finfo(dtype).max], dtype=dtype), torch.tensor([torch.inf], dtype=dtype)
    check.compare(inf, largest)
    check.compare(-largest, -inf)
    for wrong in (-inf, largest / 2, inf * 0):
        with pytest.raises(AssertionError):
            check.compare(wrong, inf)
        with pytest.raises(AssertionError):
            check.compare(inf, wrong)


def test_where_the_magnitude_is_nan_the_usual_tolerance_holds():
    """The absolute values' network keeps an Inf that relu(-Inf) has lost, and Inf · 0 comes of it."""
    expected, error = torch.tensor([0.75, 2.0, torch.nan]), torch.tensor([torch.nan, 0.5, torch.nan])
    check.compare(torch.tensor([0.75 + 6e-8, 2.4, torch.nan]), expected, error=error)
    for wrong in ([0.751, 2.0, torch.nan], [0.75, 2.6, torch.nan], [0.75, 2.0, 1.0], [torch.inf, 2.0, torch.nan]):
        with pytest.raises(AssertionError):
            check.compare(torch.tensor(wrong), expected, error=error)


class _Relu(torch.autograd.Function):
    """add_relu whose gradients are what `backward_of`(grad of z) says."""

    @staticmethod
    def forward(ctx, x, bias, backward_of):
        ctx.backward_of = backward_of
        ctx.save_for_backward(out := add_relu(x, bias))
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return *ctx.backward_of(torch.where(out > 0, grad, 0)), None


def _right(grad):
    return grad, grad.sum(0)


def _loses_a_row(grad):
    return grad, grad[:-1].sum(0)


def _loses_an_element(grad):
    return torch.where(grad == grad.max(), 0, grad), grad.sum(0)


def _sums_in_the_dtype(grad):
    total = torch.zeros_like(grad[0])
    for row in grad:
        total += row
    return grad, total


@pytest.mark.parametrize("dtype", check.FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("backward_of", "name"),
    [(_right, None), (_loses_a_row, "bias"), (_loses_an_element, "x"), (_sums_in_the_dtype, "bias")],
)
def test_check_gradients(dtype, backward_of, name):
    if backward_of is _sums_in_the_dtype and dtype.itemsize != 2:
        name = None  # float32 and float64 are summed in their own precision
    # A lost row is looked for among few: in half precision it drowns in what the rounding of many may add up to.
    rows = 4 if backward_of is _loses_a_row else 3000
    (call,) = check.calls_of("add_relu", Case((rows, 9), dtype), DEVICE)
    grad = Case((rows, 9), dtype).tensor(9, DEVICE)

    def run():
        check_gradients("add_relu", lambda x, bias: _Relu.apply(x, bias, backward_of), call, (True, True), grad)

    if name is None:
        run()
    else:
        with pytest.raises(AssertionError, match=f"^add_relu, case {rows}×9 .*, the gradient of {name}: "):
            run()


def test_check_gradients_takes_only_what_is_asked():
    call = Call("", (torch.ones(2, 3), torch.ones(3)))
    check_gradients("add_relu", add_relu, call, (False, True), torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="does not require grad"):
        check_gradients("add_relu", lambda x, bias: add_relu(x, bias.detach()), call, (False, True), torch.ones(2, 3))


# ------------------------------------------------------------------------------------------------------------------
# The count of what was skipped.


def test_skips_are_counted_and_named(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='no CUDA device')\n"
        "@pytest.mark.parametrize('i', range(41))\n"
        "def test_on_a_gpu(i): pass\n"
        "def test_one(): pytest.skip('g++ is missing')\n"
        "def test_runs(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    printed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment).stdout
    assert "41 GPU tests skipped: no CUDA device\n1 test skipped: g++ is missing\n" in printed
    assert "1 passed, 42 skipped" in printed
