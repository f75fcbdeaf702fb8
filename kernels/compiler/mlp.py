"""fused_mlp: linear layers with activations between them.

    x → linear → act → linear → act → … → linear [→ final]        two layers or more, one activation between them all

A linear layer may be spelled F.linear, addmm, or x @ w.t() + b. Each intermediate has one reader. A BatchNorm in eval
before an activation goes into its layer (batch_norm.py), and Dropout in eval is nothing (view.py).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from ..ops.fused_mlp import choice
from ..ops.fused_mlp.op import fused_mlp
from .batch_norm import Norm, folded, norm_of, why_not_folded
from .forms import at_most, backend_of, is_on_gpu, runs
from .match import (
    Declined,
    Found,
    Miss,
    arguments,
    as_row,
    aten,
    casts,
    dtype_of,
    in_dtype,
    is_call,
    is_row,
    is_tensor,
    transposed,
    value,
    wants_gradient,
)
from .memory import are_laid_out, fused_mlp_in_place
from .pointwise import is_pointwise
from .view import DROPOUTS, NUMBERS, View, example

OP = "fused_mlp"
HAS = "fused_mlp has relu, sigmoid and gelu (of erf)"
DROPOUT = "its mask is drawn by itself, and the layers on each side of it are an MLP of their own, if they are several"
NOT_TRANSPOSED = "the product is x @ w, with a weight that is not transposed: the op takes nn.Linear's, x @ w.t()"
ACTIVATIONS = {
    aten.relu.default: "relu",
    aten.relu_.default: "relu",  # of what nobody else reads in place is the same
    aten.sigmoid.default: "sigmoid",
    aten.sigmoid_.default: "sigmoid",
}


@dataclass
class Layer:
    """act(x weightᵀ + bias), and the nodes that compute it. norm: a BatchNorm before the activation."""

    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    nodes: list[fx.Node]
    activation: str = "identity"
    norm: Norm | None = None

    @property
    def inputs(self) -> list[fx.Node]:
        """What it computes with beside x, in the order in which `parameters` takes it."""
        bias = [] if self.bias is None else [self.bias]
        return [self.weight, *bias, *(self.norm.inputs if self.norm else [])]

    def parameters(self, call: Callable, rest: Iterator, dtype: torch.dtype) -> tuple[object, object]:
        """(weight, bias) of the layer with its BatchNorm in it, in a dtype. call: adds a call. rest: of `inputs`."""
        weight, of_bias = next(rest), self.bias
        bias = None if of_bias is None else as_row(call, next(rest), of_bias)
        if self.norm is not None:
            tensors = [None if tensor is None else next(rest) for tensor in self.norm.tensors]
            pair = call(folded, weight, bias, *tensors, self.norm.epsilon)
            weight, bias, of_bias = call(operator.getitem, pair, 0), call(operator.getitem, pair, 1), self.weight
        weight = in_dtype(call, dtype, weight, self.weight)
        return weight, None if bias is None else in_dtype(call, dtype, bias, of_bias)


@dataclass
class Chain:
    """Layers that follow each other, and the node that has the last one's result."""

    out: fx.Node
    layers: list[Layer]


def find(
    view: View, parameters: Mapping[fx.Node, Tensor], others: Collection[fx.Node] = ()
) -> Iterator[Found | Declined]:
    """others: nodes that another op computes."""
    for chain in chains(view, others):
        if isinstance(chain, Declined):
            yield chain
        elif len(chain.layers) > 1 or chain.layers[0].activation != "identity":
            try:
                yield found(chain.out, chain.layers, parameters)
            except Miss as miss:
                yield Declined(OP, miss.node, miss.reason)


def chains(view: View, others: Collection[fx.Node] = ()) -> Iterator[Chain | Declined]:
    """Layers, as many as follow each other, the last ones of the graph first; and where one is cut, why."""
    used_nodes: set[fx.Node] = {*others}
    for node in reversed(view.graph.nodes):
        if node in used_nodes:
            continue
        try:
            layers = [layer_of(node)]
        except Miss as miss:
            if miss.reason:
                yield Declined(OP, miss.node, miss.reason)
            continue
        if layers[0] is None:
            continue
        try:
            while (before := layer_before(layers)) is not None and used_nodes.isdisjoint(before.nodes):
                layers.insert(0, before)
        except Miss as miss:
            yield Declined(OP, miss.node, miss.reason)
        used_nodes.update(part for layer in layers for part in layer.nodes)
        yield Chain(node, layers)


def layer_of(node: fx.Node) -> Layer | None:
    """The layer that ends in a node, None if none does."""
    name = activation_of(node)
    if name is None:
        return normed(node)
    product = node.args[0]
    layer = normed(product)
    if layer is not None:
        if len(product.users) > 1:
            raise Miss("what the activation is applied to is read by others too", product)
        layer.activation = name
        layer.nodes.append(node)
    return layer


