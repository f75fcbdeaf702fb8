"""The operators that a call runs, below autograd, without a profiler."""

from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Operator(NamedTuple):
    """A call of an operator: its name, in place or not, and the bytes of the tensors that it takes and gives."""

    name: str
    read: int
    written: int


class Operators(TorchDispatchMode):
    """Notes the operators that compute something, below autograd: with Operators() as operators: …; operators.seen.

    Left out is a view: it computes nothing and gives the memory that it was given. A number that is passed as a 0-d
    tensor on the CPU, as the ops of kernels/ take a multiplier, counts no bytes. Dense tensors only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Operator] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        taken, given = ([x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)] for tree in ((args, kwargs), out))
        same = {x.untyped_storage()._cdata for x in taken} & {x.untyped_storage()._cdata for x in given}
        if not same or function._schema.is_mutable:
            read = sum(x.nbytes for x in taken if x.dim() or x.device.type != "cpu")
            written = sum(x.nbytes for x in given)
            self.seen.append(Operator(function._schema.name.split("::")[1].rstrip("_"), read, written))
        return out
