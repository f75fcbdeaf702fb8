"""kernels/dispatch: ops of every kind by both backends, in Python and in the C++ core; what the driver is given.

Triton runs in the interpreter, CUDA through the host build of the kernels, and a driver that records stands in for
libcuda: so all of this runs without a GPU, and the same declarations run on one.
"""

from __future__ import annotations

import importlib
import json
import shutil
import struct
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import fake_driver
import pytest
import torch
from toy_ops import CUBE, GATHER, MOMENTS, SGD, SQUARE
from toy_ops.pdl import triton_launch

import kernels
from kernels import runtime
from kernels.device.launch import cdiv, empty, triton_functions
from kernels.dispatch import allocation, build, cubin, nvrtc, plan
from kernels.dispatch.core import load_core, on_host
from kernels.dispatch.intercept import recording
from kernels.dispatch.op import Op, Prepared, like

TESTS = Path(__file__).resolve().parent
TOYS = (GATHER, MOMENTS, SGD, CUBE, SQUARE)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
on_cpu = pytest.mark.skipif(runtime.device().type == "cuda", reason="for a machine without a GPU")


@pytest.fixture(scope="module")
def core():
    """The toy ops' CUDA kernels behind the core, on CPU tensors."""
    load_core()
    for op in TOYS:
        source = TESTS / "toy_ops" / op.package.rpartition(".")[2] / "cuda.cu"
        library = build.load_library(
            op.name, source, cache=build.EXTENSIONS, include=(runtime.KERNELS,), flags=("-std=c++20", "-O1"),
            as_cpp=True,
        )
        op.loader.declare("cuda", "cpu", str(library))


@pytest.fixture(autouse=True)
def _dynamo_forgets():
    yield
    torch._dynamo.reset()


both_backends = pytest.mark.parametrize(
    "backend", [pytest.param("triton", marks=on_cpu), pytest.param("cuda", marks=needs_compiler)]
)


def call(op, backend, *arguments):
    with on_host():
        return op.call(backend, *arguments)


def gather_arguments(dtype=torch.float32, ids=torch.int64):
    table = torch.randn(5, 8, dtype=dtype)
    return table, torch.tensor([4, 0, 3, 0, 2, 2, 0], dtype=ids)


# ------------------------------------------------------------------------------------------------------------------
# Ops of every kind.


@needs_compiler
@both_backends
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
def test_integer_inputs(core, backend, ids):
    table, ids = gather_arguments(ids=ids)
    assert torch.equal(call(GATHER, backend, table, ids), table[ids.long()])
    leaf = table.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda table: call(GATHER, backend, table, ids), leaf)
    with on_host():
        torch.library.opcheck(GATHER.overload(backend), (table, ids))
        torch.library.opcheck(GATHER.overload(backend), (table.clone().requires_grad_(), ids))
        grads = GATHER.backward_arguments((table, ids), (table[ids.long()],), (torch.randn(7, 8),), [True])
        torch.library.opcheck(GATHER.overload(backend, "backward"), grads)
    with pytest.raises(TypeError, match="toy_gather: ids must be int32 or int64; got float32"):
        call(GATHER, backend, table, table[0])


@needs_compiler
@both_backends
def test_a_shape_is_kept_without_its_tensor(core, backend):
    """It may be written to, and freed, before the backward; another number of rows is no other graph."""
    table, ids = gather_arguments()
    leaf = table.clone().requires_grad_()
    doubled = leaf * 2
    alive = weakref.ref(doubled)
    out = call(GATHER, backend, doubled, ids)
    doubled.data.zero_()
    with torch.no_grad():
        doubled.zero_()
    del doubled
    assert alive() is None
    (grad,) = torch.autograd.grad(out.sum(), leaf)
    torch.testing.assert_close(grad, 2 * torch.bincount(ids, minlength=5)[:, None].expand(5, 8).float())
    assert GATHER.forms["backward"].names == ["grad_out", "ids", "table_shape", "needs"]
    counter = importlib.import_module("torch._dynamo.testing").CompileCounterWithBackend("aot_eager")
    with on_host():
        compiled = torch.compile(lambda table: GATHER.call(backend, table, ids), backend=counter, dynamic=True)
        for rows in (5, 9, 14):
            leaf = torch.randn(rows, 8, requires_grad=True)
            (grad,) = torch.autograd.grad(compiled(leaf).sum(), leaf)
            torch.testing.assert_close(grad, torch.bincount(ids, minlength=rows)[:, None].expand(rows, 8).float())
    assert counter.frame_count == 1


