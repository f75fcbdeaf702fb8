"""backend="fused_kernels" and what happens to a model after it was compiled, or around it."""

from __future__ import annotations

import copy

import pytest
import torch
from compiled import Of, check, recording, two_layers
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")


@pytest.fixture
def model() -> nn.Module:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def another() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def written_in_place(model):
    with torch.no_grad():
        model[0].weight.mul_(2)
        model[2].bias.add_(1)


def data(model):
    model[0].weight.data = torch.randn(16, 8)


def new_parameter(model):
    model[0].weight = nn.Parameter(torch.randn(16, 8))


def loaded(model):
    model.load_state_dict(another().state_dict())


def loaded_by_assignment(model):
    model.load_state_dict(another().state_dict(), assign=True)


def another_layer(model):
    model[2] = nn.Linear(16, 4)


def no_bias(model):
    model[2].bias = None


def frozen(model):
    model.requires_grad_(False)


def half_frozen(model):
    model[0].requires_grad_(False)


def to_double(model):
    model.double()


def step(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(3, 8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


CHANGES = [
    written_in_place, data, new_parameter, loaded, loaded_by_assignment, another_layer, no_bias, frozen, half_frozen,
    to_double, step,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_after_compilation_is_seen(model, change):
    """Weights are read at the call: the compiled model computes what the model now is, gradients too."""
    backend, recorded = recording()
    compiled = torch.compile(model, backend=backend)
    compiled(torch.randn(3, 8))
    graphs = recorded.graphs
    change(model)
    x = torch.randn(3, 8, dtype=model[0].weight.dtype, requires_grad=True)
    leaves = [x, *(parameter for parameter in model.parameters() if parameter.requires_grad)]
    want, got = model(x), compiled(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves))
    assert set(recorded.ops) == {"fused_mlp"}
    assert recorded.graphs <= graphs + 1


def test_a_change_of_values_compiles_nothing(model):
    backend, recorded = recording()
    compiled, x = torch.compile(model, backend=backend), torch.randn(3, 8)
    compiled(x)
    for change in (written_in_place, data, loaded):
        change(model)
        torch.testing.assert_close(compiled(x), model(x))
    assert recorded.graphs == 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(model, mode):
    backend, recorded = recording()
    compiled, x = torch.compile(model, backend=backend), torch.randn(3, 8)
    with mode():
        torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(compiled(x), model(x))
    assert set(recorded.ops) == {"fused_mlp"}


def test_autocast_is_set_and_left_again(model):
    backend, recorded = recording("eager")
    compiled, x = torch.compile(model, backend=backend), torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = compiled(x)
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out, model(x))
    torch.testing.assert_close(compiled(x), model(x))
    assert recorded.ops == ["fused_mlp"] * 2


def test_dropout_is_left_alone_in_training_and_gone_in_evaluation():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    backend, recorded = recording("eager")
    compiled, x = torch.compile(model, backend=backend), torch.randn(64, 8)
    torch.manual_seed(0)
    got = compiled(x)
    torch.manual_seed(0)
    torch.testing.assert_close(got, model(x))
    assert recorded.ops == []
    model.eval()
    torch.testing.assert_close(compiled(x), model(x))
    assert recorded.ops == ["fused_mlp"]


def test_hooks_of_modules_and_parameters(model):
    """A hook on an intermediate cuts; one on the input, on a parameter or on the model keeps its place."""
    seen = []
    model[0].weight.register_hook(lambda grad: grad * 2)
    model.register_forward_hook(lambda module, inputs, output: output + 1)
    model.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    x = torch.randn(3, 8, requires_grad=True)
    x.register_hook(seen.append)
    other = copy.deepcopy(model)
    other[0].weight.register_hook(lambda grad: grad * 2)  # which deepcopy does not take along
    backend, recorded = recording()
    want, got = model(x), torch.compile(other, backend=backend)(x)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    want.sum().backward()
    torch.testing.assert_close(seen[0], seen[1])
    for one, another in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, another.grad)
    assert recorded.ops == ["fused_mlp"]


def test_two_models_of_one_class_do_not_meet(model):
    backend, _ = recording()
    first, second = torch.compile(model, backend=backend), torch.compile(another(), backend=backend)
    x = torch.randn(3, 8)
    assert not torch.equal(first(x), second(x))
    torch.testing.assert_close(first(x), model(x))


def test_an_output_that_is_an_input_of_the_next_part():
    """Two MLPs, the second of which reads what the first gives and more."""
    parts = {"c": nn.Linear(8, 8), "d": nn.Linear(8, 8)}
    module = two_layers(lambda m, x: m.d(torch.relu(m.c(m.b(torch.relu(m.a(x))).tanh() + x))))
    for name, part in parts.items():
        setattr(module, name, part)
    assert check(module, (torch.randn(3, 8),)).ops == ["fused_mlp", "fused_mlp"]


def test_wrapped_by_distributed_data_parallel(tmp_path):
    """Dynamo cuts the graph into DDP's buckets, and each piece is a graph of its own."""
    torch._dynamo.reset()
    layers = [part for _ in range(6) for part in (nn.Linear(300, 300), nn.ReLU())]
    model = Of(lambda m, x: m.layers(x), layers=nn.Sequential(*layers, nn.Linear(300, 4)))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=1)
        backend, recorded = recording()
        x = torch.randn(3, 300)
        got, want = torch.compile(wrapped, backend=backend)(x), model(x)
        torch.testing.assert_close(got, want)
        got.square().sum().backward()
        want.square().sum().backward()
        for one, another in zip(wrapped.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(one.grad, another.grad)
    finally:
        torch.distributed.destroy_process_group()
    assert set(recorded.ops) == {"fused_mlp"}
