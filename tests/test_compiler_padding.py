"""backend="fused_kernels" fills up the rows of dot_interaction's result where only layers read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import Of, check, recording
from torch import nn

import kernels
from kernels.compiler import padding
from kernels.compiler.padding import PAD_TO
from kernels.ops.dot_interaction.op import dot_interaction

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
V, D = 4, 8
COLUMNS = D + V * (V - 1) // 2  # 14


def model(top: Callable, **held) -> nn.Module:
    def function(m, dense, sparse):
        vectors = torch.cat([dense.unsqueeze(1), sparse], 1)
        i, j = m.pairs
        pairs = torch.bmm(vectors, vectors.transpose(1, 2))[:, i, j]
        return top(m, torch.cat([dense, pairs], 1))

    return Of(function, pairs=torch.tril_indices(V, V, -1), **held)


def layer(**options) -> nn.Linear:
    return nn.Linear(COLUMNS, 5, **options)


def one_layer(bias: bool = True, rows: Callable = lambda z: z) -> nn.Module:
    return model(lambda m, z: m.one(rows(z)), one=layer(bias=bias))


def inputs(rows: int = 5):
    torch.manual_seed(0)
    return torch.randn(rows, D), torch.randn(rows, V - 1, D)


@pytest.fixture
def widths(monkeypatch) -> list[int]:
    """To how many columns the interaction's result has come in each graph."""
    seen, pad_pairs = [], padding.pad_pairs

    def seen_pad_pairs(graph):
        columns_of = pad_pairs(graph)
        seen.extend(node.meta["example_value"].shape[1] for node in graph.nodes if node.target is dot_interaction)
        return columns_of

    monkeypatch.setattr("kernels.compiler.replace.pad_pairs", seen_pad_pairs)
    return seen


FILLED = -(-COLUMNS // PAD_TO) * PAD_TO
READERS = {
    "a layer": (one_layer(), FILLED),
    "a layer without a bias": (one_layer(bias=False), FILLED),
    "two layers": (model(lambda m, z: m.one(z) + m.two(z), one=layer(), two=layer()), FILLED),
    "one weight, twice": (model(lambda m, z: m.one(z) * m.one(z), one=layer()), FILLED),
    "a whole MLP": (model(lambda m, z: m.two(F.relu(m.one(z))), one=layer(), two=nn.Linear(5, 1)), FILLED),
    "the program": (model(lambda m, z: z), COLUMNS),
    "the program too": (model(lambda m, z: (m.one(z), z), one=layer()), COLUMNS),
    "a sum": (model(lambda m, z: m.one(z) + z.sum(), one=layer()), COLUMNS),
    "a norm": (model(lambda m, z: m.one(m.norm(z)), one=layer(), norm=nn.LayerNorm(COLUMNS)), COLUMNS),
    "a view": (one_layer(rows=lambda z: z.view(-1, COLUMNS)), COLUMNS),
    "by its name": (model(lambda m, z: F.linear(input=z, weight=m.one.weight), one=layer()), COLUMNS),
    "of weights under vmap": (
        model(lambda m, z: torch.func.vmap(lambda w: F.linear(z, w))(m.w), w=nn.Parameter(torch.randn(3, 5, COLUMNS))),
        COLUMNS,
    ),
    "as the weight": (model(lambda m, z: F.linear(m.x, z), x=torch.randn(3, COLUMNS)), COLUMNS),
    "as both": (model(lambda m, z: F.linear(z, z)), COLUMNS),
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("reader", READERS)
def test_who_reads_the_rows(reader, gradients, widths):
    module, columns = READERS[reader]
    recorded = check(module, inputs(), gradients, rtol=1e-5, atol=1e-4)
    assert "dot_interaction" in recorded.ops
    assert widths == [columns]


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_one_row_stays(rows, widths):
    check(one_layer(), inputs(rows))
    assert widths == [FILLED if rows > 1 else COLUMNS]


def test_any_number_of_rows(widths):
    torch._dynamo.reset()
    module, (backend, recorded) = one_layer(), recording()
    compiled = torch.compile(module, backend=backend)
    for rows in (5, 200, 7, 1, 64, 33, 2):
        torch.testing.assert_close(compiled(*inputs(rows)), module(*inputs(rows)))
    assert recorded.graphs == 3  # of five rows, of any number, of one
    assert widths == [FILLED, FILLED, COLUMNS]


@pytest.mark.parametrize("most", [8192, 64])
def test_a_range_of_rows_is_kept(most, widths):
    """Where a guard would leave a part of it out, rows stay as they are."""
    torch._dynamo.reset()
    arguments = inputs(40)
    for tensor in arguments:
        torch._dynamo.mark_dynamic(tensor, 0, min=2, max=most)
    module = one_layer()
    torch.testing.assert_close(torch.compile(module, backend=recording()[0])(*arguments), module(*arguments))
    assert widths == [FILLED]


def test_explain_says_so():
    (replaced,) = kernels.explain(one_layer(), *inputs()).replaced
    assert replaced.note == f"{V} vectors of {D}, rows filled up to {FILLED} columns"


def test_on_a_cpu_the_weight_stays(widths, monkeypatch):
    """Where an op's kernel is put in place on a CPU, rows are as they were."""
    monkeypatch.setattr(padding, "is_on_gpu", lambda device: device.type == "cuda")
    check(one_layer(), inputs())
    assert widths == [COLUMNS]


def test_rows_that_are_full_already(widths):
    def function(m, dense, sparse):
        vectors = torch.cat([dense.unsqueeze(1), sparse], 1)
        i, j = m.pairs
        pairs = torch.bmm(vectors, vectors.transpose(1, 2))[:, i, j]
        return m.one(torch.cat([dense, pairs], 1))

    rows = 5
    module = Of(function, pairs=torch.tril_indices(V, V, -1), one=nn.Linear(16, 5))
    check(module, (torch.randn(rows, 10), torch.randn(rows, 3, 10)))
    assert widths == [16]