@needs_compiler
@both_backends
def test_several_outputs_and_an_optional_tensor(core, backend):
    x, shift = torch.randn(6, 11), torch.randn(6, 11)
    for optional in (None, shift):
        doubled, squared = call(MOMENTS, backend, x, optional)
        want = MOMENTS.eager(x, optional)
        torch.testing.assert_close((doubled, squared), want)
        leaf = x.double().requires_grad_()
        wide = None if optional is None else optional.double()
        assert torch.autograd.gradcheck(lambda x, wide=wide: call(MOMENTS, backend, x, wide), leaf)
        # A gradient of one output alone: the other's is zeros.
        (grad,) = torch.autograd.grad(call(MOMENTS, backend, leaf, wide)[1].sum(), leaf)
        z = x.double() if optional is None else x.double() - wide
        torch.testing.assert_close(grad, 2 * z)
        with on_host():
            torch.library.opcheck(MOMENTS.overload(backend), (x.clone().requires_grad_(), optional))
    with pytest.raises(ValueError, match=r"toy_moments: shift must have shape \[6, 11\]"):
        call(MOMENTS, backend, x, shift[:5])
    needs_more = shift.clone().requires_grad_()
    if backend == "cuda":  # in Python the gradient of what has none is nothing, as autograd has it
        with pytest.raises(RuntimeError, match="toy_moments: shift has no gradient: detach"):
            call(MOMENTS, backend, x.clone().requires_grad_(), needs_more)


@needs_compiler
@both_backends
def test_what_is_written_and_a_learning_rate(core, backend):
    weights, gradient = torch.randn(100), torch.randn(100)
    for lr in (0.1, torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64)):
        got = weights.clone()
        version = got._version
        assert call(SGD, backend, got, gradient, lr) is None
        torch.testing.assert_close(got, weights - 0.1 * gradient)
        assert got._version > version
    transposed = torch.randn(8, 6).t()
    want = transposed - 0.5 * torch.ones(6, 8)
    call(SGD, backend, transposed, torch.ones(6, 8), 0.5)
    torch.testing.assert_close(transposed, want)
    both = torch.randn(130)
    overlapping, want = both[30:], both[30:] - 0.1 * both[:100]
    call(SGD, backend, overlapping, both[:100], 0.1)  # the gradient as it was before the call
    torch.testing.assert_close(overlapping, want)
    with pytest.raises(RuntimeError, match="toy_sgd_ has no gradient"):
        call(SGD, backend, weights.clone().requires_grad_(), gradient, 0.1)
    with torch.no_grad():
        call(SGD, backend, weights.clone().requires_grad_(), gradient, 0.1)
    with torch.inference_mode():
        kept = weights.clone()
        call(SGD, backend, kept, gradient, 0.1)
    torch.testing.assert_close(kept, weights - 0.1 * gradient)
    with pytest.raises(RuntimeError, match=r"an inference tensor is written to outside of torch\.inference_mode"):
        call(SGD, backend, kept, gradient, 0.1)
    with on_host():
        torch.library.opcheck(SGD.overload(backend), (weights, gradient, torch.tensor(0.5)))


@needs_compiler
@both_backends
def test_a_learning_rate_that_changes_compiles_at_most_twice(core, backend):
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def step(weights, gradient, lr):
        SGD.call(backend, weights, gradient, lr)
        return weights * 2

    with on_host():
        for n in range(50):
            weights, gradient = torch.randn(30), torch.randn(30)
            want = 2 * (weights - 0.01 * n * gradient)
            torch.testing.assert_close(step(weights, gradient, 0.01 * n), want)
    assert counter.frame_count <= 2


