"""backend="fused_kernels" and programs that are put together at random of what it looks for, and of what disturbs it:
outputs and gradients are eager's, whatever is replaced."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from compiled import FUZZ, Of, check, results_of
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
B, D, V = 4, 8, 4
TRIL = torch.tril_indices(V, V, -1)
PAIRS = [TRIL, TRIL, torch.triu_indices(V, V, 1), TRIL[:, [3, 1, 0, 2, 5, 4]], TRIL - V, TRIL[:, [0, 0, 1, 2, 3, 4]]]
WIDE = D + V * (V - 1) // 2

# From a value [B, D] to another. The first layers are likelier.
LAYERS = [
    lambda m, v, a: F.linear(v, m.w[a], m.b[a]),
    lambda m, v, a: v @ m.w[a].t() + m.b[a],
    lambda m, v, a: torch.addmm(m.b[a], v, m.w[a].t()),
    lambda m, v, a: F.linear(v, m.w[a]),
    lambda m, v, a: v @ m.w[a] + m.b[a],
]
ACTIVATIONS = [
    lambda v: torch.relu(v), lambda v: F.relu(v), lambda v: torch.sigmoid(v), lambda v: F.gelu(v), lambda v: v.relu_(),
    lambda v: v.sigmoid_(), lambda v: torch.tanh(v), lambda v: v.clamp(min=0), lambda v: F.threshold(v, 0, 0),
    lambda v: F.silu(v),
]  # fmt: skip
OTHERS = [
    lambda m, v, u: v + m.b[0], lambda m, v, u: v + 0.5 * u + m.b[1], lambda m, v, u: v + u, lambda m, v, u: v[:],
    lambda m, v, u: v.detach(), lambda m, v, u: v * 2, lambda m, v, u: v.view(-1, D), lambda m, v, u: v.t().t(),
    lambda m, v, u: v.clone(), lambda m, v, u: F.dropout(v, 0.5, training=False), lambda m, v, u: v.mul_(0.5),
    lambda m, v, u: torch.relu(v.flip(0) + m.b[0]).flip(0), lambda m, v, u: torch.cat([v, u], 1)[:, :D],
    lambda m, v, u: v.double().float(), lambda m, v, u: torch.tanh(v.flip(0) + 0.5 * u.flip(1) + m.b[2]).flip(0),
]  # fmt: skip


VECTORS = [
    lambda dense, others: torch.stack([dense, *others], 1),
    lambda dense, others: torch.cat([dense, *others], 1).view(-1, V, D),
    lambda dense, others: torch.cat([dense.unsqueeze(1), torch.stack(others, 1)], 1),
]


def layer(choice: random.Random, at: int, count: int):
    compute, number = LAYERS[min(choice.randrange(7), choice.randrange(5))], choice.randrange(3)
    return lambda m, values: compute(m, values[at], number)


def activation(choice: random.Random, at: int, count: int):
    compute = choice.choice(ACTIVATIONS)
    return lambda m, values: compute(values[at])


def other(choice: random.Random, at: int, count: int):
    compute, beside = choice.choice(OTHERS), choice.randrange(count)
    return lambda m, values: compute(m, values[at], values[beside])


def interaction(choice: random.Random, at: int, count: int):
    """DLRM's, or nearly: the dense vector may be another, the pairs not all of them, the products scaled."""
    beside, vectors = choice.choices(range(count), k=V - 1), choice.choice(VECTORS)
    number = choice.randrange(len(PAIRS))
    first, scaled = choice.choice([at, at, at, beside[0]]), choice.random() < 0.1

    def compute(m, values):
        stacked, (i, j) = vectors(values[at], [values[k] for k in beside]), m.pairs[number]
        products = stacked @ stacked.transpose(1, 2)
        products = products * 2 if scaled else products
        return F.linear(torch.cat([values[first], products[:, i, j]], 1), m.wide) / 8

    return compute


def program(seed: int):
    """A function of a module and x, y: some steps, each from the values before it to another."""
    choice, steps, kind = random.Random(seed), [], None
    for _ in range(choice.randint(3, 9)):
        count = 2 + len(steps)
        at = count - 1 if choice.random() < 0.9 else choice.randrange(count)
        likely = activation if kind is layer else layer
        (kind,) = choice.choices([likely, layer, activation, other, interaction], [60, 10, 10, 12, 8])
        steps.append(kind(choice, at, count))
    outputs = choice.choice([1, 1, 1, 2])

    def function(m, x, y):
        values = [x.clone(), y.clone()]
        for step in steps:
            values.append(step(m, values))
        return tuple(values[-outputs:])

    return function


def module(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    weights, biases = torch.randn(3, D, D) / 3, torch.randn(3, D)
    weights, biases = (nn.ParameterList(nn.Parameter(t) for t in tensors) for tensors in (weights, biases))
    return Of(program(seed), w=weights, b=biases, wide=nn.Parameter(torch.randn(D, WIDE) / 4), pairs=torch.stack(PAIRS))


def replaced(seed: int) -> list[str]:
    """Check a program; its ops. Programs whose gradient eager refuses, of what was written to, run without."""
    x, y = torch.randn(B, D), torch.randn(B, D)
    model = module(seed)
    try:
        results_of(model, model, (x, y), gradients=True)
        gradients = True
    except RuntimeError:
        gradients = False
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    return check(module(seed), (x, y), gradients=gradients, inner="eager", **tolerance).ops


def test_random_programs():
    ops = [op for seed in range(20) for op in replaced(seed)]
    assert {"fused_mlp"} <= set(ops)


@pytest.mark.slow
def test_more_random_programs():
    ops = [op for seed in range(20, 20 + 120 * FUZZ) for op in replaced(seed)]
    assert {"fused_mlp", "dot_interaction", "add_relu", "add_mul_activation"} == set(ops)
