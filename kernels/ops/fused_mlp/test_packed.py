"""PackedMLP: fused_mlp's results and gradients, in one tensor; and when a call is not its own."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ... import fused_mlp, runtime
from ...check.contract import DEVICE
from . import eager, layered, packing
from .packed import PackedMLP

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
    x = torch.randn(9, 14, device=DEVICE)  # wider than the first layer
    given = [x.clone().requires_grad_() for _ in range(2)]
    assert packed.takes(ours, given[1], backend)
    expected = fused_mlp(given[0], *of(theirs), backend=backend)
    found = packed(given[1], backend=backend)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for out in (expected, found):
        (out * out).sum().backward()
    torch.testing.assert_close(given[1].grad, given[0].grad, rtol=0, atol=0)
    weights, biases = of(theirs)
    for gradient, parameter in zip(packed.split(packed.buffer.grad), (*weights, *biases), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=0)
    assert torch.equal(packed.joined(packed.split(packed.buffer.grad)), packed.buffer.grad)
    assert all(parameter.grad is None for parameter in packed.parameters)


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


@pytest.fixture
def one_by_one(monkeypatch):
    """As on a GPU in full float32."""
    monkeypatch.setattr(layered, "takes", lambda dtype, device, backend: backend == "auto")
    monkeypatch.setattr(PackedMLP, "_is_one_kernel", lambda *_: False)


def by_autograd(x, linears, activation, final_activation):
    weights, biases = of(linears)
    return eager.fused_mlp(x, weights, biases, activation, final_activation)


def one_node(packed, x, *activations):
    views = layered.wide(packed.buffer.detach(), packed.widths, layered.columns_of(x, packed.widths))
    return layered.Layered.apply(x, packed.buffer, views, packed.widths, *activations)


@pytest.mark.parametrize("activations", list(itertools.product(layered.ACTIVATIONS, repeat=2)))
@pytest.mark.parametrize("rows", [0, 1, 9])
@pytest.mark.parametrize("columns", [13, 14, 16, 21])
def test_layers_one_by_one(activations, rows, columns):
    """As autograd computes them, whatever rows of x are filled up with; the padding has no gradient."""
    theirs, ours = layers(), layers()
    packed = PackedMLP(ours)
    given = [torch.randn(rows, columns, device=DEVICE).requires_grad_()]
    given.append(given[0].detach().clone().requires_grad_())
    expected = by_autograd(given[0], theirs, *activations)
    found = one_node(packed, given[1], *activations)
    torch.testing.assert_close(found, expected)
    for out in (expected, found):
        (out * out).sum().backward()
    torch.testing.assert_close(given[1].grad, given[0].grad)
    weights, biases = of(theirs)
    for gradient, parameter in zip(packed.split(packed.buffer.grad), (*weights, *biases), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
    assert torch.equal(packed.joined(packed.split(packed.buffer.grad)), packed.buffer.grad)


def test_one_by_one_the_first_columns_count_alone(one_by_one):
    """But where the caller says that the others are zeros, so that aligned rows may be read."""
    ours, x = layers(), torch.randn(3, 16, device=DEVICE)
    packed, expected = PackedMLP(ours), by_autograd(x, ours, "relu", "identity")
    x[:, 13:] = torch.nan
    torch.testing.assert_close(packed(x), expected)
    assert packed(x, zeros=True).isnan().all()
    x[:, 13:] = 0
    torch.testing.assert_close(packed(x, zeros=True), expected)
    assert sorted(packed._views) == [13, 16]


def test_one_by_one_refuses_what_the_op_does(one_by_one):
    packed = PackedMLP(layers())
    with pytest.raises(ValueError, match=r"x must have shape \[B, 13\] or be wider, .* got \[3, 12\]"):
        packed(torch.randn(3, 12, device=DEVICE))
    with pytest.raises(TypeError, match="weights must have x's dtype, float64; got float32"):
        packed(torch.randn(3, 13, device=DEVICE, dtype=torch.float64))
    with pytest.raises(ValueError, match="final_activation must be"):
        packed(torch.randn(3, 13, device=DEVICE), "relu", "tanh")


def test_the_views_are_those_of_a_buffer_wherever_it_lies():
    widths = "13-20-5"
    buffer = torch.randn(7 + packing.elements(widths), device=DEVICE)[7:]
    views = layered.wide(buffer, widths, 16)
    expected = packing.views(buffer, widths)
    assert [weight.shape for weight, _ in views] == [(20, 16), (5, 20)]
    for (weight, bias), (other, bias_of_other) in zip(views, expected, strict=True):
        assert torch.equal(weight[:, : other.shape[1]], other)
        assert torch.equal(bias, bias_of_other)


def test_layers_one_by_one_pass_nan_and_have_no_second_derivative():
    packed, x = PackedMLP(layers()), torch.randn(3, 13, device=DEVICE)
    x[1, 2] = torch.nan
    out = one_node(packed, x, "relu", "relu")
    assert out.isnan().any(1).tolist() == [False, True, False]
    (gradient,) = torch.autograd.grad(out.square().sum(), packed.buffer, create_graph=True)
    assert packed.split(gradient)[0].isnan().any()
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("activation", layered.ACTIVATIONS)
def test_one_by_one_a_backward_under_autocast_is_float32(activation):
    gradients = []
    for is_on in (False, True):
        packed, x = PackedMLP(layers()), torch.randn(3, 13, device=DEVICE, generator=seeded()).requires_grad_()
        out = one_node(packed, x, activation, "identity")
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=is_on):
            out.sum().backward()
        gradients.append((x.grad, packed.buffer.grad))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


def seeded():
    return torch.Generator(DEVICE).manual_seed(0)


def test_one_by_one_a_result_that_no_backward_reads_may_be_written_to():
    packed, x = PackedMLP(layers()), torch.randn(3, 13, device=DEVICE)
    one_node(packed, x, "relu", "identity").mul_(2).sum().backward()
    gradient, packed.buffer.grad = packed.buffer.grad, None
    (2 * one_node(packed, x, "relu", "identity")).sum().backward()
    torch.testing.assert_close(gradient, packed.buffer.grad, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        one_node(packed, x, "relu", "relu").mul_(2).sum().backward()


class Products(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.mm.out)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("has_gradient", [False, True])
def test_one_by_one_an_x_without_a_gradient_costs_no_product(has_gradient):
    x = torch.randn(3, 13, device=DEVICE).requires_grad_(has_gradient)
    out = one_node(PackedMLP(layers()), x, "relu", "relu").sum()
    with Products() as products:
        out.backward()
    assert products.count == 3 + has_gradient  # of two layers


def test_within_a_transform_of_torch_func_it_takes_no_call(one_by_one):
    ours, x = layers(), torch.randn(3, 13, device=DEVICE)
    packed, taken = PackedMLP(ours), []

    def function(x):
        taken.append(packed.takes(ours, x))
        return by_autograd(x, ours, "relu", "identity").sum()

    torch.func.grad(function)(x)
    function(x)
    assert taken == [False, True]


def test_several_processes_average_the_gradients_of_parameters(one_by_one, monkeypatch):
    ours, x = layers(), torch.randn(3, 13, device=DEVICE)
    packed = PackedMLP(ours)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    for count, taken in ((1, True), (2, False)):
        monkeypatch.setattr(distributed, "get_world_size", lambda count=count: count)
        assert packed.takes(ours, x) is taken


@pytest.mark.parametrize("final_activation", ["identity", "relu", "sigmoid"])
def test_what_one_kernel_does_not_compute_goes_one_by_one(one_by_one, final_activation):
    theirs, ours = layers(), layers()
    packed, x = PackedMLP(ours), torch.randn(7, 13, device=DEVICE)
    assert packed.takes(ours, x)
    assert not packed.takes(ours, x, "eager")
    found, expected = packed(x, "relu", final_activation), by_autograd(x, theirs, "relu", final_activation)
    torch.testing.assert_close(found, expected)
    assert ("Layered" in type(found.grad_fn).__name__) is (final_activation in layered.ACTIVATIONS)
    for out in (expected, found):
        out.square().sum().backward()
    torch.testing.assert_close(packed.split(packed.buffer.grad)[0], theirs[0].weight.grad)
    for changed in (packed.weights[1], packed.buffer):
        out = packed(x, "relu", final_activation)
        with torch.no_grad():
            changed.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_what_one_kernel_computes_goes_into_it(one_by_one, monkeypatch):
    monkeypatch.setattr(PackedMLP, "_is_one_kernel", lambda *_: True)
    out = PackedMLP(layers())(torch.randn(7, 13, device=DEVICE))
    assert "Layered" not in type(out.grad_fn).__name__


def test_gradients_that_went_to_the_parameters_are_added():
    ours = layers()
    packed = PackedMLP(ours)
    packed.take_gradients()
    assert packed.buffer.grad is None
    expected = packed.joined([torch.randn_like(parameter) for parameter in packed.parameters])
    for times in (1, 2):
        for parameter, gradient in zip(packed.parameters, packed.split(expected), strict=True):
            parameter.grad = gradient.clone()
        packed.take_gradients()
        torch.testing.assert_close(packed.buffer.grad, times * expected, rtol=0, atol=0)
        assert all(parameter.grad is None for parameter in packed.parameters)
    ours[0].double()
    ours[0].weight.grad = torch.zeros_like(ours[0].weight)
    with pytest.raises(RuntimeError, match="a parameter was moved or frozen since it was laid out"):
        packed.take_gradients()