@on_cpu  # whose gradient Triton computes on a CPU: in its interpreter
@needs_compiler
@both_backends
def test_an_output_kept_for_the_backward_which_one_backend_computes(core, backend):
    x = torch.randn(6, 11, dtype=torch.float64, requires_grad=True)
    out, slope = call(CUBE, backend, x)
    torch.testing.assert_close((out, slope), CUBE.eager(x))
    assert out.requires_grad
    assert not slope.requires_grad
    assert torch.autograd.gradcheck(lambda x: call(CUBE, backend, x)[0], x)
    # A function of both: what comes from `slope` adds nothing.
    (grad,) = torch.autograd.grad((2 * out + 5 * slope).sum(), x)
    torch.testing.assert_close(grad, 6 * x.detach() ** 2)
    assert torch.ops.fused_kernels.toy_cube_backward.overloads() == ["triton"]
    assert CUBE.overload(backend, "backward") is torch.ops.fused_kernels.toy_cube_backward.triton
    assert CUBE.forms["backward"].names == ["grad_out", "slope", "needs"]
    with on_host():
        torch.library.opcheck(CUBE.overload(backend), (x,))
        grads = CUBE.backward_arguments((x,), (out.detach(), slope), (torch.ones_like(x),), [True])
        torch.library.opcheck(CUBE.overload(backend, "backward"), grads)
        compiled = torch.compile(lambda x: CUBE.call(backend, x)[0] * 2, fullgraph=True, backend="aot_eager")
        (grad,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(grad, 6 * x.detach() ** 2)


@needs_compiler
@both_backends
def test_a_backward_that_needs_what_another_function_makes(core, backend, monkeypatch):
    asked, prepare = [], SQUARE.prepare.function
    watched = Prepared(SQUARE.prepare.names, lambda *arguments: asked.append(arguments[0]) or prepare(*arguments))
    monkeypatch.setattr(SQUARE, "prepare", watched)
    x = torch.randn(6, 11, dtype=torch.float64, requires_grad=True)
    out = call(SQUARE, backend, x)
    assert not asked  # only where a gradient is computed
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert asked == [backend]
    torch.testing.assert_close(grad.detach(), 2 * x.detach())
    with pytest.raises(RuntimeError, match="toy_square has no second derivative"):
        grad.sum().backward()
    assert SQUARE.forms["backward"].names == ["grad_out", "x", "needs"]
    assert SQUARE.forms["prepared"].names == ["grad_out", "x", "slope", "needs"]
    with on_host():
        torch.library.opcheck(SQUARE.overload(backend), (x,))
        grads = SQUARE.backward_arguments((x.detach(),), (out.detach(),), (torch.ones_like(out),), [True])
        torch.library.opcheck(SQUARE.overload(backend, "backward"), grads)
        torch.library.opcheck(SQUARE.overload(backend, "prepared"), SQUARE.with_prepared(backend, grads))
        compiled = torch.compile(lambda x: SQUARE.call(backend, x) * 2, fullgraph=True, backend="aot_eager")
        (grad,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(grad, 4 * x.detach())


def test_an_op_needs_no_kernel_of_a_backend():
    only = Op("toy_only", "(Tensor x) -> Tensor out", eager=torch.abs,
              outputs={"out": like("x")}, backends=("triton",))
    with pytest.raises(RuntimeError, match='backend="cuda" does not run here: toy_only has no such kernel'):
        only.call("cuda", torch.ones(3))
    assert torch.equal(only.call("auto", torch.tensor([-1.0])), torch.ones(1))


# ------------------------------------------------------------------------------------------------------------------
# The core.


@needs_compiler
def test_the_core_does_not_ask_python_twice_for_one_signature(core, monkeypatch):
    asked = []
    check = GATHER.forms[""]._check
    monkeypatch.setattr(GATHER.forms[""], "_check", lambda *arguments: (asked.append(1), check(*arguments)))
    table, ids = torch.randn(9, 4), torch.tensor([1, 2])
    overload = GATHER.overload("cuda")
    for _ in range(3):
        overload(table, ids)
    assert len(asked) == 1
    overload(table, ids[:1])
    overload(table.double(), ids)
    overload(torch.randn(4, 9).t(), ids)  # not contiguous, but of a shape that was seen
    assert len(asked) == 3
    for _ in range(2):  # what is refused is not remembered
        with pytest.raises(TypeError, match="table must be float32 or float64; got float16"):
            overload(table.half(), ids)
    assert len(asked) == 5


@needs_compiler
def test_allocations_are_replaced_in_the_core_and_in_python(core):
    allocations = []

    def allocate(shape, dtype, device):
        allocations.append((tuple(shape), dtype, device.type))
        return torch.full(shape, 7, dtype=dtype, device=device)

    table, ids = gather_arguments()
    for backend in ("cuda", "triton") if runtime.device().type == "cpu" else ("cuda",):
        with allocation.replaced(allocate):
            out = call(GATHER, backend, table, ids)
        assert torch.equal(out, table[ids])
        assert allocations == [((7, 8), torch.float32, "cpu")]
        allocations.clear()
        call(GATHER, backend, table, ids)
        assert allocations == []


@needs_compiler
def test_the_wrong_number_of_arguments_in_cuda_cu_is_named(core, tmp_path):
    wrong = tmp_path / "cuda.cu"
    wrong.write_text(
        '#include "dispatch/op.cuh"\n'
        "cudaError_t forward(fused::Tensor x, fused::Stream) { return cudaSuccess; }\nFUSED_OP(forward)\n"
    )
    library = build.load_library("toy_wrong", wrong, cache=tmp_path, include=(runtime.KERNELS,),
                                     flags=("-std=c++20", "-O0"), as_cpp=True)
    op = Op("toy_wrong", "(Tensor x) -> Tensor out", eager=torch.abs, outputs={"out": like("x")})
    op.loader.declare("cuda", "cpu", str(library))
    with pytest.raises(RuntimeError, match=r"the function in cuda\.cu takes 1 arguments, the declaration gives it 2"):
        op.overload("cuda")(torch.ones(3))


TOP = """
#include "dispatch/op.cuh"
using fused::Tensor;
cudaError_t forward(Tensor x, Tensor largest, Tensor where, fused::Stream) {
    for (long long row = 0; row < x.rows(); ++row) {
        const double* first = x.as<double>() + row * x.columns();
        where.as<int64_t>()[row] = std::max_element(first, first + x.columns()) - first;
        largest.as<double>()[row] = first[where.as<int64_t>()[row]];
    }
    return cudaSuccess;
}
cudaError_t backward(Tensor grad, Tensor grad_where, Tensor x, Tensor where, Tensor grad_x, fused::Stream) {
    if (grad_where.dtype != fused::Dtype::int64 || *grad_where.as<int64_t>()) return cudaErrorInvalidValue;
    for (long long i = 0; i < x.elements; ++i) grad_x.as<double>()[i] = 0;
    for (long long row = 0; row < x.rows(); ++row)
        grad_x.as<double>()[row * x.columns() + where.as<int64_t>()[row]] = grad.as<double>()[row];
    return cudaSuccess;
}
FUSED_OP(forward, backward)
"""


@needs_compiler
def test_an_output_of_integers_has_no_gradient(core, tmp_path):
    source = tmp_path / "cuda.cu"
    source.write_text("#include <algorithm>" + TOP)
    library = build.load_library("toy_top", source, cache=tmp_path, include=(runtime.KERNELS,),
                                     flags=("-std=c++20", "-O0"), as_cpp=True)
    op = Op(
        "toy_top",
        "(Tensor x) -> (Tensor largest, Tensor where)",
        eager=lambda x: tuple(x.max(-1)),
        outputs={
            "largest": lambda arguments: (arguments["x"].shape[:-1], arguments["x"].dtype),
            "where": lambda arguments: (arguments["x"].shape[:-1], torch.int64),
        },
        saves=("x", "where"),
        gradients={"x": like("x")},
    )
    op.loader.declare("cuda", "cpu", str(library))
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    largest, where = op.overload("cuda")(x)
    assert largest.requires_grad
    assert not where.requires_grad
    assert torch.equal(where, x.argmax(-1))
    (largest**2).sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x).scatter(1, where[:, None], 2 * largest.detach()[:, None]))


