"""PackedMLP: fused_mlp's results and gradients, in one tensor; and when a call is not its own."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import distributed, nn
from torch._subclasses import FakeTensorMode

from ... import fused_mlp, pack_mlp, runtime
from ...check.contract import DEVICE
from . import choice, update
from . import packed as packed_module
from .op import OP
from .packed import PackedMLP, gradients_of, is_packed, packed_together, step_by

MODULE = PackedMLP.__module__
TRITON = runtime.why_not("triton", DEVICE.type)
KERNEL = pytest.param("triton", marks=pytest.mark.skipif(bool(TRITON), reason=TRITON))
BACKENDS = ("eager", KERNEL)


def layers():
    torch.manual_seed(0)
    return [nn.Linear(13, 20).to(DEVICE), nn.Linear(20, 5).to(DEVICE)]


def of(linears):
    return [linear.weight for linear in linears], [linear.bias for linear in linears]


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_and_gradients_are_fused_mlps(backend):
    """To the bit; the padding has the gradient zero."""
    theirs, ours = layers(), layers()
    packed = PackedMLP(ours)
    pack_mlp(nn.ModuleList(theirs))  # eager's sums go by a weight's strides
    x = torch.randn(9, 14, device=DEVICE)  # wider than the first layer
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    assert packed.takes(ours, inputs[1], backend)
    expected = fused_mlp(inputs[0], *of(theirs), backend=backend)
    actual = packed(inputs[1], backend=backend)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    for out in (expected, actual):
        (out * out).sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, rtol=0, atol=0)
    weights, biases = of(theirs)
    for gradient, parameter in zip(packed.split(packed.buffer.grad), (*weights, *biases), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=0)
    assert torch.equal(packed.joined(packed.split(packed.buffer.grad)), packed.buffer.grad)
    for gradient, parameter in zip(packed.split(packed.buffer.grad), packed.parameters, strict=True):
        assert parameter.grad.data_ptr() == gradient.data_ptr()
        assert torch.equal(parameter.grad, gradient)


def test_the_parameters_change_with_the_buffer():
    ours = layers()
    before = [parameter.detach().clone() for parameter in of(ours)[0]]
    packed = PackedMLP(ours)
    torch.testing.assert_close(of(ours)[0], before, rtol=0, atol=0)
    with torch.no_grad():
        packed.buffer.mul_(2)
    torch.testing.assert_close(of(ours)[0], [2 * weight for weight in before], rtol=0, atol=0)


def test_a_weight_that_is_changed_before_the_backward_is_refused():
    for change in (lambda packed: packed.weights[1].add_(1), lambda packed: packed.buffer.add_(1)):
        packed = PackedMLP(layers())
        out = packed(torch.randn(3, 13, device=DEVICE), backend="eager")
        with torch.no_grad():
            change(packed)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def replaced(ours):
    ours[0].weight = nn.Parameter(ours[0].weight.detach().clone())


CHANGES = {
    "moved": lambda ours: ours[1].double().float(),
    "replaced": replaced,
    "frozen": lambda ours: ours[1].bias.requires_grad_(False),
    "hook": lambda ours: ours[0].register_forward_hook(lambda *_: None),
    "hook of a gradient": lambda ours: ours[0].weight.register_hook(lambda grad: grad),
    "hook behind a gradient": lambda ours: ours[1].bias.register_post_accumulate_grad_hook(lambda parameter: None),
    "forward": lambda ours: setattr(ours[0], "forward", lambda x: x),
    "another layer": lambda ours: ours.__setitem__(1, nn.Linear(32, 5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_longer_its_own_it_does_not_take(change):
    ours, x = layers(), torch.randn(3, 13, device=DEVICE)
    packed = PackedMLP(ours)
    assert packed.takes(ours, x, "eager")
    CHANGES[change](ours)
    assert not packed.takes(ours, x, "eager")


def test_when_it_takes_no_call():
    ours, x = layers(), torch.randn(3, 13, device=DEVICE)
    packed = PackedMLP(ours)
    assert not packed.takes(ours, x[0], "eager")
    assert not packed.takes(copy.deepcopy(ours), x, "eager")
    assert packed.takes(ours, x, "auto") is x.is_cuda
    with torch.no_grad():
        assert not packed.takes(ours, x, "eager")


def test_within_a_transform_of_torch_func_it_takes_no_call():
    ours, x = layers(), torch.randn(3, 13, device=DEVICE)
    packed, results = PackedMLP(ours), []

    def function(x):
        results.append(packed.takes(ours, x, "eager"))
        return fused_mlp(x, *of(ours), backend="eager").sum()

    torch.func.grad(function)(x)
    function(x)
    assert results == [False, True]


def test_several_processes_average_the_gradients_of_parameters(monkeypatch):
    ours, x = layers(), torch.randn(3, 13, device=DEVICE)
    packed = PackedMLP(ours)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    for count, is_taken in ((1, True), (2, False)):
        monkeypatch.setattr(distributed, "get_world_size", lambda count=count: count)
        assert packed.takes(ours, x, "eager") is is_taken


@pytest.mark.parametrize(
    ("rows", "widths", "backend", "taken"),
    [
        (8192, "367-512-256-1", "cuda", True),
        (8320, "367-512-256-1", "cuda", False),  # the GPU's time counts
        (1024, "479-1024-1024-512-256-1", "cuda", True),
        (2048, "367-512-256-1", "triton", True),
        (2112, "367-512-256-1", "triton", False),  # whose forward takes four times as long
        (2048, "367-512-256-1", "eager", False),  # no kernel takes it
    ],
)
def test_full_float32_is_one_kernel_while_a_step_waits_for_the_host(monkeypatch, rows, widths, backend, taken):
    asked, gpu = [], torch.device("cuda")
    monkeypatch.setattr(choice, "kernel_of", lambda *arguments: asked.append(arguments) or backend)
    assert is_packed(rows, widths, torch.float32, "ieee", gpu, "auto") is taken
    assert asked == [(rows, widths, torch.float32, "ieee", True, gpu)]
    assert is_packed(10 * rows, widths, torch.float32, "tf32", gpu, "auto") is (backend != "eager")
    assert not is_packed(rows, widths, torch.float32, "ieee", torch.device("cpu"), "auto")


@pytest.mark.parametrize("backend", ["cuda", "triton", "eager"])
def test_full_float32_is_computed_by_the_kernel_that_is_packed_asked_for(monkeypatch, backend):
    """OP's own "auto" is eager there."""
    called, packed = [], PackedMLP(layers())
    with FakeTensorMode():
        x = torch.empty(3, 13, device="cuda")
    monkeypatch.setattr(f"{MODULE}.autocast", lambda _: x)
    monkeypatch.setattr(f"{MODULE}.precision_of", lambda _: "ieee")
    monkeypatch.setattr(choice, "kernel_of", lambda *arguments: backend)
    monkeypatch.setattr(OP, "call", lambda *arguments: called.append(arguments) or (packed.buffer, packed.buffer))
    packed(x)
    packed(x, backend="triton")
    assert [arguments[0] for arguments in called] == [backend, "triton"]


