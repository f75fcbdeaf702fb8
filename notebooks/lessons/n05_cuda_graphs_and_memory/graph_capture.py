"""A function's work on tensors, captured once and replayed: a CUDA graph on a GPU, on a CPU a model of one.

The model keeps what matters of a graph: capturing computes nothing; a replay runs the same operators with the same
numbers at the same addresses, and asks no line of Python again; the host cannot read a value in between.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lessons.n05_cuda_graphs_and_memory import program


class Graph:
    """capture's. replays: how often it was replayed."""

    def __init__(self, replay: Callable[[], None]):
        self._replay, self.replays = replay, 0

    def replay(self) -> None:
        """Run all that was captured once more, at the same addresses."""
        self.replays += 1
        self._replay()


def capture(function: Callable, *static: Tensor) -> tuple[Graph, object]:
    """(graph, what the function returned, which has no values before the first replay); static is left as it was.

    The static tensors are the graph's inputs: a replay reads them where they lie now. RuntimeError: the function reads
    a value on the host.
    """
    if static[0].is_cuda:
        return _on_gpu(function, static)
    recorder = _Recorder()
    with recorder:
        out = function(*static)
    recorder.forget()
    return Graph(recorder.replay), out


def _on_gpu(function: Callable, static: tuple[Tensor, ...]) -> tuple[Graph, object]:
    before = [tensor.clone() for tensor in static]
    graph, out = program.capture(function, *static)
    for tensor, value in zip(static, before, strict=True):  # the warm-up may have written to them
        tensor.copy_(value)
    return Graph(graph.replay), out


class _Recorder(TorchDispatchMode):
    """Keeps each operator with its arguments' and results' addresses."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []
        self.written: dict[int, tuple[Tensor, Tensor]] = {}  # by storage: (tensor, what it held)
        self.made: list[Tensor] = []

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        named = named or {}
        name = operator._schema.name
        if _asks_the_host(operator, arguments):
            raise RuntimeError(f"{name}: the host reads a value, but during a capture none has been computed")
        for schema, value in zip(operator._schema.arguments, arguments, strict=False):
            if schema.is_write and isinstance(value, Tensor):
                self.written.setdefault(value.untyped_storage().data_ptr(), (_same(value), value.detach().clone()))
        storages = {t.untyped_storage().data_ptr() for t in tree_leaves((arguments, named)) if isinstance(t, Tensor)}
        out = operator(*arguments, **named)
        new = [
            t for t in tree_leaves(out) if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in storages
        ]
        self.made += [_same(tensor) for tensor in new]
        views = isinstance(out, Tensor) and not new and not any(a.is_write for a in operator._schema.arguments)
        if not views and operator.namespace != "profiler":
            kept = tree_map(lambda value: _same(value) if isinstance(value, Tensor) else value, (arguments, named))
            self.calls.append((operator, *kept, [_same(tensor) for tensor in new]))
        return out

    @torch.no_grad()
    def forget(self) -> None:
        """What was captured has not been computed."""
        for tensor in self.made:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
        for tensor, value in self.written.values():
            tensor.copy_(value)

    @torch.no_grad()
    def replay(self) -> None:
        for operator, arguments, named, outputs in self.calls:
            out = operator(*arguments, **named)
            for place, value in zip(outputs, [t for t in tree_leaves(out) if isinstance(t, Tensor)], strict=False):
                place.copy_(value)


def _same(tensor: Tensor) -> Tensor:
    """Another tensor at the same address, which stays there whatever becomes of the first."""
    return tensor.detach()


def _asks_the_host(operator, arguments: tuple) -> bool:
    """Whether the operator needs a value on the host, or a size that depends on values: by index only a mask does."""
    if operator is torch.ops.aten.index.Tensor:
        return any(place is not None and place.dtype in (torch.bool, torch.uint8) for place in arguments[1])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(operator.tags))