@needs_compiler
def test_func_transforms_work_through_the_core(core):
    table, ids = gather_arguments()
    actual = torch.func.grad(lambda table: call(GATHER, "cuda", table, ids).sum())(table)
    want = torch.func.grad(lambda table: table[ids].sum())(table)
    assert torch.equal(actual, want)


@needs_compiler
def test_levels_of_torch_func_record_what_lies_outside_of_them(core):
    """A bias outside of grad_and_value gets its gradient too; a second derivative is refused and not zero."""
    x, bias = torch.randn(5, 6), torch.randn(6, requires_grad=True)

    def first_gradient(backend):
        with on_host():
            value = lambda x: (kernels.add_relu(x, bias, backend=backend) + bias.sin()).sum()  # noqa: E731
            (grad,) = torch.autograd.grad(torch.func.grad_and_value(value)(x)[1], bias)
        return grad

    torch.testing.assert_close(first_gradient("cuda"), first_gradient("eager"))
    first = torch.func.grad(lambda x: kernels.add_relu(x, bias.detach(), backend="cuda").pow(2).sum())
    second = torch.func.grad(lambda x: first(x).sum())
    with on_host(), pytest.raises(RuntimeError, match="add_relu has no second derivative"):
        second(x)


@needs_compiler
@both_backends
def test_a_number_changed_in_place_after_the_forward_is_refused(core, backend):
    x, multiplier = torch.randn(5, 6), torch.tensor(2.0)
    y = torch.randn(5, 6, requires_grad=True)
    with on_host():
        out = kernels.add_mul_activation(x, x[0], y, multiplier, "identity", backend=backend)
        multiplier.fill_(7.0)
        with pytest.raises(RuntimeError, match="the derivative reads was modified by an inplace operation"):
            out.sum().backward()


