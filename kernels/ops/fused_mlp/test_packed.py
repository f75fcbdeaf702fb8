"""PackedMLP: fused_mlp's results and gradients, in one tensor; and when a call is not its own."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import distributed, nn

from ... import fused_mlp, pack_mlp, runtime
from ...check.contract import DEVICE
from . import choice
from .op import OP
from .packed import PackedMLP, is_packed

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
