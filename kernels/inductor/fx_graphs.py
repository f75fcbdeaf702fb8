"""Dynamo's graphs as bytes, for the process that lowers them.

A graph travels node by node: fx pickles one by tracing it again, and then loses the nodes that have no input. A
tensor's shape, strides and dtype travel, and no values.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

NO_AUTOCAST = "torch.autocast: without a GPU, cast the module and its inputs instead"


def dumps(value: Any) -> bytes:
    """A value with graphs and tensors in it, for pickle.loads.

    Raises:
        NotImplementedError: a graph holds what does not travel: torch.autocast, torch.tensor on a device, a function
            made within another.
    """
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


@dataclass(frozen=True)
class TensorLike:
    """A tensor's metadata: what the lowering needs of an input."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool = False

    def on(self, device: str) -> Tensor:
        """A tensor like it, with no values set."""
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        return tensor.requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class _Node:
    name: str


class _Pickler(pickle.Pickler):
    def reducer_override(self, value):
        if isinstance(value, torch.fx.GraphModule):
            return _put_together, _taken_apart(value)
        if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return _named, ("torch", "ops", *str(value).split("."))
        if isinstance(value, FunctionType) and "<locals>" in value.__qualname__:
            # pickle looks for a function under its qualified name. Some of torch's are made within others and stand
            # at their module's top under their plain name.
            if getattr(sys.modules[value.__module__], value.__name__, None) is not value:
                raise NotImplementedError(f"{value.__qualname__} in fn: without a GPU, define it at a module's top")
            return _named, (value.__module__, value.__name__)
        if isinstance(value, Tensor):
            return TensorLike, (tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
        return NotImplemented


def _named(module: str, *names: str) -> Any:
    return functools.reduce(getattr, names, importlib.import_module(module))


def _taken_apart(module: torch.fx.GraphModule) -> tuple:
    nodes, attributes = [], {}
    for node in module.graph.nodes:
        if node.target is torch.tensor and node.kwargs.get("device"):
            raise NotImplementedError("torch.tensor(…, device=…) in fn: without a GPU, make that tensor an input")
        if node.target is torch.amp.autocast_mode._enter_autocast:
            raise NotImplementedError(NO_AUTOCAST)
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda other: _Node(other.name))
        static = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
        nodes.append((node.op, node.name, node.target, *arguments, static))
        if node.op in ("get_attr", "call_module"):
            attributes[node.target] = functools.reduce(getattr, node.target.split("."), module)
    return nodes, attributes, {key: value for key, value in module.meta.items() if key.startswith("dynamo_")}


def _put_together(nodes: list[tuple], attributes: dict[str, Any], meta: dict[str, Any]) -> torch.fx.GraphModule:
    graph, by_name = torch.fx.Graph(), {}

    def argument(value):
        # Autograd, which traces the graph, takes no device that is not there.
        if isinstance(value, torch.device):
            return torch.device("meta")
        return by_name[value.name] if isinstance(value, _Node) else value

    for op, name, target, args, kwargs, static in nodes:
        args, kwargs = torch.fx.node.map_aggregate((args, kwargs), argument)
        by_name[name] = node = graph.create_node(op, target, args, kwargs, name)
        if op == "placeholder":  # AOTAutograd tells the parameters by this
            node._dynamo_source, node.meta["tensor_dict"] = None, {"_dynamo_static_input_type": static}
    module = torch.fx.GraphModule(attributes, graph)
    module.meta, module._param_name_to_source = meta, {}
    return module