@needs_compiler
def test_a_tangent_of_the_incoming_gradient_is_refused(core):
    x, bias = torch.randn(5, 6, requires_grad=True), torch.randn(6)
    with on_host(), torch.autograd.forward_ad.dual_level():
        out = kernels.add_relu(x, bias, backend="cuda")
        grad = torch.autograd.forward_ad.make_dual(torch.ones(5, 6), torch.ones(5, 6))
        with pytest.raises(RuntimeError, match="add_relu has no forward-mode derivative"):
            torch.autograd.grad(out, x, grad)


# ------------------------------------------------------------------------------------------------------------------
# Triton's cubins, and what the driver is given.


def as_float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<q", bits)[:4])[0]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = fake_driver.build(tmp_path_factory.mktemp("driver") / "libcuda.so.1")
    load_core()
    torch.ops.fused_kernels._use_driver(str(path))
    for op, name in ((SGD, "recorded_sgd_"), (MOMENTS, "recorded_moments")):
        RECORDED[op.name] = recorded = Op(
            name, {"toy_sgd_": "(Tensor(a!) weights, Tensor gradient, Number lr) -> ()"}.get(
                op.name, "(Tensor x, Tensor? shift) -> (Tensor doubled, Tensor squared)"),
            eager=op.eager, check=op.forms[""]._check, outputs=op._output_shapes, package=op.package,
        )
        recorded.loader.declare("triton", "cpu", "")
    return path


def early_op(name: str):
    op = Op(name, "(Tensor x, Tensor bias) -> Tensor out", eager=None,
            outputs={"out": like("x")}, by_nvcc=True, package="toy_ops.pdl")
    op.loader.declare("triton", "cpu", "")
    return op.overload("triton")


RECORDED: dict[str, Op] = {}


@pytest.fixture
def driver(library):
    fake = fake_driver.Driver(library)
    fake.set(launch_count=0, load_count=0, parameters=0, load_result=0, function_result=0, launch_result=0,
             attribute=0, attribute_value=0, attribute_result=0, capability=90)
    plan._function.cache_clear()
    return fake


@needs_compiler
@on_cpu
def test_what_the_driver_is_given(driver):
    sgd = RECORDED["toy_sgd_"].overload("triton")
    driver.set(parameters=6)  # weights, gradient, lr, elements, and Triton's two
    weights, gradient = torch.randn(1000), torch.randn(1000)
    sgd(weights, gradient, torch.tensor(0.25, dtype=torch.float64))
    sgd(weights, gradient, torch.tensor(-2.0, dtype=torch.float64))
    first, second = driver.launches()
    assert (tuple(first.grid), tuple(first.block), first.shared, first.kind) == ((16, 1, 1), (128, 1, 1), 0, 0)
    assert list(first.parameters[:2]) == [weights.data_ptr(), gradient.data_ptr()]
    assert [as_float(launch.parameters[2]) for launch in (first, second)] == [0.25, -2.0]
    assert list(first.parameters[3:6]) == [1000, 0, 0]
    assert driver.load_count == 1
    # Misaligned by one element: another specialisation, as its loads cannot be 16 bytes wide.
    memory = torch.randn(1001)
    sgd(memory[1:], gradient, torch.tensor(1.0))
    assert driver.load_count == 2
    assert driver.launches()[2].parameters[0] == memory[1:].data_ptr()
    sgd(memory[1:], gradient, torch.tensor(1.0))
    assert driver.load_count == 2


@needs_compiler
@on_cpu
def test_a_kernel_that_may_begin_early_is_launched_with_the_attribute(driver):
    driver.set(parameters=6)  # x, bias, out, elements, and Triton's two
    early = early_op("recorded_early")
    x, bias = torch.randn(3, 64), torch.randn(64)
    out = early(x, bias)
    (launch,) = driver.launches()
    assert (tuple(launch.grid), tuple(launch.block), launch.kind) == ((1, 1, 1), (128, 1, 1), cubin.EARLY)
    assert list(launch.parameters[:4]) == [x.data_ptr(), bias.data_ptr(), out.data_ptr(), 192]
    # A GPU before Hopper has no such launch, nor its kernel the instruction.
    driver.set(capability=80)
    recorder = plan.Recorder(3, torch.device("cpu"), 80)
    with recording(recorder):
        triton_launch.forward(*(plan.StandIn(i, (3, 64), torch.float32) for i in range(3)))
    assert recorder.launches[0][6] == cubin.PLAIN


