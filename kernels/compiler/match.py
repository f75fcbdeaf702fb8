"""What a pattern is told and what it answers: calls in ATen to read, and Found, Declined or Miss.

A pattern is a module with `find(view)`, a generator of Found and Declined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from ..dtypes import FLOATING

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
CAT = (aten.cat.default, aten.concat.default, aten.concatenate.default)


@dataclass
class Found:
    """Calls that an op computes.

    op: its name. nodes: the calls, of the view; `out`, one of them, has the result, or several, a list, have results.
    inputs: the view's nodes that `build(call, *inputs)` makes the replacement of, a node or as many as `out`:
    call(function, *args, **kwargs) adds a call to the graph and returns its node. note: the shape of it, for people.
    form: of the op, "triton" or "cuda", as the op says. constants: the buffers whose values were looked at.
    memory: the weights and then the biases that are read from the one buffer that they lie in, if they are.
    of: of several results, which need not go together, the match of some of them, by their positions.
    """

    op: str
    out: fx.Node | list[fx.Node]
    nodes: list[fx.Node]
    inputs: list[fx.Node]
    build: Callable[..., fx.Node]
    note: str
    form: str
    constants: list[fx.Node] = field(default_factory=list)
    memory: list[fx.Node] = field(default_factory=list)
    of: Callable[[list[int]], Found] | None = None

    @property
    def outs(self) -> list[fx.Node]:
        return self.out if isinstance(self.out, list) else [self.out]


@dataclass
class Declined:
    """What was nearly matched: the op, the node, and the condition that does not hold there."""

    op: str
    node: fx.Node
    reason: str


class Miss(Exception):
    """A pattern does not match here. With a reason it nearly does."""

    def __init__(self, reason: str = "", node: fx.Node | None = None) -> None:
        super().__init__(reason)
        self.reason, self.node = reason, node


def is_call(node: object, *targets: Callable) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def name_of(call: fx.Node) -> str:
    return getattr(call.target, "__name__", str(call.target))


def arguments(node: fx.Node) -> dict[str, object]:
    """The arguments of a call of an ATen operator by name, with its defaults."""
    schema = node.target._schema.arguments
    values = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    names = (argument.name for argument in schema)
    return values | dict(zip(names, node.args, strict=False)) | node.kwargs


def value(node: fx.Node) -> Tensor:
    """The fake tensor that stands for a node's result."""
    return node.meta["val"]


def wants_gradient(*nodes: fx.Node) -> bool:
    """Whether a gradient is recorded of one of these, results among them: Dynamo's values know; of an exported program
    who asks knows."""
    recorded = torch.is_grad_enabled() and any(value(node).requires_grad for node in nodes)
    return recorded or value(nodes[-1]).requires_grad


def is_tensor(node: object) -> bool:
    """Whether an argument is a node with a tensor: it may be a number, too, or a node of one."""
    return isinstance(node, fx.Node) and isinstance(value(node), Tensor)


def same_size(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Whether two sizes are equal whatever the symbols in them are: it adds no guard."""
    a, b = (size.node.expr if isinstance(size, torch.SymInt) else size for size in (a, b))
    return bool(a == b)


def same_shape(a: Tensor, b: Tensor) -> bool:
    return a.dim() == b.dim() and all(map(same_size, a.shape, b.shape))


def is_row(tensor: Tensor, columns: int | torch.SymInt, dims: int) -> bool:
    """Whether a tensor is [N], or [1, N] and the like: in a sum with one of `dims` dimensions it adds none."""
    *ones, size = tensor.shape or (0,)
    return 0 < tensor.dim() <= dims and same_size(size, columns) and all(same_size(one, 1) for one in ones)


def as_row(call: Callable, given: object, node: fx.Node) -> object:
    """What is given for a node that `is_row`, as [N]."""
    return given if value(node).dim() == 1 else call(torch.flatten, given)


def only_reader(node: fx.Node) -> fx.Node:
    if len(node.users) != 1:
        raise Miss("an intermediate is read by others too", node)
    return next(iter(node.users))


def transposed(node: object, dims: int) -> fx.Node | None:
    """The matrix, or the batch of matrices, of `dims` dimensions, whose transpose a node is; None if it is none."""
    if not (isinstance(node, fx.Node) and node.args and isinstance(node.args[0], fx.Node)):
        return None
    source = node.args[0]
    if is_call(node, aten.t.default, aten.numpy_T.default, aten.mT.default):
        swaps = node.target is aten.mT.default or dims == 2
    elif is_call(node, aten.transpose.int):
        swaps = {dim % dims for dim in node.args[1:]} == {dims - 2, dims - 1}
    elif is_call(node, aten.permute.default):
        swaps = [dim % dims for dim in node.args[1]] == [*range(dims - 2), dims - 1, dims - 2]
    else:
        return None
    return source if swaps and value(source).dim() == dims else None


def dtype_of(results: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> torch.dtype:
    """The one floating dtype of results and inputs; Miss if there is none.

    Inputs of another are those that torch.autocast casts: only it makes halves of float32, and of other halves. So what
    is computed shows whether it is on, wherever it was set.
    """
    dtype = value(results[-1]).dtype
    others = {value(node).dtype for node in inputs} - {dtype}
    between = next((node for node in results if value(node).dtype != dtype), None)
    if others and not (dtype in HALVES and others <= {*HALVES, torch.float32}):
        raise Miss(f"the dtypes differ: {', '.join(sorted(map(str, {dtype, *others})))}", inputs[0])
    if between is not None:
        raise Miss(f"{between.target} is {value(between).dtype}, and what comes of it {dtype}", between)
    if dtype not in FLOATING:
        raise Miss(f"the dtype is {dtype}", inputs[0])
    return dtype


def in_dtype(call: Callable, dtype: torch.dtype, given: object, *nodes: fx.Node) -> object:
    """What is `given` for nodes in a replacement, in the dtype that `dtype_of` found: torch.autocast's own cast, whose
    gradient comes back in the dtype that was."""
    return given if all(value(node).dtype == dtype for node in nodes) else call(aten.to.dtype, given, dtype)


def casts(dtype: torch.dtype, *inputs: fx.Node) -> str:
    """What a note says of it."""
    return f", in {dtype} by torch.autocast" if any(value(node).dtype != dtype for node in inputs) else ""
