"""A graph with each call in ATen, to match on: F.relu, x.relu() and nn.ReLU are all aten.relu there.

Only matching is done on it. What is not replaced stays in Dynamo's graph as Dynamo made it, with its hooks, contexts,
checkpoints and metadata: a graph that was traced again as a whole would lose them. The view of torch.export's graph,
which is in ATen already, is a copy.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from unittest import mock

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .match import arguments, aten, is_call

# Methods that give a tensor but do more to it than an operator does.
EFFECTS = {"register_hook", "requires_grad_", "retain_grad"}
SETS_GRADIENTS = "_set_grad_enabled"
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)  # which have no gradient
DROPOUTS = (
    aten.dropout.default, aten.dropout_.default, aten.alpha_dropout.default, aten.alpha_dropout_.default,
    aten.feature_dropout.default, aten.feature_dropout_.default, aten.feature_alpha_dropout.default,
    aten.feature_alpha_dropout_.default,
)  # fmt: skip
NUMBERS = int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool


class View:
    """The view of a graph.

    graph: in ATen. origin: the call of the original that one of its nodes comes from. image: the node that has the
    result of a call of the original; of several results a tuple. source: the first call of the original that has a
    node's result. opaque: nodes of which nothing is known: they stand as they are in the original, and match nothing.
    literals: tensors that the program writes out, torch.tensor([1, 2]), by the names of their get_attr nodes.
    """

    def __init__(self, original: fx.Graph) -> None:
        self.graph = fx.Graph()
        self.origin: dict[fx.Node, fx.Node] = {}
        self.image: dict[fx.Node, fx.Node | tuple] = {}
        self.opaque: set[fx.Node] = set()
        self.literals: dict[str, Tensor] = {}
        self._mode = mode_of(original)
        self._autocasts: list[tuple] = []  # torch.autocast's arguments, of those that are open
        for node in original.nodes:
            self.image[node] = self._seen(node)
            for image in reversed(self.graph.nodes):
                if image in self.origin:
                    break
                self.origin[image] = node
        self.source: dict[fx.Node, fx.Node] = {}
        for node, image in self.image.items():
            if isinstance(image, fx.Node):
                self.source.setdefault(image, node)

    def _seen(self, node: fx.Node) -> fx.Node | tuple:
        if node.target is operator.getitem and isinstance(self.image[node.args[0]], tuple | list):
            return self.image[node.args[0]][node.args[1]]
        inputs = [self.image[source] for source in node.all_input_nodes]
        part = self._part(node) if all(isinstance(image, fx.Node) for image in inputs) else None
        if part is None:
            return self._copied(node)
        output = self.graph.graph_copy(part, dict(zip(part.find_nodes(op="placeholder"), inputs, strict=True)))
        several = isinstance(output, tuple | list)
        for image, shown in zip(output, example(node), strict=True) if several else [(output, example(node))]:
            if isinstance(image, fx.Node) and image not in inputs:
                image.meta["val"] = shown  # Dynamo's knows whether it requires a gradient
        return output

    def _copied(self, node: fx.Node) -> fx.Node:
        if node.target is _enter_autocast:
            self._autocasts.append(node.args)
        elif node.target is _exit_autocast:
            del self._autocasts[-1:]
        copy = self.graph.node_copy(node, self.image.__getitem__)
        copy.meta = node.meta | {"val": example(node)}
        if node.op.startswith("call_") and node.target is not operator.getitem:
            self.opaque.add(copy)
        return copy

    def _part(self, node: fx.Node) -> fx.Graph | None:
        """A call in ATen; None where it cannot be traced by itself."""
        if self._mode is None or not is_traceable(node):
            return None
        inputs = node.all_input_nodes

        def call(*values):
            args, kwargs = fx.node.map_arg(
                (node.args, node.kwargs), dict(zip(inputs, values, strict=True)).__getitem__
            )
            if node.op == "call_method":
                return getattr(args[0], node.target)(*args[1:], **kwargs)
            return node.target(*args, **kwargs)

        fakes = [example(source) for source in inputs]
        fakes = [fake.detach() if isinstance(fake, Tensor) else fake for fake in fakes]
        try:
            with contextlib.ExitStack() as contexts:
                for arguments in self._autocasts:
                    contexts.enter_context(torch.autocast(*arguments))
                part = traced(call, fakes, self._mode)
        except Exception:  # whatever it was, the call stays opaque
            return None
        literals = {attribute: getattr(part, attribute.target) for attribute in part.graph.find_nodes(op="get_attr")}
        if any(not isinstance(literal, Tensor) or isinstance(literal, FakeTensor) for literal in literals.values()):
            return None
        for attribute, literal in literals.items():
            attribute.target = f"literal_{len(self.literals)}"
            self.literals[attribute.target] = literal
        without_identities(part.graph)
        return part.graph if keeps_gradients(node, part.graph) else None


def traced(function: Callable, fakes: Sequence, mode: FakeTensorMode) -> fx.GraphModule:
    """A function of fake tensors and numbers in ATen, before autograd."""
    # As torch.export does, for torch.tensor([1, 2]): its literal is no fake tensor.
    with mode, mock.patch.object(mode, "allow_non_fake_inputs", True):
        return make_fx(function, pre_dispatch=True)(*fakes)


def example(node: fx.Node) -> object:
    """The value that a node was traced with, a fake tensor or a number; None if it has none."""
    return node.meta.get("example_value", node.meta.get("val"))


def mode_of(graph: fx.Graph) -> FakeTensorMode | None:
    """The mode of the graph's fake tensors. The tracing context has another by now, a fresh one for AOTAutograd."""
    for node in graph.nodes:
        if isinstance(example(node), FakeTensor):
            return example(node).fake_mode
    return None


