"""Values that are known when a graph is compiled: what a program computes of literals and of its buffers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from ..dispatch.address import address
from .guarded import Guarded
from .match import Miss, arguments
from .view import INTEGERS, View, example


class Constants:
    """Evaluates nodes of a view.

    buffers: the tensors of the placeholders of the view that may be looked at. read: those that were.
    """

    def __init__(self, view: View, buffers: Mapping[fx.Node, Tensor]) -> None:
        self._literals, self._buffers, self._opaque = view.literals, buffers, view.opaque
        self.read: list[fx.Node] = []

    def integers(self, node: fx.Node) -> list[int]:
        """The numbers of a node, one-dimensional. Miss if they are not known, or no such thing."""
        with unset_fake_temporarily(), torch.no_grad():
            tensor = self._value(node)
            if tensor.dim() != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
                raise Miss(f"an index of dtype {tensor.dtype} and {tensor.dim()} dimensions", node)
            return tensor.tolist()

    def _value(self, node: fx.Node) -> Tensor:
        if self._may_be_written(node):
            raise Miss("the pairs' indices are written to", node)
        if node in self._buffers:
            self.read.append(node)
            return self._buffers[node].cpu()
        if node.op == "get_attr" and node.target in self._literals:
            return self._literals[node.target]
        target = node.target
        if node.op != "call_function" or not (target is operator.getitem or isinstance(target, torch._ops.OpOverload)):
            raise Miss("the pairs' indices are not known when compiling", node)
        if target is not operator.getitem:
            if torch.Tag.nondeterministic_seeded in target.tags:
                raise Miss("the pairs' indices are random", node)
            if target._schema.is_mutable:
                raise Miss("the pairs' indices are written to", node)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._value)
        return target(*args, **(kwargs | {"device": "cpu"} if "device" in kwargs else kwargs))

    def _may_be_written(self, node: fx.Node) -> bool:
        """Whether a node, or what may be a view of it, is written to, or read by a call of which nothing is known."""
        seen, left = set(), [node]
        while left:
            node = left.pop()
            shown = example(node)
            is_float = isinstance(shown, Tensor) and shown.is_floating_point()
            if node in seen or is_float or not isinstance(shown, Tensor | tuple | list):
                continue
            seen.add(node)
            for reader in node.users:
                if (reader in self._opaque and reader.target is not operator.setitem) or node in written(reader):
                    return True
            left += node.users
        return False


def static_inputs(gm: fx.GraphModule, example_inputs: list) -> dict[fx.Node, Tensor]:
    """The placeholders of a Dynamo graph that are parameters and buffers, with these.

    Each is the same tensor at each call until somebody assigns another or writes to it, which `Checked` looks for.
    """
    placeholders = zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True)
    return {
        node: tensor
        for node, tensor in placeholders
        if "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})
        and isinstance(tensor, Tensor)
        and not isinstance(tensor, FakeTensor)
    }


def readable(view: View, values: Mapping[fx.Node, Tensor]) -> dict[fx.Node, Tensor]:
    """The integers among the values, by the view's nodes. None where the graph itself writes to integers: nobody tells
    whether to these."""
    known = {view.image[node]: tensor for node, tensor in values.items() if tensor.dtype in INTEGERS}
    storages = set()  # a counter, BatchNorm's, say, is known not to be an index
    for node in (node for call in view.graph.nodes for node in written(call)):
        if isinstance(example(node), Tensor) and not example(node).is_floating_point():
            if node not in known:
                return {}
            storages.add(known[node].untyped_storage().data_ptr())
    return {node: tensor for node, tensor in known.items() if tensor.untyped_storage().data_ptr() not in storages}


def may_write_inputs(view: View) -> bool:
    """Whether the graph may write to the floats of an input, a parameter, say: AOTAutograd makes of a write another
    tensor, which does not lie in the buffer that the parameter lies in."""
    for call in view.graph.nodes:
        touched = call.all_input_nodes if call in view.opaque else written(call)
        for node in touched:
            shown = example(node)
            if isinstance(shown, Tensor) and shown.is_floating_point() and base_of(node).op == "placeholder":
                return True
    return False


def base_of(node: fx.Node) -> fx.Node:
    """What a node is a view of, as far as the operators' schemas tell."""
    while node.op == "call_function":
        target = node.target
        returns = target._schema.returns if isinstance(target, torch._ops.OpOverload) else ()
        if target is not operator.getitem and not (returns and returns[0].alias_info):
            break
        node = node.args[0]
    return node


def written(call: fx.Node) -> list[fx.Node]:
    """What a call, of which something is known, writes to."""
    if call.target is operator.setitem:
        return [call.args[0]]
    if not isinstance(call.target, torch._ops.OpOverload):
        return []
    kwargs = arguments(call)
    names = [arg.name for arg in call.target._schema.arguments if arg.alias_info and arg.alias_info.is_write]
    lists = [kwargs[name] if isinstance(kwargs[name], list | tuple) else [kwargs[name]] for name in names]
    return [node for nodes in lists for node in nodes if isinstance(node, fx.Node)]


class Checked(Guarded):
    """A compiled graph that holds for the values that some of its inputs had.

    values: of the inputs that were looked at, by position. On a CPU they are compared at each call. On another device
    that waits, and is done where address or version tells that another tensor was assigned, or that one was written to.
    There a write that PyTorch does not count is not noticed: by `.data`, DLPack or torch.distributed. Who writes an
    index so tells by torch.autograd.graph.increment_version.
    """

    def __init__(self, compiled: Callable, original: fx.GraphModule, backend, values: Mapping[int, Tensor]) -> None:
        super().__init__(compiled, original, backend)
        self._values = {position: tensor.clone() for position, tensor in values.items()}
        self._seen = {position: (state(tensor), tensor.detach()) for position, tensor in values.items()}

    def holds(self, inputs: Sequence) -> bool:
        for position, (seen, _) in self._seen.items():
            tensor = inputs[position]
            if tensor.is_cpu or state(tensor) != seen:
                if not torch.equal(tensor, self._values[position]):
                    return False
                # Its memory is kept, so that no other tensor has its address.
                self._seen[position] = state(tensor), tensor.detach()
        return True


def state(tensor: Tensor) -> tuple:
    """What changes when a tensor is replaced or written to. (Shape and strides Dynamo guards.) Nobody counts what is
    written to an inference tensor."""
    return address(tensor), object() if tensor.is_inference() else tensor._version
