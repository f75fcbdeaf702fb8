"""backend="fused_kernels" and a linear layer of c cᵀ: outer_linear, and what only looks like it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import Of, check
from torch import nn

from kernels.compiler import outer

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
B, C, H = 5, 98, 6
CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # sums of C² numbers, in another order


@pytest.fixture(autouse=True)
def _tensor_cores(monkeypatch):
    monkeypatch.setattr(outer, "is_full_float32", lambda *_: False)


def by_mul(c):
    return (c.unsqueeze(2) * c.unsqueeze(1)).flatten(1)


def model(product=by_mul, behind=lambda m, z: torch.relu(m.a(z)), columns: int = C, **options) -> nn.Module:
    torch.manual_seed(0)
    a = nn.Linear(columns * columns, H, **options)
    return Of(lambda m, c: behind(m, product(c)), a=a, b=nn.Linear(H, H), d=nn.Linear(H, 3))


REPLACED = {
    "relu": (model, ["outer_linear"]),
    "no_activation": (lambda: model(behind=lambda m, z: m.a(z)), ["outer_linear"]),
    "bmm": (lambda: model(lambda c: torch.bmm(c[:, :, None], c[:, None]).view(-1, C * C)), ["outer_linear"]),
    "matmul": (lambda: model(lambda c: (c.unsqueeze(-1) @ c.unsqueeze(-2)).reshape(-1, C * C)), ["outer_linear"]),
    "functional": (
        lambda: model(behind=lambda m, z: F.relu(F.linear(z, m.a.weight, m.a.bias), inplace=True)), ["outer_linear"]
    ),
    "bias_of_one_row": (
        lambda: model(behind=lambda m, z: z @ m.a.weight.t() + m.a.bias[None]), ["outer_linear"]
    ),
    "sigmoid": (lambda: model(behind=lambda m, z: torch.sigmoid(m.a(z))), ["outer_linear"]),
    "layers_behind": (
        lambda: model(behind=lambda m, z: m.d(torch.relu(m.b(torch.relu(m.a(z)))))), ["outer_linear", "fused_mlp"]
    ),
}
DECLINED = {
    "no_bias": (lambda: model(bias=False), "the layer has no bias"),
    "few_columns": (lambda: model(columns=16), "of 16 columns, where the kernel saves nothing"),
    "product_read_too": (lambda: model(behind=lambda m, z: (m.a(z), z)), "read by others too"),
}
DECLINED |= {
    f"bias_{name}": (lambda bias=bias: model(behind=lambda m, z: z @ m.a.weight.t() + bias), "bias")
    for name, bias in (("of_a_batch", torch.ones(B, H)), ("of_one", torch.ones(1)))
}
LOOK_ALIKES = {
    "of_two": lambda c: (c.unsqueeze(2) * (c + 1).unsqueeze(1)).flatten(1),
    "sum": lambda c: (c.unsqueeze(2) + c.unsqueeze(1)).flatten(1),
    "squares": lambda c: (c.unsqueeze(2) * c.unsqueeze(2)).expand(-1, C, C).reshape(-1, C * C),
    "scaled": lambda c: (c.unsqueeze(2) * c.unsqueeze(1) * 2).flatten(1),
}


def inputs(columns: int = C):
    torch.manual_seed(1)
    return (torch.randn(B, columns),)


@pytest.mark.parametrize("name", REPLACED)
def test_the_layer_is_one_op(name):
    make, ops = REPLACED[name]
    assert check(make(), inputs(), **CLOSE).ops == ops


@pytest.mark.parametrize("name", DECLINED)
def test_a_look_alike_is_declined_with_its_condition(name):
    make, condition = DECLINED[name]
    check(make(), inputs(16 if name == "few_columns" else C), inner="eager").expect_declined("outer_linear", condition)


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_another_product_is_none(name):
    recorded = check(model(LOOK_ALIKES[name], lambda m, z: m.a(z)), inputs(), inner="eager")
    assert recorded.ops == []


def test_in_full_float32_it_is_left_alone(monkeypatch):
    monkeypatch.setattr(outer, "is_full_float32", lambda *_: True)
    check(model(), inputs(), inner="eager").expect_declined("outer_linear", "in full float32 its form is eager")