def normed(node: fx.Node) -> Layer | None:
    """node as a linear layer, or as a BatchNorm behind one."""
    norm = norm_of(node)
    if norm is None:
        return linear(node)
    layer = linear(node.args[0])
    if layer is not None:
        if len(node.args[0].users) > 1:
            raise Miss("what the BatchNorm is applied to is read by others too", node.args[0])
        layer.norm = norm
        layer.nodes.append(node)
    return layer


def is_activated(node: fx.Node) -> bool:
    """Whether all that is done with a node is an activation."""
    return len(node.users) == 1 and all(map(activation_of, node.users))


def activation_of(node: fx.Node) -> str | None:
    """clamp(min=0), maximum(x, 0) and where(x > 0, x, 0) are none: their derivative at 0 or their NaN is another."""
    if is_call(node, aten.threshold.default):
        kwargs = arguments(node)
        return "relu" if kwargs["threshold"] == 0 and kwargs["value"] == 0 else None
    if is_call(node, aten.gelu.default):
        return "gelu" if arguments(node)["approximate"] == "none" else None
    return ACTIVATIONS.get(node.target) if node.op == "call_function" else None


def linear(node: fx.Node) -> Layer | None:
    """node = x weightᵀ + bias as a layer without an activation, None if it is no such thing."""
    if is_call(node, aten.linear.default):
        kwargs = arguments(node)
        return Layer(kwargs["input"], kwargs["weight"], kwargs["bias"], [node])
    if is_call(node, aten.addmm.default):
        kwargs = arguments(node)
        if kwargs["alpha"] != 1 or kwargs["beta"] != 1:
            raise Miss(f"addmm has alpha={kwargs['alpha']} and beta={kwargs['beta']}", node)
        layer = product(node, kwargs["mat1"], kwargs["mat2"], kwargs["self"], [node])
        if layer is None and kwargs["mat2"].op == "placeholder":
            raise Miss(NOT_TRANSPOSED, node)
        return layer
    if is_call(node, aten.add.Tensor):
        a, b = node.args
        for term, bias in ((a, b), (b, a)):
            if is_product(term) and is_tensor(bias) and not is_product(bias):
                layer = product(node, *term.args, bias, [term, node])
                if layer is None:
                    raise Miss(NOT_TRANSPOSED, term)
                if arguments(node)["alpha"] != 1:
                    raise Miss(f"add has alpha={arguments(node)['alpha']}", node)
                if len(term.users) > 1:
                    raise Miss("the product before the bias is read by others too", term)
                return layer
    if is_product(node) and not any(is_call(reader, aten.add.Tensor) for reader in node.users):
        layer = product(node, *node.args, None, [node])
        # A product with what is computed may be anything; of a layer it is one with a parameter.
        return layer if layer is not None and layer.weight.op == "placeholder" else None
    return None


def is_product(node: object) -> bool:
    return is_call(node, aten.matmul.default, aten.mm.default) and value(node.args[1]).dim() == 2


def product(node: fx.Node, x: fx.Node, matrix: fx.Node, bias: fx.Node | None, nodes: list[fx.Node]) -> Layer | None:
    weight = transposed(matrix, 2)
    if weight is None:
        return None
    # What others read of the transpose stays for them.
    return Layer(x, weight, bias, [matrix, *nodes] if len(matrix.users) == 1 else nodes)


def layer_before(layers: list[Layer]) -> Layer | None:
    """The layer that feeds the first of these. None if there is none; Miss where one nearly does: the chain is cut."""
    x = layers[0].x
    try:
        layer = layer_of(x)
    except Miss as miss:
        raise Miss(miss.reason or "no layer", miss.node or x) from None
    if layer is None:
        x = x.args[0] if activation_of(x) else x
        if is_between(x):
            reason = why_not_folded(x) or (DROPOUT if is_call(x, *DROPOUTS) else HAS)
            raise Miss(f"{x.target} stands between two layers: {reason}", x)
        return None
    if layer.activation == "identity":
        raise Miss("no activation between two linear layers", x)
    if len(x.users) > 1:
        raise Miss("what lies between two layers is read by others too", x)
    if len(layers) > 1 and layer.activation != layers[0].activation:
        raise Miss(f"{layer.activation} and then {layers[0].activation} between the layers of one MLP", x)
    return layer


BETWEEN = (
    *DROPOUTS, aten.batch_norm.default, aten.layer_norm.default, aten.group_norm.default, aten.rms_norm.default,
    aten.detach.default, aten.to.dtype, aten.where.ScalarOther,
)  # fmt: skip


