"""The rows of dot_interaction's and lookup_interact's results, where nothing but layers reads them: filled up to whole
vectors of memory.

    linear(dot_interaction(d, s), w, b)    →    linear(dot_interaction(d, s, 8), pad(w), b)

Rows of 367 or 479 numbers begin anywhere, and cuBLAS loads aligned rows faster: eager's 367-512-256-1 takes 458 µs for
65,536 rows on an H200 in TF32, and 281 with rows and weights of 368 (traces/results/h200/fused_mlp.json).
"""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.node import map_arg

from ..ops.dot_interaction.op import dot_interaction
from ..ops.fused_mlp.op import fused_mlp
from ..ops.lookup_interact.op import lookup_interact
from .forms import at_most, is_on_gpu
from .match import arguments, aten, is_call
from .view import example, is_plain

PAD_TO = 8  # numbers: 16 bytes in half precision, 32 in float32
PAD = aten.constant_pad_nd.default
PLACES = {dot_interaction: 2, lookup_interact: 5}  # of pad_to among the arguments
LOOK_UPS = aten.embedding.default, aten.embedding_bag.default, aten.embedding_bag.padding_idx


def pad_pairs(graph: fx.Graph) -> dict[fx.Node, int]:
    """Fill up the rows of each dot_interaction and lookup_interact that only layers read, and their weights by zeros.
    Returns to how many columns."""
    columns_of = {}
    for node in graph.nodes:
        if not is_call(node, *PLACES) or not node.users:
            continue
        before, behind = node.args[: PLACES[node.target]], node.args[PLACES[node.target] :]
        if behind[:1] not in ((), (1,)):
            continue
        if not all(reads(user, node) for user in node.users):
            continue
        out = example(node)
        rows, columns = out.shape
        zeros = -columns % PAD_TO
        if not zeros or not is_on_gpu(out.device) or at_most(rows, 1):  # of one row Inductor makes no matrix products
            continue
        node.args = (*before, PAD_TO, *behind[1:])
        node.meta["example_value"] = padded(out, zeros)
        columns_of[node] = columns + zeros
        for user in list(node.users):
            if is_call(user, fused_mlp):  # which reads the columns of its first weight
                continue
            with graph.inserting_before(user):
                x, weight, *bias = user.args
                filled = graph.call_function(PAD, (weight, (0, zeros)))
                filled.meta["example_value"] = padded(example(weight), zeros)
                user.args = (x, filled, *bias)
    return columns_of


def has_sparse_gradients(graph: fx.Graph) -> bool:
    """Whether a look-up of a graph in ATen has a sparse gradient. Where a pass of Inductor's changes what such a
    gradient is computed of, as it does with padding, it asks for the gradient's memory, and raises."""
    if not torch.is_grad_enabled():
        return False
    return any(arguments(node).get("sparse") for node in graph.nodes if is_call(node, *LOOK_UPS))


def padded(tensor: Tensor, zeros: int) -> Tensor:
    """A fake tensor with so many columns more. By its own kernel the operator would make numbers of open sizes."""
    with enable_python_dispatcher():
        return PAD(tensor, (0, zeros))


def reads(user: fx.Node, node: fx.Node) -> bool:
    """Whether a call is a layer of a node's rows, and reads them as nothing else."""
    if len(user.args) < 2 or user.args[0] is not node:
        return False
    others = []
    map_arg((user.args[1:], user.kwargs), others.append)
    if node in others:
        return False
    is_linear = is_call(user, torch._C._nn.linear, aten.linear.default)
    return is_call(user, fused_mlp) or (is_linear and is_plain(example(user.args[1])))