@needs_compiler
@on_cpu
def test_the_launches_of_one_plan_follow_the_length_of_ragged_tensors(driver, monkeypatch):
    functions = triton_functions("toy_ragged.kernels")

    def forward(ids, out):
        count = ids.numel()
        sums = empty((cdiv(count, 32), 4), torch.float32, ids)
        functions.sums[(1, cdiv(count, 32))](ids, out, sums, count, 2 * count - 1, MANY=count >= 1000)

    numbers = {}

    def function(kernel, device):
        number = numbers.setdefault(kernel, 1 + len(numbers))
        return number, cubin.Compiled("", "", threads=128, shared=0, parameters=5, kind=cubin.PLAIN)

    monkeypatch.setitem(sys.modules, "toy_ragged.triton_launch", SimpleNamespace(forward=forward))
    monkeypatch.setattr(plan, "_function", function)
    op = Op("toy_ragged", "(Ragged ids) -> Tensor out", eager=None,
            outputs={"out": lambda arguments: ((arguments["ids"].numel(), 2), torch.float32)}, package="toy_ragged")
    op.loader.declare("triton", "cpu", "")
    driver.set(parameters=5)
    allocated = []

    def allocate(shape, dtype, device):
        allocated.append(tuple(shape))
        return torch.empty(shape, dtype=dtype)

    for count in (48, 64, 65, 33, 160, 100_000, 100_001):
        with allocation.replaced(allocate):
            op.overload("triton")(torch.zeros(count, dtype=torch.int64))
        launch = driver.launches()[-1]
        assert allocated[-2:] == [(count, 2), (cdiv(count, 32), 4)]
        assert list(launch.grid) == [1, cdiv(count, 32), 1]
        assert list(launch.parameters[3:5]) == [count, 2 * count - 1]
        (kernel,) = (kernel for kernel, number in numbers.items() if number == launch.function)
        assert kernel.types[3:] == ("i32", "i32")
        assert dict(kernel.constants) == {"MANY": count >= 1000}
    assert len(numbers) == 2, "few and many; whether 16 divides their number makes no other kernel"


@needs_compiler
@on_cpu
def test_a_float64_keeps_its_digits_and_a_none_is_no_parameter(driver):
    driver.set(parameters=6)
    sgd, moments = RECORDED["toy_sgd_"].overload("triton"), RECORDED["toy_moments"].overload("triton")
    weights = torch.randn(40, dtype=torch.float64)
    sgd(weights, weights.clone(), torch.tensor(0.1, dtype=torch.float64))
    bits = driver.launches()[0].parameters[2]
    assert struct.unpack("<d", struct.pack("<q", bits))[0] == 0.1
    x = torch.randn(40)
    doubled, squared = moments(x, None)
    assert list(driver.launches()[1].parameters[:4]) == [x.data_ptr(), doubled.data_ptr(), squared.data_ptr(), 40]


@needs_compiler
@on_cpu
def test_a_wrong_number_of_arguments_is_an_error_of_its_own(driver):
    driver.set(parameters=7)
    with pytest.raises(RuntimeError, match="the kernel sgd_kernel takes 7 parameters, and is given 6"):
        RECORDED["toy_sgd_"].overload("triton")(torch.ones(17), torch.ones(17), torch.tensor(1.0))
    kernel = cubin.Kernel("toy_ops.triton_kernel", "sgd_kernel", ("*fp32",), (("BLOCK", 64),), 90)
    with pytest.raises(RuntimeError, match=r"sgd_kernel takes 4 arguments .*the launch gives 1"):
        cubin.compiled(kernel)