def is_between(node: fx.Node) -> bool:
    """Whether a node does to one layer's result, and to nothing else, what an activation might do in its place: what
    joins branches, or takes a part, is no activation that is missing."""
    is_known = isinstance(node.target, torch._ops.OpOverload)
    if not node.op.startswith("call_") or (is_known and not is_pointwise(node) and node.target not in BETWEEN):
        return False
    layers, left = set(), [*node.all_input_nodes]
    while left:
        source = left.pop()
        if is_call(source, aten.linear.default, aten.addmm.default):
            layers.add(source)
        elif source.op.startswith("call_") and not isinstance(example(source), NUMBERS):
            left += source.all_input_nodes
        elif isinstance(example(source), Tensor) and example(source).dim() > 1:  # no norm's weight or statistics
            return False
    return len(layers) == 1


def found(out: fx.Node, layers: list[Layer], parameters: Mapping[fx.Node, Tensor]) -> Found:
    first, weights, biases = layers[0].x, [layer.weight for layer in layers], [layer.bias for layer in layers]
    inputs, memory = [first, *(node for layer in layers for node in layer.inputs)], []
    dtype = check_layers(first, layers)
    if len(layers) == 1:
        raise Miss("one layer by itself: there is nothing between layers to keep on the chip", out)
    hidden, final = layers[0].activation, layers[-1].activation

    def build(call, x, *parameters):
        options, backend = (hidden, final, precision(value(out))), backend_of(form, value(out).device)
        x = in_dtype(call, dtype, x, first)
        if memory:
            return call(fused_mlp_in_place, x, parameters[0], widths, *options, **backend)
        rest = iter(parameters)
        pairs = [layer.parameters(call, rest, dtype) for layer in layers]
        return call(fused_mlp, x, *(list(tensors) for tensors in zip(*pairs, strict=True)), *options, **backend)

    widths = "-".join(str(size) for size in (value(weights[0]).shape[1], *(value(w).shape[0] for w in weights)))
    trains = wants_gradient(*inputs, out)
    form = form_of(first, out, widths, trains)
    as_they_lie = not casts(dtype, *inputs[1:]) and not any(layer.norm for layer in layers)
    if as_they_lie and not trains and are_laid_out(parameters, weights, biases):
        memory = inputs[1:]
    nodes = [node for layer in layers for node in layer.nodes]
    note = f"{widths}, {hidden}, {final}{casts(dtype, first, *weights)}"
    return Found(OP, out, nodes, inputs, build, note, form, memory=memory)


def form_of(x: fx.Node, out: fx.Node, widths: str, trains: bool) -> str:
    """The form that computes layers of these widths, and in training their gradients; Miss where that is eager."""
    device = value(out).device
    if not is_on_gpu(device):
        return "eager"
    layers = widths, value(out).dtype, precision(value(out)), device
    if reason := choice.why_eager_in_a_graph(*layers):
        raise Miss(f"{widths}: {reason}", out)
    rows = math.prod(value(x).shape[:-1])
    if at_most(rows, 1):
        raise Miss(f"{widths}: of one row Inductor makes no matrix products, and a kernel gains nothing", out)
    most = choice.training_rows(widths, value(out).dtype)
    if trains and not at_most(rows, most, exported=True):
        raise Miss(f"{widths}: in training cuBLAS is faster" + f" beyond {most:,} rows" * (most > 0), out)
    return runs("cuda" if at_most(rows, choice.cuda_rows(*layers)) else "triton", out)


def precision(result: torch.Tensor) -> str:
    """What float32 products are computed in; Dynamo guards the setting."""
    return choice.float32_products() if is_on_gpu(result.device) else "ieee"


def check_layers(x: fx.Node, layers: list[Layer], *results: fx.Node) -> torch.dtype:
    """The dtype that layers are computed in. Miss unless fused_mlp takes them. results: before them, of that dtype."""
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    present_biases = [bias for bias in biases if bias is not None]
    computed = [node for layer in layers for node in layer.nodes if transposed(node, 2) is not layer.weight]
    dtype = dtype_of([*results, *computed], [x, *(node for layer in layers for node in layer.inputs)])
    for node in weights:
        if value(node).dim() != 2:
            raise Miss(f"a weight of {value(node).dim()} dimensions", node)
    for node in (*weights, *present_biases):
        if not all(isinstance(size, int) and size for size in value(node).shape):
            raise Miss("a weight's or a bias's size is no number, or zero", node)
    for layer in layers:
        shape = value(layer.weight).shape
        if layer.bias is not None and not is_row(value(layer.bias), shape[0], value(layer.x).dim()):
            shapes = f"{list(value(layer.bias).shape)} beside a weight of {list(shape)}"
            raise Miss(f"the bias has shape {shapes}", layer.bias)
    return dtype
