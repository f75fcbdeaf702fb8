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


GATHERS = {"embedding", "index"}  # of their first argument they read what the indices name


class Operators(TorchDispatchMode):
    """Notes the operators that compute something, below autograd: with Operators() as operators: …; operators.seen.

    Left out is a view: it computes nothing and gives the memory that it was given; and what neither takes nor gives a
    tensor, as the ops of kernels/ do when they are declared, at a first call. A number that is passed as a 0-d
    tensor on the CPU, as the ops of kernels/ take a multiplier, counts no bytes. Dense tensors only.

    least: count no more than must be read: memory that two arguments share once (T and its transpose), and of a tensor
    that is indexed the elements that are taken, each time one is.
    """

    def __init__(self, least: bool = False) -> None:
        super().__init__()
        self.least = least
        self.seen: list[Operator] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        inputs, outputs = (
            [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)] for tree in ((args, kwargs), out)
        )
        same = {x.untyped_storage()._cdata for x in inputs} & {x.untyped_storage()._cdata for x in outputs}
        if (inputs or outputs) and (not same or function._schema.is_mutable):
            places = {(x.untyped_storage()._cdata, x.storage_offset()): x for x in inputs}
            counted = places.values() if self.least else inputs
            read = sum(x.nbytes for x in counted if x.dim() or x.device.type != "cpu")
            written = sum(x.nbytes for x in outputs)
            name = function._schema.name.split("::")[1].rstrip("_")
            if self.least and name in GATHERS:
                read += written - args[0].nbytes
            self.seen.append(Operator(name, read, written))
        return out
