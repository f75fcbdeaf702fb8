"""The lesson's rewrites of a graph and its shadow, for who has not written theirs yet; a test compares their text with
the notebook's cells and with the answers."""

from __future__ import annotations

import copy
import operator

import torch
from torch.nn import functional as F

import kernels

ADDS, RELUS = (operator.add, torch.add), (torch.relu, F.relu)


def naive(graph):
    for relu in list(graph.nodes):
        if relu.target in RELUS and relu.args[0].target in ADDS:
            total = relu.args[0]
            with graph.inserting_before(relu):
                fused = graph.call_function(kernels.add_relu, total.args)
            fused.meta = relu.meta  # what is known of its value
            relu.replace_all_uses_with(fused)
            graph.erase_node(relu)
            if not total.users:
                graph.erase_node(total)


def rewrite(graph):
    for relu in list(graph.nodes):
        total = relu.args[0] if relu.target in RELUS and relu.args else None
        if not isinstance(total, torch.fx.Node) or total.target not in ADDS or total.kwargs or len(total.users) > 1:
            continue
        if not all(isinstance(term, torch.fx.Node) for term in total.args):
            continue
        for x, bias in (total.args, total.args[::-1]):
            a, b, out = value(x), value(bias), value(relu)
            fits = a.dim() > 1 and a.shape == out.shape and b.shape == a.shape[-1:] and out.is_contiguous()
            if fits and a.dtype == b.dtype and a.is_floating_point():
                with graph.inserting_before(total):  # what is written to the operands later, the sum has not seen
                    fused = graph.call_function(kernels.add_relu, (x, bias))
                fused.meta = relu.meta
                relu.replace_all_uses_with(fused)
                graph.erase_node(relu)
                graph.erase_node(total)
                break


def value(node):  # a fake tensor: it has shape, strides and dtype, and no numbers
    return node.meta["example_value"]


def by(rewrite):
    def backend(gm, inputs):
        rewrite(gm.graph)
        gm.graph.lint()  # raises if a node reads what is not there
        gm.recompile()  # the graph as Python code again
        return gm.forward

    return backend


def shadow(backend, differs):
    def both(gm, inputs):
        original = copy.deepcopy(gm)
        compiled = backend(gm, inputs)

        def run(*inputs):
            copies = [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in inputs]
            tried, right = compiled(*copies), original(*inputs)
            if not all(close(a, b) for a, b in zip(tried, right, strict=True)):
                differs.append((tried, right))
            return right

        return run

    return both


def close(a, b):
    return torch.allclose(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)