@pytest.mark.parametrize(
    ("dtype", "precision", "backend"),
    [
        (torch.float32, "tf32", "auto"),
        (torch.bfloat16, "ieee", "auto"),
        (torch.float64, "ieee", "auto"),
        (torch.float32, "ieee", "triton"),
    ],
)
def test_all_else_is_one_kernel_where_mlp_takes_one(monkeypatch, dtype, precision, backend):
    asked, rows, gpu = [], 10**6, torch.device("cuda")
    monkeypatch.setattr(f"{MODULE}.is_chosen", lambda *arguments: asked.append(arguments) or True)
    assert is_packed(rows, "367-512-256-1", dtype, precision, gpu, backend)
    assert asked == [(rows, "367-512-256-1", dtype, precision, True, gpu, backend)]


def test_a_call_is_judged_and_computed_as_autocast_and_the_precision_have_it(monkeypatch):
    asked, called, call = [], [], OP.call
    monkeypatch.setattr(f"{MODULE}.precision_of", lambda x: "tf32")
    monkeypatch.setattr(f"{MODULE}.is_packed", lambda *arguments: asked.append(arguments) or True)
    monkeypatch.setattr(OP, "call", lambda *arguments: called.append(arguments) or call(*arguments))
    ours, x = layers(), torch.randn(3, 13, device=DEVICE)
    packed = PackedMLP(ours)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert packed.takes(ours, x, "eager")
        out = packed(x, backend="eager")
    assert asked == [(3, "13-20-5", torch.bfloat16, "tf32", x.device, "eager")]
    assert out.dtype == torch.bfloat16
    ((_, cast, _, _, _, _, precision, keep),) = called
    assert (cast.dtype, precision, keep) == (torch.bfloat16, "tf32", True)


