"""backend="fused_kernels" and torch.autocast, around a model or within it: the ops compute in the dtype that eager's
products do, weights are cast as autocast casts them, and their gradients come back in their own dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import Of, check, recording, results_of, two_layers
from compiled_styles import Facebook
from test_compiler_fuzz import module as random_program
from test_compiler_mlp import sequence, statistics
from torch import nn

import kernels
from kernels.compiler.exported import replace_in

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
B, WHOLE = 5, "dlrm_forward"
CLOSE = {"rtol": 2e-2, "atol": 2e-2}  # two roundings to bfloat16


def bf16(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled)


def within(function: Callable, context: Callable = bf16) -> Callable:
    def computed(*values):
        with context():
            return function(*values)

    return computed


def layers(m, x):
    return m.b(torch.relu(m.a(x)))


def off_inside(m, x):
    with bf16():
        y = layers(m, x)
        with bf16(enabled=False):
            return layers(m, y.float())


def off_between(m, x):
    with bf16():
        h = torch.relu(m.a(x))
        with bf16(enabled=False):
            return m.b(h.float())


def half_of_it(m, x):
    """One after the other, of the same weights: under autocast, and without."""
    return within(layers)(m, x), layers(m, x)


def off_where_all_is_bfloat16(m, x):
    with bf16():
        h = torch.relu(m.a(x))
    return F.linear(h, m.b.weight.bfloat16())


def written_between(m, x):
    h = torch.relu(m.a(x))
    m.w.mul_(0.5)
    return F.linear(h, m.w)


def bias_row(m, x):
    return m.b(torch.relu(torch.addmm(m.c, x, m.w.t())))


# model, how many calls of fused_mlp
REPLACED = {
    "bfloat16": (lambda: two_layers(within(layers)), 1),
    "float16": (lambda: two_layers(within(layers, lambda: torch.autocast("cpu", torch.float16))), 1),
    "off_inside": (lambda: two_layers(off_inside), 2),
    "beside_it_without": (lambda: two_layers(half_of_it), 2),
    "off_where_all_is_bfloat16": (lambda: two_layers(off_where_all_is_bfloat16), 1),
    "set_between": (lambda: two_layers(lambda m, x: m.b(within(lambda m, x: torch.relu(m.a(x)))(m, x).float())), 0),
    "x_of_float16": (lambda: two_layers(within(lambda m, x: layers(m, x.half()))), 1),
    "module_of_bfloat16": (lambda: two_layers(within(lambda m, x: layers(m, x.bfloat16()))).bfloat16(), 1),
    "addmm": (lambda: two_layers(within(lambda m, x: m.b(torch.relu(torch.addmm(m.a.bias, x, m.a.weight.t()))))), 1),
    "no_bias": (lambda: two_layers(within(lambda m, x: torch.relu(x @ m.a.weight.t()) @ m.b.weight.t())), 1),
    "in_place": (lambda: two_layers(within(lambda m, x: m.b(m.a(x).relu_()))), 1),
    "gelu_and_sigmoid": (lambda: two_layers(within(lambda m, x: torch.sigmoid(m.b(F.gelu(m.a(x)))))), 1),
    "one_layer_twice": (lambda: two_layers(within(lambda m, x: m.a(torch.relu(m.a(torch.relu(m.b(x))))))), 1),
    "three_dimensions": (lambda: two_layers(within(lambda m, x: layers(m, x[None]))), 1),
    "bias_of_one_row": (
        lambda: Of(within(bias_row), w=nn.Parameter(torch.randn(6, 8)), c=nn.Parameter(torch.randn(1, 6)),
                   b=nn.Linear(6, 4)), 1,
    ),
    "frozen": (lambda: two_layers(within(layers)).requires_grad_(False), 1),
    "double": (lambda: two_layers(within(lambda m, x: layers(m, x.double()))).double(), 1),  # which it casts nothing of
}  # fmt: skip
DECLINED = {
    "bias_in_float32": (
        lambda: two_layers(within(lambda m, x: torch.relu(x @ m.a.weight.t() + m.a.bias) @ m.b.weight.t())),
        "aten.add.Tensor is torch.float32, and what comes of it torch.bfloat16",
    ),
    "off_between": (lambda: two_layers(off_between), "aten.to.dtype stands between two layers"),
    "weight_written_between": (
        lambda: Of(within(written_between), a=nn.Linear(8, 8), w=torch.randn(8, 8)), "aten.mul_.Tensor writes in place",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REPLACED)
def test_layers_are_computed_in_its_dtype(name):
    torch.manual_seed(0)
    make, calls = REPLACED[name]
    recorded = check(make(), (torch.randn(B, 8),), gradients=name != "frozen", **CLOSE)
    assert recorded.ops == ["fused_mlp"] * calls


@pytest.mark.parametrize("name", DECLINED)
def test_what_it_leaves_in_another_dtype_is_declined(name):
    torch.manual_seed(0)
    make, condition = DECLINED[name]
    check(make(), (torch.randn(B, 8),), inner="eager", **CLOSE).expect_declined("fused_mlp", condition)


@pytest.mark.parametrize(("dtype", "op"), [(torch.float32, "fused_mlp"), (torch.bfloat16, "fused_mlp in place")])
def test_weights_in_one_buffer_are_read_there_unless_they_are_cast(dtype, op):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, (backend, recorded), x = kernels.pack_mlp(sequence(nn.ReLU()).to(dtype)), recording(), torch.randn(B, 8)
    with torch.no_grad(), bf16():
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x), **CLOSE)
    assert recorded.ops == [op]


def test_a_batch_norm_is_folded_before_the_cast():
    """As near to float64's result as eager's own, which rounds what the BatchNorm reads."""
    torch.manual_seed(0)
    model = statistics(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8)))
    backend, recorded = recording()
    x = torch.randn(64, 64)
    with torch.no_grad():
        with bf16():
            want, got = model(x), torch.compile(model, backend=backend)(x)
        exact = model.double()(x.double())
    assert recorded.ops == ["fused_mlp"]
    assert (got - exact).abs().max() <= 1.5 * (want - exact).abs().max()


def test_a_batch_norm_may_be_left_in_float32():
    """As in a model whose other layers were cast."""
    model = statistics(sequence(nn.BatchNorm1d(8), nn.ReLU())).bfloat16()
    model[1].float()
    assert check(model, (torch.randn(B, 8).bfloat16(),), **CLOSE, gradients=False).ops == ["fused_mlp"]
    (replaced,) = kernels.explain(model, torch.randn(B, 8).bfloat16()).replaced
    assert replaced.note == "8-8-8, relu, identity"


def interact(m, x, vectors, *, zeros: int = 0, first: Callable = lambda x: x):
    x = first(x)
    t = torch.cat([x[:, None], vectors], 1)
    i, j = torch.tril_indices(4, 4, -1)
    more = [x.new_zeros(len(x), zeros)] if zeros else []
    return torch.cat([x, torch.bmm(t, t.mT)[:, i, j], *more], 1)


# How a dense vector and the others come to the products under autocast; and whether all of dot_interaction is taken.
INTERACTIONS = {
    "a_layers_result": lambda m, x, v: interact(m, m.a(x), v),
    "filled_up": lambda m, x, v: interact(m, m.a(x), v, zeros=2),
    "all_of_bfloat16": lambda m, x, v: interact(m, m.a(x), v.bfloat16()),
    "dense_of_float32": lambda m, x, v: interact(m, x, v),  # of which the pairs alone are bfloat16
    "diagonal": lambda m, x, v: torch.bmm(v, v.mT)[:, *torch.tril_indices(3, 3)],
    "off_inside": lambda m, x, v: within(interact, lambda: bf16(enabled=False))(m, x, v),
}


@pytest.mark.parametrize("name", INTERACTIONS)
def test_products_are_computed_in_its_dtype(name):
    torch.manual_seed(0)
    model = two_layers(within(INTERACTIONS[name]))
    assert check(model, (torch.randn(B, 8), torch.randn(B, 3, 8)), **CLOSE).ops == ["dot_interaction"]


def outer(spelled: Callable) -> Callable:
    return within(lambda m, c: torch.relu(m.l(spelled(c).flatten(1))))


@pytest.mark.parametrize(
    ("spelled", "ops"),
    [
        (lambda c: torch.bmm(c.unsqueeze(2), c.unsqueeze(1)), ["outer_linear"]),
        (lambda c: (c := c.bfloat16()).unsqueeze(2) * c.unsqueeze(1), ["outer_linear"]),
        (lambda c: c.unsqueeze(2) * c.unsqueeze(1), []),  # which autocast leaves in float32
    ],
)
def test_a_layer_of_an_outer_product(spelled, ops, monkeypatch):
    monkeypatch.setattr("kernels.compiler.outer.FEWEST", 8)
    assert check(Of(outer(spelled), l=nn.Linear(64, 4)), (torch.randn(B, 8),), **CLOSE).ops == ops


def test_pointwise_ops_compute_in_the_dtype_of_their_inputs():
    """Not in autocast's: a multiplier of another dtype is no reason to cast the rest."""
    function = within(lambda m, x, y, b: torch.tanh(x.half() + m.s * y.half() + b.half()))
    inputs = torch.randn(B, 8), torch.randn(B, 8), torch.randn(8)
    assert check(Of(function, s=torch.tensor(0.3001)), inputs).ops == ["add_mul_activation"]


