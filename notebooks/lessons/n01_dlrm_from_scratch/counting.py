"""What a prediction needs, and what a model's operators move: the text of the notebook's cells."""

from itertools import pairwise

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def needed(rows, bottom, tables, top):  # 2048, (13, 32, 16), 26, (367, 32, 1) -> FLOPs, bytes
    layers, width = [*pairwise(bottom), *pairwise(top)], bottom[-1]
    pairs = tables * (tables + 1) // 2
    products = sum(inputs * outputs for inputs, outputs in layers) + pairs * width
    counts, ids, vectors, logit = 4 * bottom[0], 8 * tables, 4 * width * tables, 4
    weights = 4 * sum(inputs * outputs + outputs for inputs, outputs in layers)  # and biases
    return 2 * products * rows, (counts + ids + vectors + logit) * rows + weights


aten = torch.ops.aten
GATHERS = {aten.embedding.default, aten.index.Tensor}  # they read as many bytes of a table as they return


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []  # (operator, bytes)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        out = operator(*args, **(kwargs or {}))
        taken = {x.data_ptr(): x.nbytes for x in tree_leaves(args) if isinstance(x, torch.Tensor)}
        if operator in GATHERS:
            taken[args[0].data_ptr()] = out.nbytes
        if not operator.is_view and out.data_ptr() not in taken:  # a view moves nothing
            self.calls.append((operator.overloadpacket.__name__, sum(taken.values()) + out.nbytes))
        return out
