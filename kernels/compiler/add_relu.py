"""add_relu: relu(x + bias), x [..., N] and bias [N]."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from ..ops.add_relu.op import add_relu
from .forms import backend_of, only_form
from .match import Declined, Found, as_row, aten, only_reader, value
from .pointwise import bias_and_rest, check, found_at
from .view import View

OP = "add_relu"


def find(view: View) -> Iterator[Found | Declined]:
    return found_at(view, OP, (aten.relu.default, aten.relu_.default), found)


def found(out: fx.Node) -> Found | None:
    total = out.args[0]
    terms = bias_and_rest(total)
    if terms is None:
        return None
    only_reader(total)
    x, bias = terms
    check(out, bias, x)
    form = only_form(OP, x)
    options = backend_of(form, value(x).device)

    def build(call, x, tensor):
        return call(add_relu, x, as_row(call, tensor, bias), **options)

    return Found(OP, out, [total, out], [x, bias], build, f"{list(value(x).shape)}", form)
