"""outer_linear: a linear layer of c cᵀ, and the ReLU behind it, where c cᵀ need not be written.

    c [B, C]      z = c[:, :, None] · c[:, None, :]      [relu](linear(z.flatten(1)))

The product is spelled mul, bmm or matmul of c as a column and as a row. In tf32 and halves, which go through tensor
cores, and of C columns from which on the kernel adds the weights of c_i c_j and c_j c_i first: half the work.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from ..ops.fused_mlp.choice import is_full_float32
from ..ops.outer_linear.op import outer_linear
from . import mlp
from .forms import backend_of, only_form
from .match import Declined, Found, Miss, aten, casts, in_dtype, is_call, only_reader, same_size, value
from .view import View

OP = "outer_linear"
FEWEST = 98  # C, from which on the kernel has half the work (the op's docstring)
FLATTENS = (aten.flatten.using_ints, aten.view.default, aten.reshape.default)
PRODUCTS = (aten.mul.Tensor, aten.bmm.default, aten.matmul.default)


def find(view: View) -> Iterator[Found | Declined]:
    for node in view.graph.nodes:
        try:
            layer = mlp.layer_of(node)
        except Miss:  # of which mlp.py speaks
            continue
        if layer is None or (c := root_of(layer.x)) is None:
            continue
        # The layer before a relu is a part of that call; another activation or a BatchNorm stays, behind the layer's.
        if layer.activation not in ("identity", "relu") or layer.norm is not None or is_before_relu(node):
            continue
        try:
            yield found(node, layer, c)
        except Miss as miss:
            yield Declined(OP, miss.node or node, miss.reason)


def is_before_relu(node: fx.Node) -> bool:
    return len(node.users) == 1 and mlp.activation_of(*node.users) == "relu"


def root_of(node: object) -> fx.Node | None:
    """c, where a node is c cᵀ, row by row: [B, C C]."""
    if not is_call(node, *FLATTENS) or value(node).dim() != 2 or not is_call(node.args[0], *PRODUCTS):
        return None
    column, row = node.args[0].args[:2]
    if not (is_call(column, aten.unsqueeze.default) and is_call(row, aten.unsqueeze.default)):
        return None
    c = column.args[0]
    if row.args[0] is not c or value(c).dim() != 2 or [column.args[1] % 3, row.args[1] % 3] != [2, 1]:
        return None
    columns = value(c).shape[1]
    flat = isinstance(columns, int) and same_size(value(node).shape[1], columns * columns)
    return c if flat and same_size(value(node).shape[0], value(c).shape[0]) else None


def found(out: fx.Node, layer: mlp.Layer, c: fx.Node) -> Found:
    columns, product = value(c).shape[1], layer.x.args[0]
    if columns < FEWEST:
        raise Miss(f"of {columns} columns, where the kernel saves nothing: it does from {FEWEST} on", out)
    if layer.bias is None:
        raise Miss("the layer has no bias", out)
    dtype = mlp.check_layers(c, [layer], product)
    precision = mlp.precision(value(out))
    if is_full_float32(dtype, precision):
        raise Miss("in full float32 its form is eager, cuBLAS being faster", out)
    for node in (product, layer.x):
        only_reader(node)
    form = only_form(OP, c)
    options = backend_of(form, value(c).device)

    def build(call, given, *rest):
        given, parameters = in_dtype(call, dtype, given, c), layer.parameters(call, iter(rest), dtype)
        return call(outer_linear, given, *parameters, layer.activation, precision, **options)

    sides = [side for side in product.args[:2] if len(side.users) == 1]
    note = f"{columns} columns, {value(layer.weight).shape[0]} outputs, {layer.activation}, {precision}"
    note += casts(dtype, c, layer.weight, layer.bias)
    nodes = [*sides, product, layer.x, *layer.nodes]
    return Found(OP, out, nodes, [c, layer.weight, layer.bias], build, note, form)
