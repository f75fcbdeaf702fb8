"""backend="fused_kernels" and sums with a bias, and look-ups: replaced, or declined by a sentence that names the
condition; and either way outputs and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import Of, check, recording
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
B, N = 5, 8


def of_bias(function: Callable[[Tensor, Tensor, Tensor], Tensor], **held) -> nn.Module:
    """function(x, y, bias) with a bias that is trained."""
    return Of(lambda m, x, y: function(x, y, m.bias), bias=nn.Parameter(torch.randn(N)), **held)


def inputs(dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (B, N)) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    return torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)


ADD_RELU = {
    "sum": lambda x, y, b: torch.relu(x + b),
    "bias_first": lambda x, y, b: F.relu(b + x),
    "in_place": lambda x, y, b: (x + b).relu_(),
    "method": lambda x, y, b: x.add(b).relu(),
    "alpha_of_one": lambda x, y, b: torch.relu(torch.add(x, b, alpha=1)),
    "bias_of_one_row": lambda x, y, b: torch.relu(b[None] + x),
    "row_of_another": lambda x, y, b: torch.relu(x + y[:1]),
}
ADD_MUL = {
    "multiplied": lambda x, y, b: torch.sigmoid(x + 0.5 * y + b),
    "integer": lambda x, y, b: torch.tanh(x + y * 2 + b),
    "product_first": lambda x, y, b: torch.relu(0.5 * y + x + b),
    "bias_first": lambda x, y, b: F.gelu(b + (x + 0.5 * y)),
    "alpha": lambda x, y, b: F.silu(torch.add(x, y, alpha=0.5) + b),
    "alpha_by_name": lambda x, y, b: F.silu(torch.add(x, y, alpha=-1) + b),
    "bias_of_one_row": lambda x, y, b: torch.tanh(x + 0.5 * y + b[None]),
    "nothing_multiplied": lambda x, y, b: torch.relu(x + y + b),
    "in_place": lambda x, y, b: (x + 0.5 * y + b).sigmoid_(),
}
BESIDE = "is beside it: the compiler makes one kernel of both"
DECLINED = {
    "relu6": (lambda x, y, b: F.relu6(x + b), "", ""),
    "clamp": (lambda x, y, b: (x + b).clamp(min=0), "", ""),
    "no_activation": (lambda x, y, b: x + 0.5 * y + b, "", ""),
    "bias_is_a_matrix": (lambda x, y, b: torch.relu(x + y), "", ""),
    "bias_of_a_row": (lambda x, y, b: torch.relu(x[0] + b), "", ""),
    "alpha": (lambda x, y, b: torch.relu(torch.add(x, b, alpha=2)), "add_relu", "add has alpha=2"),
    "sum_read_too": (lambda x, y, b: torch.relu(z := x + b) + z.sum(0).sum(), "add_relu", "read by others too"),
    "pointwise_before": (lambda x, y, b: torch.relu(x.exp() + b), "add_relu", f"aten.exp.default {BESIDE}"),
    "pointwise_behind": (lambda x, y, b: torch.relu(x + b).exp(), "add_relu", f"aten.exp.default {BESIDE}"),
    "product_before": (lambda x, y, b: torch.relu(x @ x.t() @ y + b), "add_relu", "whose kernel can add the bias"),
    "y_computed": (lambda x, y, b: torch.tanh(x + 0.5 * y.exp() + b), "add_mul_activation", BESIDE),
    "gelu_tanh": (
        lambda x, y, b: F.gelu(x + 0.5 * y + b, approximate="tanh"), "add_mul_activation", "approximated by tanh",
    ),
    "other_order": (lambda x, y, b: torch.sigmoid(x + (0.5 * y + b)), "", ""),
    "row_multiplied": (lambda x, y, b: torch.sigmoid(x + 0.5 * y[:1] + b), "", ""),
    "transposed": (lambda x, y, b: torch.relu(x.t().contiguous().t() + b), "add_relu", "the result is not contiguous"),
}


@pytest.mark.parametrize("name", ADD_RELU)
def test_add_relu(name):
    assert check(of_bias(ADD_RELU[name]), inputs()).ops == ["add_relu"]


@pytest.mark.parametrize("name", ADD_MUL)
def test_add_mul_activation(name):
    assert check(of_bias(ADD_MUL[name]), inputs()).ops == ["add_mul_activation"]


@pytest.mark.parametrize("name", DECLINED)
def test_a_look_alike_is_declined(name):
    """With its condition; with no sentence where it is no sum of this kind at all."""
    function, op, condition = DECLINED[name]
    recorded = check(of_bias(function), inputs(), inner="eager")
    if op:
        recorded.expect_declined(op, condition)
    else:
        assert recorded.ops == recorded.declined == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, N), (0, N), (1, N)])
def test_dtypes_and_shapes(dtype, shape):
    module = of_bias(ADD_RELU["sum"]).to(dtype)
    assert check(module, inputs(dtype, shape)).ops == ["add_relu"]


def test_dtypes_that_differ():
    recorded = check(of_bias(ADD_RELU["sum"]), inputs(torch.float64), inner="eager")
    recorded.expect_declined("add_relu", "the dtypes differ: torch.float32, torch.float64")


@pytest.mark.parametrize("trained", [False, True])
def test_a_multiplier_that_is_a_tensor(trained):
    """The op takes one, but gives it no gradient."""
    multiplier = nn.Parameter(torch.tensor(0.5), requires_grad=trained)
    module = Of(lambda m, x, y: torch.sigmoid(x + m.scale * y + m.b), b=torch.randn(N), scale=multiplier)
    recorded = check(module, inputs())
    assert recorded.ops == ([] if trained else ["add_mul_activation"])


@pytest.mark.parametrize("trained", [False, True])
def test_a_multiplier_that_is_one_of_several_results(trained):
    scales = nn.Parameter(torch.rand(2), requires_grad=trained)
    module = Of(lambda m, x, y: torch.sigmoid(x + m.scales.unbind()[0] * y + m.b), b=torch.randn(N), scales=scales)
    assert check(module, inputs()).ops == ([] if trained else ["add_mul_activation"])


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    "norm",
    [
        lambda m, x, trains: F.batch_norm(x, m.mean, m.var, training=trains),
        lambda m, x, trains: F.instance_norm(x[..., None].expand(*x.shape, 2), m.mean, m.var, use_input_stats=trains),
    ],
    ids=["batch_norm", "instance_norm"],
)
def test_statistics_that_a_norm_writes_between_the_parts(norm, trains):
    """Their operators' schemas do not say that they write, in training."""

    def function(m, x):
        z = x + m.mean
        return norm(m, x, trains), torch.relu(z)

    recorded = check(Of(function, mean=torch.zeros(N), var=torch.ones(N)), inputs()[:1])
    if trains:
        recorded.expect_declined("add_relu", "writes in place between the parts")
    else:
        assert recorded.ops == ["add_relu"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, b: torch.relu(x + x.shape[0]),
        lambda x, y, b: torch.sigmoid(x + x.shape[0] * y + b),
        lambda x, y, b: torch.sigmoid(x + x.shape[0] + b),
        lambda x, y, b: torch.relu(x @ y[:N].t() + x.shape[0]) @ y[:N].t() + b,
    ],
)
def test_a_size_that_is_a_symbol_is_no_tensor(function):
    torch._dynamo.reset()
    module, (backend, _) = of_bias(function), recording("eager")
    compiled = torch.compile(module, backend=backend, dynamic=True)
    for rows in (9, 12):
        arguments = inputs(shape=(rows, N))
        torch.testing.assert_close(compiled(*arguments), module(*arguments))