class Under(nn.Module):
    def __init__(self, model: nn.Module, dtype: torch.dtype):
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, *inputs):
        with torch.autocast("cpu", self.dtype):
            return self.model(*inputs)


PARTS = ["fused_mlp", "embedding_bags_apart", "dot_interaction", "fused_mlp"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gradients", [False, True])
def test_within_a_model(dtype, gradients):
    torch.manual_seed(0)
    recorded = check(Under(Facebook(), dtype), Facebook.inputs(B), gradients=gradients, **CLOSE)
    assert recorded.ops == PARTS
    whole = "dlrm_forward: not all is torch.bfloat16, in which the layers are computed"
    assert gradients or dtype != torch.bfloat16 or recorded.declined[0].startswith(whole)


def test_a_model_of_bfloat16_is_whole_under_it():
    torch.manual_seed(0)
    dense, *ids = Facebook.inputs(B)
    model = Under(Facebook().bfloat16(), torch.bfloat16)
    assert check(model, (dense.bfloat16(), *ids), gradients=False, **CLOSE).ops == [WHOLE]


@pytest.mark.parametrize("gradients", [False, True])
def test_around_a_compiled_model(gradients):
    """Each time it is set or left there is another graph, of another dtype."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, (backend, recorded) = Facebook(), recording()
    other = copy.deepcopy(model)
    compiled, inputs, seen = torch.compile(other, backend=backend), Facebook.inputs(B), []
    for enabled in (True, False, True):
        with bf16(enabled):
            want, got = (results_of(c, m, inputs, gradients) for c, m in ((model, model), (compiled, other)))
        torch.testing.assert_close(got, want, **CLOSE)
        assert got[0].dtype == (torch.bfloat16 if enabled else torch.float32)
        seen.append(len(recorded.ops))
    assert recorded.ops[: seen[0]] == PARTS
    assert recorded.ops[seen[0] :] == (PARTS if gradients else [WHOLE])


def test_random_programs():
    ops = []
    for seed in range(20):
        model, other, inputs = random_program(seed), random_program(seed), (torch.randn(4, 8), torch.randn(4, 8))
        model.function, other.function = within(model.function), within(other.function)
        try:
            results_of(other, other, inputs, gradients=True)
            gradients = True
        except RuntimeError:  # of what was written to
            gradients = False
        ops += check(model, inputs, gradients=gradients, inner="eager", **CLOSE).ops
    assert "fused_mlp" in ops


@pytest.mark.parametrize("exporting", [False, True])
def test_an_exported_program_does_not_hold_what_was_around_it(exporting):
    """Whoever runs it sets the dtype; what lies within torch.autocast is a graph of its own."""
    model, x = two_layers(layers if exporting else within(layers)), torch.randn(B, 8)
    with torch.no_grad(), bf16(exporting):
        program = torch.export.export(model, (x,))
    explanation = replace_in(program)
    assert explanation.replaced == []
    assert ("exported under torch.autocast" if exporting else "within wrap_with_auto") in explanation.declined[0]
    torch.testing.assert_close(program.module()(x), model(x))


def test_it_says_so():
    with bf16():
        (replaced,) = kernels.explain(sequence(nn.ReLU()), torch.randn(B, 8)).replaced
    assert replaced.note == "8-8-8, relu, identity, in torch.bfloat16 by torch.autocast"