def test_a_graph_that_torch_compile_traces_takes_no_call():
    ours, x = layers(), torch.randn(3, 13, device=DEVICE)
    packed = PackedMLP(ours)
    assert torch.compile(lambda x: x + packed.takes(ours, x, "eager"), backend="eager", fullgraph=True)(x).equal(x)


def test_gradients_that_went_to_the_parameters_are_the_buffers():
    ours = layers()
    packed = PackedMLP(ours)
    packed.take_gradients()
    assert packed.buffer.grad is None
    expected = packed.joined([torch.randn_like(parameter) for parameter in packed.parameters])
    for parameter, gradient in zip(packed.parameters, packed.split(expected), strict=True):
        parameter.grad = gradient.clone()
    packed.take_gradients()
    torch.testing.assert_close(packed.buffer.grad, expected, rtol=0, atol=0)
    packed.parameters[0].grad.zero_()
    assert not packed.buffer.grad[: packed.parameters[0].numel()].any()
    packed.buffer.grad = expected.clone()
    packed.take_gradients()
    torch.testing.assert_close(packed.parameters[1].grad, packed.split(expected)[1], rtol=0, atol=0)
    packed.parameters[2].grad = None
    with pytest.raises(RuntimeError, match=r"the parameter of shape \[20\] has no gradient, and others"):
        packed.take_gradients()
    packed.forget_gradients()
    assert all(tensor.grad is None for tensor in (packed.buffer, *packed.parameters))
    ours[0].double()
    ours[0].weight.grad = torch.zeros_like(ours[0].weight)
    with pytest.raises(RuntimeError, match="a parameter was moved or frozen since it was laid out"):
        packed._gather()


def test_it_goes_with_the_last_reference():
    """The buffer, whose hooks call it, does not keep it, and is trained on."""
    packed = PackedMLP(layers())
    out = packed(torch.randn(3, 13, device=DEVICE), backend="eager")
    gone, buffer = weakref.ref(packed), packed.buffer
    del packed
    assert gone() is None
    out.sum().backward()
    assert buffer.grad.any()


# --------------------------------------------------------------------- operands that a backward leaves to the optimizer


@pytest.fixture
def steps(monkeypatch):
    """The widths of each launch of a step. None is made: here it counts who is asked to take what."""
    if TRITON:
        pytest.skip(TRITON)
    asked = []
    monkeypatch.setattr(update, "runs", lambda *_: True)
    monkeypatch.setattr(update.STEP, "call", lambda *arguments: asked.append(arguments[-1]))
    return asked


def leaving(linears=None):
    packed = PackedMLP(linears or layers())
    packed.leaves_operands = True
    return packed


def left(packed, rows=3):
    """x of a backward that has left its operands."""
    x = torch.randn(rows, 13, device=DEVICE)
    packed(x, backend="triton").sum().backward()
    assert packed.operands is not None
    return x


def sgd(mlps):
    step_by("sgd", mlps, torch.tensor(0.1, device=DEVICE), 0.0)


def adagrad(packed, state):
    step_by("adagrad", [packed], torch.tensor(0.1, device=DEVICE), 0.0, 1e-10, [state])


@pytest.mark.parametrize(
    "of_x", [lambda out, x: torch.autograd.grad(out, x, retain_graph=True),
             lambda out, x: out.backward(inputs=[x], retain_graph=True)],
)
def test_a_backward_of_x_alone_leaves_nothing(steps, of_x):
    packed = leaving()
    x = torch.randn(3, 13, device=DEVICE, requires_grad=True)
    out = packed(x, backend="triton").sum()
    of_x(out, x)
    assert packed.operands is None
    out.backward()
    assert packed.operands is not None


