"""The rows of dot_interaction's result, where nothing but layers reads them: filled up to whole vectors of memory.

    linear(dot_interaction(d, s), w, b)    →    linear(dot_interaction(d, s, 8), pad(w), b)

Rows of 367 or 479 numbers begin anywhere, and cuBLAS reads them one by one: on an H200 MLPerf's model took 88 µs for
128 rows in bfloat16 with them, and 62 where Inductor, which writes the rows itself, fills them up.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.node import map_arg

from ..ops.dot_interaction.op import dot_interaction
from ..ops.fused_mlp.op import fused_mlp
from .forms import at_most, is_on_gpu
from .match import aten, is_call
from .view import example

PAD_TO = 8  # numbers: 16 bytes in half precision, 32 in float32
PAD = aten.constant_pad_nd.default
FEW = 32  # rows, of which filling up the weight takes longer than it saves


def pad_pairs(graph: fx.Graph) -> None:
    """Fill up the rows of each dot_interaction that only layers read, and their weights by zeros."""
    for node in graph.nodes:
        if not is_call(node, dot_interaction) or len(node.args) > 2 or not node.users:
            continue
        if not all(reads(user, node) for user in node.users):
            continue
        out = example(node)
        rows, columns = out.shape
        zeros = -columns % PAD_TO
        if not zeros or not is_on_gpu(out.device) or at_most(rows, FEW):
            continue
        node.args = (*node.args, PAD_TO)
        node.meta["example_value"] = PAD(out, (0, zeros))
        for user in list(node.users):
            if is_call(user, fused_mlp):  # which reads the columns of its first weight
                continue
            with graph.inserting_before(user):
                x, weight, *bias = user.args
                padded = graph.call_function(PAD, (weight, (0, zeros)))
                padded.meta["example_value"] = PAD(example(weight), (0, zeros))
                user.args = (x, padded, *bias)


def reads(user: fx.Node, node: fx.Node) -> bool:
    """Whether a call is a layer of a node's rows, and reads them as nothing else."""
    if not is_call(user, fused_mlp, torch._C._nn.linear, aten.linear.default):
        return False
    others = []
    map_arg((user.args[1:], user.kwargs), others.append)
    return user.args[0] is node and node not in others and len(user.args) > 1