@needs_compiler
@on_cpu
def test_errors_of_the_driver_are_named(driver, tmp_path, monkeypatch):
    kernel = cubin.Kernel(
        "toy_ops.triton_kernel", "sgd_kernel", ("*fp32:16", "*fp32:16", "fp32", "i32"), (("BLOCK", 64),), 90
    )
    compiled = cubin.compiled(kernel, tmp_path)
    load = torch.ops.fused_kernels._load_cubin
    driver.set(parameters=compiled.parameters)
    answers = ((209, "no image of it is for this GPU, sm_90: .*NO_BINARY_FOR_GPU"), (1, "does not load.*damaged"))
    for result, message in answers:
        driver.set(load_result=result)
        with pytest.raises(RuntimeError, match=message):
            load(compiled.path, compiled.name, compiled.shared, compiled.parameters)
    driver.set(load_result=0, function_result=500)
    with pytest.raises(RuntimeError, match="has no kernel sgd_kernel"):
        load(compiled.path, compiled.name, compiled.shared, compiled.parameters)
    driver.set(function_result=0)
    load(compiled.path, compiled.name, 48 * 1024, compiled.parameters)
    assert driver.attribute == 0
    load(compiled.path, compiled.name, 100_000, compiled.parameters)
    assert (driver.attribute, driver.attribute_value) == (8, 100_000)
    driver.set(attribute_result=1)
    with pytest.raises(RuntimeError, match="needs 300000 bytes of shared memory a block, more than this GPU has"):
        load(compiled.path, compiled.name, 300_000, compiled.parameters)
    with pytest.raises(RuntimeError, match="is missing or empty"):
        load(str(tmp_path / "nowhere"), compiled.name, 0, compiled.parameters)
    driver.set(parameters=6, launch_result=719, attribute_result=0)
    with pytest.raises(RuntimeError, match=r"1×1×1 blocks of 128 threads.*failed: CUDA_ERROR_FAKE"):
        RECORDED["toy_sgd_"].overload("triton")(torch.ones(33), torch.ones(33), torch.tensor(1.0))


def weighted_op(name: str) -> Op:
    return Op(
        name, "(Ragged[] lists, int weight) -> Tensor out", eager=None,
        outputs={"out": lambda arguments: ((len(arguments["lists"]),), torch.float32)}, backends=("cuda",), auto="cuda",
        generates=True, package="toy_ops.weighted",
    )


@needs_compiler
@on_cpu
def test_generated_source_runs_on_the_host():
    op = weighted_op("toy_weighted_on_host")
    lists = [torch.randn(5), torch.randn(4, 3)[:, 1], torch.randn(0)]
    torch.testing.assert_close(call(op, "cuda", lists, 3), torch.stack([3 * tensor.sum() for tensor in lists]))
    with pytest.raises(RuntimeError, match='backend="cuda" does not run here: it needs a CUDA device'):
        op.call("cuda", lists, 3)


@needs_compiler
@on_cpu
@pytest.mark.skipif(nvrtc.why_not() != "", reason=f"no NVRTC: {nvrtc.why_not()}")
def test_generated_source_gets_its_struct_in_one_parameter(driver, monkeypatch):
    op = weighted_op("toy_weighted_recorded")
    op.loader.declare("cuda", "cpu", "")
    plans, record = [], plan.record
    monkeypatch.setattr(plan, "record", lambda *arguments, **named: plans.append(1) or record(*arguments, **named))
    driver.set(parameters=1)
    op.overload("cuda")([torch.randn(5), torch.randn(3)], 7)
    driver.set(parameters=8)  # what the fake driver looks at: the members lie one behind the other
    for count in (5, 9, 1000):
        first, second = torch.randn(count), torch.randn(count + 1, 3)[:, 2]
        out = op.overload("cuda")([first, second], 7)
        launch = driver.launches()[-1]
        assert (tuple(launch.grid), tuple(launch.block), launch.kind) == ((2, 1, 1), (1, 1, 1), cubin.PLAIN)
        lists, strides, elements = [first.data_ptr(), second.data_ptr()], [1, 3], [count, count + 1]
        assert list(launch.parameters[:8]) == [*lists, *strides, *elements, 7, out.data_ptr()]
    assert len(plans) == 1, "neither lengths nor strides make another plan"


@on_cpu
def test_a_damaged_cache_is_named(tmp_path):
    kernel = cubin.Kernel(
        "toy_ops.triton_kernel", "sgd_kernel", ("*fp32:16", "*fp32:16", "fp32", "i32"), (("BLOCK", 64),), 90
    )
    path = Path(cubin.compiled(kernel, tmp_path).path)
    (description,) = tmp_path.glob("*.json")
    image, text = path.read_bytes(), description.read_text()
    path.write_bytes(image[:1000])
    with pytest.raises(RuntimeError, match=rf"truncated, 1000 of {len(image)} bytes: remove .*json"):
        cubin.compiled(kernel, tmp_path)
    path.write_bytes(image[:-1] + b"x")
    with pytest.raises(RuntimeError, match="was changed: remove"):
        cubin.compiled(kernel, tmp_path)
    path.write_bytes(image)
    description.write_text(json.dumps(json.loads(text) | {"arch": 80}))
    with pytest.raises(RuntimeError, match="is for sm_80, this GPU is sm_90"):
        cubin.compiled(kernel, tmp_path)
    description.write_text(text[:50])
    with pytest.raises(RuntimeError, match="cannot be read"):
        cubin.compiled(kernel, tmp_path)
    description.unlink()
    assert cubin.compiled(kernel, tmp_path).name == "sgd_kernel"


