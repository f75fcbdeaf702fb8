"""add_mul_activation: act(x + multiplier · y + bias), x, y [..., N] and bias [N], added up in this order."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Real

import torch
from torch import fx

from ..ops.add_mul_activation.op import add_mul_activation
from .forms import backend_of, only_form
from .match import (
    Declined,
    Found,
    Miss,
    arguments,
    as_row,
    aten,
    is_call,
    is_tensor,
    only_reader,
    same_shape,
    value,
)
from .pointwise import bias_and_rest, check, found_at
from .view import View

OP = "add_mul_activation"
ACTIVATIONS = {
    aten.relu.default: "relu",
    aten.relu_.default: "relu",
    aten.sigmoid.default: "sigmoid",
    aten.sigmoid_.default: "sigmoid",
    aten.tanh.default: "tanh",
    aten.tanh_.default: "tanh",
    aten.gelu.default: "gelu",
    aten.silu.default: "silu",
    aten.silu_.default: "silu",
}


def find(view: View) -> Iterator[Found | Declined]:
    return found_at(view, OP, ACTIVATIONS, found)


def found(out: fx.Node) -> Found | None:
    total = out.args[0]
    terms = bias_and_rest(total)
    if terms is None or not is_call(terms[0], aten.add.Tensor):
        return None
    inner, bias = terms
    scaled = scaled_sum(inner)
    if scaled is None:
        return None
    x, y, multiplier, nodes = scaled
    if is_call(out, aten.gelu.default) and arguments(out)["approximate"] != "none":
        raise Miss("gelu is approximated by tanh", out)
    for node in (total, inner, *nodes):
        only_reader(node)
    check(out, bias, x, y)
    activation = ACTIVATIONS[out.target]

    form = only_form(OP, x)
    options = backend_of(form, value(x).device)

    def build(call, x, y, tensor, *tensors):
        row = as_row(call, tensor, bias)
        return call(add_mul_activation, x, row, y, *(tensors or [multiplier]), activation, **options)

    tensors = [multiplier] if isinstance(multiplier, fx.Node) else []
    note = f"{list(value(x).shape)}, {activation}"
    return Found(OP, out, [*nodes, inner, total, out], [x, y, bias, *tensors], build, note, form)


def scaled_sum(node: fx.Node) -> tuple[fx.Node, fx.Node, float | fx.Node, list[fx.Node]] | None:
    """x, y, m and the nodes between, where a node is x + m · y of one shape; m is 1 where nothing is multiplied."""
    a, b = node.args
    if not all(is_tensor(term) and same_shape(value(term), value(node)) for term in (a, b)):
        return None
    alpha = node.kwargs.get("alpha", 1)
    if alpha != 1:
        return (a, b, alpha, []) if isinstance(alpha, Real) else None
    for x, product in ((a, b), (b, a)):
        if is_call(product, aten.mul.Tensor):
            for y, multiplier in (product.args, product.args[::-1]):
                if is_tensor(y) and same_shape(value(y), value(node)) and is_scalar(multiplier):
                    return x, y, multiplier, [product]
    return a, b, 1.0, []


def is_scalar(multiplier: object) -> bool:
    """A number, or a 0-d tensor as the op takes it; the op gives it no gradient."""
    if not isinstance(multiplier, fx.Node):
        return isinstance(multiplier, Real) and not isinstance(multiplier, bool)
    tensor = value(multiplier)
    is_number = isinstance(tensor, torch.Tensor) and tensor.dim() == 0
    return is_number and tensor.dtype in (torch.float32, torch.float64) and not tensor.requires_grad