WRONG = {
    "shorter": (lambda packed, _: adagrad(packed, torch.zeros_like(packed.buffer)[:16]), "states.0. must have shape"),
    "strided": (lambda packed, _: adagrad(packed, packed.buffer.detach().repeat(2)[::2]), "must be contiguous"),
    "expanded": (
        lambda packed, _: adagrad(packed, packed.buffer.detach()[:1].expand_as(packed.buffer)), "must be contiguous"
    ),
    "another dtype": (lambda packed, _: adagrad(packed, packed.buffer.detach().double()), "buffer's dtype"),
    "twice": (lambda packed, _: sgd([packed, packed]), "got one twice"),
    "moved": (lambda packed, _: (packed.linears[0].double().float(), sgd([packed])), "was moved or frozen"),
    "x": (lambda packed, x: (x.zero_(), sgd([packed])), "x was modified by an inplace operation"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_step_cannot_take_it_refuses(steps, case):
    packed, (change, message) = leaving(), WRONG[case]
    x = left(packed)
    with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
        change(packed, x)
    assert steps == []
    assert packed.operands is not None


def test_gradients_beside_operands_are_not_lost(steps):
    packed = PackedMLP(layers())
    packed(torch.randn(3, 13, device=DEVICE), backend="triton").sum().backward()
    packed.leaves_operands, before = True, packed.buffer.grad.clone()
    left(packed)
    with pytest.raises(RuntimeError, match="there is a gradient beside them"):
        gradients_of([packed])
    assert torch.equal(packed.buffer.grad, before)


def test_where_auto_is_eager_a_backward_is_the_ordinary_one(steps, monkeypatch):
    monkeypatch.setattr(OP, "auto", lambda *_: "eager")
    monkeypatch.setattr(packed_module, "backend_of", lambda *_: "auto")  # in full float32 a GPU's is a kernel
    packed = leaving()
    packed(torch.randn(3, 13, device=DEVICE)).sum().backward()
    assert packed.operands is None
    assert packed.buffer.grad.any()


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_of_the_buffer_sees_its_gradient(steps, register):
    packed, seen = leaving(), []
    out = packed(torch.randn(3, 13, device=DEVICE), backend="triton")
    getattr(packed.buffer, register)(seen.append)
    with pytest.raises(RuntimeError, match="the buffer was given a hook behind the forward"):
        out.sum().backward()
    packed(torch.randn(3, 13, device=DEVICE), backend="triton").sum().backward()
    assert seen
    assert packed.operands is None
    assert packed.buffer.grad.any()


def test_what_no_launch_took_can_be_taken_again(steps, monkeypatch):
    mlps = [leaving(), leaving()]

    def out_of_memory(*arguments):
        if steps:
            raise RuntimeError("out of memory")
        steps.append(arguments[-1])

    with monkeypatch.context() as patch:
        patch.setattr(update.STEP, "call", out_of_memory)
        for packed in mlps:
            left(packed)
        with pytest.raises(RuntimeError, match="out of memory"):
            sgd(mlps)
    assert [packed.operands is None for packed in mlps] == [True, False]
    sgd(mlps)
    assert steps == ["13-20-5"] * 2
    assert mlps[1].operands is None


def test_operands_keep_no_graph(steps):
    packed = leaving()
    x = nn.Linear(4, 13, device=DEVICE)(torch.randn(3, 4, device=DEVICE))
    packed(x, backend="triton").sum().backward()
    assert not any(tensor.requires_grad for tensor in packed.operands[:3])
    assert packed.operands.x.data_ptr() == x.data_ptr()
    another = copy.deepcopy(packed)
    another.forget_gradients()
    another(x.detach(), backend="triton").sum().backward()  # as a copy has no hooks, its gradient is the ordinary one
    assert another.operands is None
    assert another.buffer.grad.any()


def test_who_saved_a_parameter_knows_of_a_step(steps):
    packed = leaving()
    left(packed)
    x = torch.randn(3, 13, device=DEVICE, requires_grad=True)
    out = nn.functional.linear(x, packed.weights[0]).sum()
    sgd([packed])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize(
    ("rows", "together", "launches"),
    [((3, 3), True, ["13-20-5 13-20-5"]), ((3, 4), True, ["13-20-5"] * 2), ((3, 3), False, ["13-20-5"] * 2)],
)
def test_a_launch_is_of_mlps_of_as_many_rows_that_lie_together(steps, rows, together, launches):
    mlps = packed_together([layers(), layers()]) if together else [leaving(), leaving()]
    for packed, count in zip(mlps, rows, strict=True):
        packed.leaves_operands = True
        left(packed, count)
    states = [torch.zeros_like(packed.buffer) for packed in mlps]
    sgd(mlps)
    assert steps == launches
    for packed, count in zip(mlps, rows, strict=True):
        left(packed, count)
    step_by("adagrad", mlps, torch.tensor(0.1, device=DEVICE), 0.0, 1e-10, states)
    assert steps == launches + ["13-20-5"] * 2  # whose states lie apart