def is_traceable(node: fx.Node) -> bool:
    """Whether a call is one of torch's functions from tensors and numbers to tensors."""
    result = example(node)
    results = result if isinstance(result, tuple | list) else [result]
    if node.op not in ("call_function", "call_method") or not all(isinstance(output, Tensor) for output in results):
        return False
    if node.op == "call_method" and node.target in EFFECTS:
        return False
    if node.op == "call_function":
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return False
        module = getattr(node.target, "__module__", None) or "torch"  # torch's built-in functions have none
        if module.split(".")[0] not in ("torch", "_operator", "builtins"):
            return False
    values = [example(source) for source in node.all_input_nodes] + [*results]
    return all(is_plain(value) and not is_unbacked(value) for value in values)


def is_plain(value: object) -> bool:
    """Whether a value is a number, or a tensor as Dynamo makes them: no subclass, and none that torch.func wrapped."""
    if not isinstance(value, Tensor):
        return isinstance(value, NUMBERS)
    return isinstance(value, FakeTensor) and not torch._C._functorch.is_functorch_wrapped_tensor(value)


def is_unbacked(value: object) -> bool:
    """Whether a value, or a size of a tensor, is a number that the program computes: a symbol without a hint."""
    if isinstance(value, Tensor):
        return any(map(is_unbacked, value.shape))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) and bool(free_unbacked_symbols(value))


def without_identities(graph: fx.Graph) -> None:
    """Take out the calls that give their argument: x[:], aliases, x.float() of float32, dropout in eval mode."""
    for node in list(graph.nodes):
        if node.op == "call_function" and is_identity(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def is_identity(node: fx.Node) -> bool:
    if is_call(node, aten.slice.Tensor):
        kwargs = arguments(node)
        whole = kwargs["end"] is None or (isinstance(kwargs["end"], int) and kwargs["end"] >= 2**63 - 1)
        return kwargs["start"] in (0, None) and whole and kwargs["step"] == 1
    if is_call(node, *DROPOUTS):
        return not (arguments(node)["train"] and arguments(node)["p"])
    if is_call(node, aten.to.dtype):  # x.float() of float32
        kwargs = arguments(node)
        as_it_lies = kwargs["memory_format"] in (None, torch.preserve_format)
        return kwargs["dtype"] == node.args[0].meta["val"].dtype and not kwargs["copy"] and as_it_lies
    if is_call(node, aten.detach_.default):  # how torch.tensor([1, 2]) ends
        return is_call(node.args[0], aten.lift_fresh_copy.default) or node.meta["val"].dtype in INTEGERS
    return is_call(node, aten.alias.default)


def keeps_gradients(node: fx.Node, part: fx.Graph) -> bool:
    """Whether what looks like an identity is one for autograd, too: a call that traces to nothing may detach."""
    result = part.output_node().args[0]
    if not (isinstance(result, fx.Node) and result.op == "placeholder"):
        return True
    source = node.all_input_nodes[part.find_nodes(op="placeholder").index(result)]
    return example(source).requires_grad == example(node).requires_grad
