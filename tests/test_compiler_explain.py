"""kernels.explain: how it speaks, and that it speaks of whatever torch.compile takes. tests/test_compiler_others.py has
what it says of models of other people's making."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled_others import TwoTower, mlp
from torch import nn

import kernels
from kernels import runtime

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


class Block(nn.Module):
    """A transformer block, its dropout in the MLP as often."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(dropout), nn.Linear(64, 16))

    def forward(self, x):
        q, k, v = (t.unflatten(2, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def broken_graph(x):
    y = torch.relu(x @ x.t())
    torch._dynamo.graph_break()
    return y + 1


class Uncopyable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp(8, 8, 4)

    def __deepcopy__(self, memo):
        raise TypeError("cannot be copied")

    def forward(self, x):
        return self.layers(x)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


# Few rows, which on a GPU are CUDA's where it runs.
FORM = "triton" if runtime.why_not("cuda", "cuda") else "cuda"
# model, inputs, ops that are replaced, what the sentences must say
MODELS = {
    "mlp_of_elu": (lambda: mlp(13, 64, 1, activation=nn.ELU), (x(5, 13),), [], ["aten.elu.default stands between"]),
    "block": (Block, (x(2, 5, 16),), ["fused_mlp"], []),
    "block_with_dropout": (lambda: Block(0.1), (x(2, 5, 16),), [], ["aten.dropout.default stands between"]),
    "attention": (lambda: nn.MultiheadAttention(16, 2), (x(5, 2, 16),) * 3, [], []),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)),
        (x(2, 3, 8, 8),), [], [],
    ),
    "autoencoder": (
        lambda: nn.Sequential(mlp(8, 4, 2), mlp(2, 4, 8)), (x(5, 8),), ["fused_mlp"] * 2, ["no activation between"],
    ),
    "graph_break": (lambda: broken_graph, (x(3, 3),), [], []),
    "identity": (lambda: lambda x: x, (x(3),), [], []),
    "no_tensor": (lambda: lambda: 3, (), [], []),
    "compiled_already": (lambda: torch.compile(mlp(8, 8, 4)), (x(5, 8),), ["fused_mlp"], []),
    "uncopyable": (Uncopyable, (x(5, 8),), ["fused_mlp"], []),
    "sparse_input": (lambda: lambda a, b: torch.sparse.mm(a, b), (torch.eye(3).to_sparse(), x(3, 3)), [], []),
    "complex": (lambda: lambda z: (z @ z.t()).real.relu(), (torch.randn(3, 3, dtype=torch.complex64),), [], []),
    "strings_and_dicts": (lambda: lambda x, how: {how["name"]: x.relu()}, (x(3), {"name": "y"}), [], []),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_said_of_a_model(name):
    make, inputs, ops, phrases = MODELS[name]
    explanation = kernels.explain(make(), *inputs)
    assert [replacement.op for replacement in explanation.replaced] == ops
    assert len(explanation.declined) >= len(phrases)
    for words in phrases:
        assert any(words in sentence for sentence in explanation.declined), explanation.declined


def test_it_reads_as_text():
    text = str(kernels.explain(TwoTower(), torch.arange(4), torch.arange(5)))
    lines = text.splitlines()
    assert lines[:2] == ["torch.compile makes 1 graph of it", "replaced:"]
    assert lines[2].startswith(f"  fused_mlp: 32-64-16, relu, identity, {FORM} (for input_1 … input_3, query.2, compil")
    assert lines[4] == "not replaced:"
    assert lines[5].startswith("  embedding_bags_apart: a look-up by itself, which its own operator does in one")


def test_a_replaced_op_has_its_nodes():
    (replaced,) = kernels.explain(mlp(8, 8, 4), x(5, 8)).replaced
    assert replaced.op == "fused_mlp"
    assert len(replaced.nodes) == 3
    assert replaced.note == "8-8-4, relu, identity"
    assert replaced.form == FORM


def test_nothing_replaced_is_said():
    assert str(kernels.explain(lambda x: x.exp(), x(3))) == "torch.compile makes 1 graph of it\nnothing is replaced"
    assert str(kernels.explain(lambda: 3)) == "torch.compile makes no graphs of it\nnothing is replaced"
    text = str(kernels.explain(broken_graph, x(3, 3)))
    assert text.startswith("torch.compile makes 2 graphs of it, between which nothing is matched; TORCH_LOGS=graph_br")


def test_the_model_is_as_it_was():
    """A module runs as a copy; what torch.compile has compiled is not lost; and it can be asked again and again."""
    model, compilations = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)), []

    def counting(gm, example_inputs):
        compilations.append(gm)
        return gm.forward

    compiled = torch.compile(model, backend=counting)
    compiled(x(5, 8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    texts = {str(kernels.explain(model, x(5, 8))) for _ in range(12)}
    assert len(texts) == 1
    assert "aten.batch_norm.default stands between" in texts.pop()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    compiled(x(5, 8))
    assert len(compilations) == 1


def test_what_the_model_raises_is_raised():
    with pytest.raises(Exception, match="size"):
        kernels.explain(mlp(8, 8, 4), x(5, 7))
