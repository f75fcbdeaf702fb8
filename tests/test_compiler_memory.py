"""backend="fused_kernels" and parameters that pack_mlp laid out: read where they lie, with every change of them."""

from __future__ import annotations

import copy

import pytest
import torch
from compiled import recording
from torch import nn

import kernels
from kernels.compiler import backend

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
IN_PLACE, COPIED = "fused_mlp in place", "fused_mlp"


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def packed() -> nn.Sequential:
    torch.manual_seed(0)
    return kernels.pack_mlp(nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 8)))


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 13)


@torch.no_grad()
def test_every_change_of_the_parameters_is_seen():
    model, (backend, recorded) = packed(), recording()
    compiled = torch.compile(model, backend=backend, dynamic=True)

    def same() -> None:
        for shape in ((5,), (2, 3)):
            value = x(*shape)
            torch.testing.assert_close(compiled(value), model(value))

    for change in (
        lambda: None,
        lambda: model[0].weight.mul_(2),
        lambda: model[2].weight.data.add_(1),  # which no version counts
        lambda: torch.from_dlpack(model[0].bias.detach()).fill_(0.5),
        lambda: model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()}),
    ):
        change()
        same()
    assert {*recorded.ops} == {IN_PLACE}
    graphs = recorded.graphs
    for change in (
        lambda: setattr(model[0].weight, "data", torch.randn(16, 13).as_strided((16, 13), (13, 1))),
        lambda: setattr(model[2].bias, "data", torch.randn(8)),
    ):
        change()
        same()
    assert COPIED in recorded.ops[graphs:]


@torch.no_grad()
def test_parameters_that_lie_as_before_elsewhere_are_looked_for_again():
    """Their strides are the same, so that torch.compile's own guards say nothing."""
    model, (backend, recorded) = packed(), recording()
    compiled = torch.compile(model, backend=backend)
    compiled(x(5))
    other = copy.deepcopy(model)
    for parameter, another in zip(model.parameters(), kernels.pack_mlp(other).parameters(), strict=True):
        parameter.data = torch.empty_strided(another.shape, another.stride()).copy_(another)
        parameter.data.mul_(3)
    value = x(5)
    torch.testing.assert_close(compiled(value), model(value))
    assert recorded.ops == [IN_PLACE, COPIED]


def test_training_copies_them():
    """A gradient is of each parameter."""
    model, (backend, recorded) = packed(), recording()
    value, compiled = x(5), torch.compile(model, backend=backend)
    want = torch.autograd.grad(model(value).square().sum(), [*model.parameters()])
    torch.testing.assert_close(torch.autograd.grad(compiled(value).square().sum(), [*model.parameters()]), want)
    assert recorded.ops == [COPIED]


@torch.no_grad()
def test_what_does_not_lie_in_one_buffer_is_copied():
    first, second = packed(), packed()
    swapped = nn.Sequential(first[0], nn.ReLU(), second[2])
    without = packed()
    without[2].bias = None
    for model in (swapped, without, nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))):
        torch._dynamo.reset()
        backend, recorded = recording()
        value = torch.randn(5, model[0].in_features)
        torch.testing.assert_close(torch.compile(model, backend=backend)(value), model(value))
        assert recorded.ops == [COPIED]


@torch.no_grad()
def test_the_graph_copies_nothing():
    graphs = []

    def inner(gm, example_inputs):
        from torch._functorch.aot_autograd import aot_module_simplified

        def forward(gm, inputs):
            graphs.append({str(node.target) for node in gm.graph.nodes})
            return gm.forward

        return aot_module_simplified(gm, example_inputs, fw_compiler=forward)

    value = x(5)
    for model in (packed(), nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 8))):
        torch._dynamo.reset()
        torch.compile(model, backend=lambda gm, inputs: kernels.compiler.compiled(gm, inputs, inner))(value)
    assert "aten.as_strided.default" in graphs[0]
    assert not graphs[0] & {"aten.cat.default", "aten.constant_pad_nd.default", "aten.clone.default"}
    assert "aten.as_strided.default" not in graphs[1]


@pytest.mark.slow
@torch.no_grad()
def test_through_inductor_itself():
    model = packed()
    compiled = torch.compile(model, backend=backend)
    for _ in range(2):
        value = x(5)
        torch.testing.assert_close(compiled(value), model(value))
        model[0].weight.data.mul_(-2)


@torch.no_grad()
@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    "write",
    [
        lambda m: m[2].bias.add_(1), lambda m: m[0].weight.mul_(0.5), lambda m: m[2].weight[0].zero_(),
        lambda m: m[0].bias.data.copy_(torch.ones(16)), lambda m: torch._foreach_mul_([*m.parameters()], 0.5),
    ],
)
def test_what_the_graph_writes_itself_is_seen(write, inner):
    """AOTAutograd makes of a write another tensor, which does not lie in the buffer."""
    model, other = packed(), packed()

    def function(m, x):
        before = m(x)
        write(m)
        return before, m(x)

    inner, recorded = recording(inner)
    value = x(5)
    compiled = torch.compile(lambda x: function(model, x), backend=inner)
    torch.testing.assert_close(compiled(value), function(other, value))
    assert IN_PLACE not in recorded.ops
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, another)