@on_cpu
def test_a_cubin_is_found_by_everything_that_it_is_specialised_on(tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr(cubin, "_compile_here_or_there", lambda kernel, stem: names.append(stem.name))
    monkeypatch.setattr(cubin, "read", lambda stem, arch: None)
    base = {"module": "toy_ops.triton_kernel", "name": "sgd_kernel", "types": ("*fp32:16",), "constants": ()}
    base["arch"] = 90
    others = ({"types": ("*fp32",)}, {"types": ("*fp64:16",)}, {"constants": (("BLOCK", 64),)}, {"arch": 80},
              {"constants": (("BLOCK", 64), ("num_warps", 8))}, {"name": "moments_kernel"})
    for other in ({}, *others):
        cubin.compiled(cubin.Kernel(**base | other), tmp_path)
    monkeypatch.setattr(cubin, "_triton_version", lambda: "0.0")
    cubin.compiled(cubin.Kernel(**base), tmp_path)
    monkeypatch.setattr(cubin, "_source_sha256", lambda module: "changed")
    cubin.compiled(cubin.Kernel(**base), tmp_path)
    assert len(set(names)) == len(names) == len(others) + 3


def test_a_launcher_cannot_compute_with_a_number_that_changes():
    with pytest.raises(TypeError, match="must not compute with a number that changes"):
        float(plan.ScalarStandIn(0, False))
    recorder = plan.Recorder(1, torch.device("cpu"), 90)
    with pytest.raises(TypeError, match="an argument of type str"):
        recorder.launch("toy_ops.triton_kernel", "sgd_kernel", (1,), ("text",), {})


# ------------------------------------------------------------------------------------------------------------------
# On a GPU.

CAPTURE = """
import sys, torch, kernels
backend = sys.argv[1]
x, y = torch.randn(2, 300, 1023, device="cuda")
bias = torch.randn(1023, device="cuda")
multiplier = torch.tensor(0.5, device="cuda")
with torch.no_grad():
    kernels.add_mul_activation(x, bias, y, multiplier, "gelu", backend=backend)  # the one warm-up call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernels.add_mul_activation(x, bias, y, multiplier, "gelu", backend=backend)
    x.normal_(), multiplier.fill_(-2.0), out.fill_(float("nan"))
    graph.replay()
    torch.testing.assert_close(out, torch.nn.functional.gelu(x - 2 * y + bias))
    try:  # of a shape whose kernel was not loaded, where nothing can be
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            kernels.add_mul_activation(x[:, :77], bias[:77], y[:, :77], multiplier, "tanh", backend=backend)
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.skipif(runtime.device().type != "cuda", reason="no CUDA device")
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_capture_after_one_call_in_a_fresh_process(backend):
    done = subprocess.run(
        [sys.executable, "-c", CAPTURE, backend], cwd=TESTS.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if backend == "triton":
        assert "cannot be while a CUDA graph is captured: call the op once before" in done.stdout


@pytest.mark.skipif(runtime.device().type != "cuda", reason="no CUDA device")
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_autograd_of_cuda_tensors_is_the_cores_and_not_pythons(backend):
    x, bias = torch.randn(6, 8, device="cuda", requires_grad=True), torch.randn(8, device="cuda")
    assert kernels.add_relu(x, bias, backend=backend).grad_fn.name() == "fused_kernels::add_relu_backward"


@pytest.mark.skipif(runtime.device().type != "cuda", reason="no CUDA device")
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_a_thread_that_has_called_nothing_of_cuda_launches(backend):
    x, bias = torch.randn(6, 8, device="cuda"), torch.randn(8, device="cuda")
    want = kernels.add_relu(x, bias, backend=backend).clone()
    outputs = []
    thread = threading.Thread(target=lambda: outputs.append(kernels.add_relu(x, bias, backend=backend)))
    thread.start()
    thread.join()
    assert torch.equal(outputs[0], want)
