"""Dynamo's graphs, counted: which operations each has, which shapes it takes, and which graph serves which call."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from data.synthetic import SyntheticConfig
from model.config import preset
from model.dlrm import DLRM

FEATURES = 13  # dense ones


class Counting:
    """A backend that compiles nothing. graphs: what Dynamo found; ran: for each call of one, the graph's number."""

    def __init__(self):
        self.graphs: list[torch.fx.GraphModule] = []
        self.ran: list[int] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable:
        number = len(self.graphs)
        self.graphs.append(graph)

        def run(*arguments):
            self.ran.append(number)
            return graph.forward(*arguments)

        return run

    def operations(self) -> list[list[str]]:
        """The names of what each graph calls."""
        return [
            [getattr(node.target, "__name__", str(node.target)) for node in graph.graph.nodes if "call" in node.op]
            for graph in self.graphs
        ]

    def rows(self) -> list[str]:
        """How many rows of `dense` each graph takes: a number, or "any"."""
        found = []
        for graph in self.graphs:
            inputs = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
            tensors = [value for value in inputs if isinstance(value, Tensor) and not value.requires_grad]
            (dense,) = [tensor for tensor in tensors if tensor.dim() == 2 and tensor.shape[1] == FEATURES]
            rows = str(dense.shape[0])
            found.append(rows if rows.isdigit() else "any")
        return found


def small_model(tables: int = 26) -> DLRM:
    """The preset `small` with the story's first tables."""
    torch.manual_seed(0)
    cardinalities = SyntheticConfig().cardinalities[:tables]
    return DLRM(replace(preset("small").model, cardinalities=cardinalities, sparse_gradients=False))


def batch_of(rows: int, tables: int = 26) -> tuple[Tensor, Tensor]:
    """dense [rows, 13] and ids [rows, tables]."""
    return torch.randn(rows, FEATURES), torch.randint(2**32, (rows, tables))


@contextmanager
def quiet() -> Iterator[None]:
    """Without Dynamo's warnings of breaks and of its limit, which a puzzle or a count is about anyway."""
    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def graphs_of(function: Callable, *inputs: Any) -> Counting:
    """The graphs that Dynamo makes of one call."""
    torch._dynamo.reset()
    backend = Counting()
    with quiet():
        torch.compile(function, backend=backend)(*inputs)
    return backend


def first_break(function: Callable, *inputs: Any) -> str:
    """Why the first graph ends, and where; it runs the function."""
    torch._dynamo.reset()
    found = torch._dynamo.explain(function)(*inputs)
    if not found.break_reasons:
        return "no break"
    reason = found.break_reasons[0]
    return f"{reason.reason.splitlines()[0]}, at: {reason.user_stack[-1].line}"


def stops_at(function: Callable, *inputs: Any) -> str:
    """"" if Dynamo gets the function into one graph, else the line that it stops at."""
    torch._dynamo.reset()
    try:
        torch.compile(function, backend="eager", fullgraph=True)(*inputs)
    except torch._dynamo.exc.TorchDynamoException as error:
        named = re.findall(r'File "[^"]*", line (\d+), in (\w+)\n\s+(.*)', str(error))
        return "{1}, line {0}: {2}".format(*named[-1]) if named else str(error).splitlines()[0]
    finally:
        torch._dynamo.reset()
    return ""


def served(sizes: Iterable[int], mark: bool = False, **options: Any) -> Counting:
    """The graphs that batches of these sizes run, in order. mark: mark_dynamic on the first dimension."""
    torch._dynamo.reset()
    backend, model = Counting(), small_model(tables=1)
    compiled = torch.compile(model, backend=backend, **options)
    with torch.no_grad(), quiet():
        for rows in sizes:
            batch = batch_of(rows, tables=1)
            if mark:
                for tensor in batch:
                    torch._dynamo.mark_dynamic(tensor, 0)
            compiled(*batch)
    torch._dynamo.reset()
    return backend


# What the lecture breaks, and mends.


def bounded(logits: Tensor) -> Tensor:
    """Probabilities of logits that are scaled to within ±10."""
    largest = logits.abs().max()
    if largest.item() > 10:
        logits = logits * (10 / largest)
    return torch.sigmoid(logits)


def bounded_where(logits: Tensor) -> Tensor:
    """The same, decided on the device."""
    largest = logits.abs().max()
    return torch.sigmoid(torch.where(largest > 10, logits * (10 / largest), logits))
