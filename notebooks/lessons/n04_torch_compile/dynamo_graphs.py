"""Dynamo's graphs: a backend that notes them, and whether a function is one graph."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Counting:  # a backend that notes each graph's rows, and the number of the graph that each call ran
    def __init__(self):
        self.rows, self.ran = [], []

    def __call__(self, graph, inputs):
        values = [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]
        (rows,) = (value.shape[0] for value in values if getattr(value, "shape", ())[1:] == (3,))  # of ids [B, 3]
        number = len(self.rows)
        self.rows.append(rows if isinstance(rows, int) else "any")

        def run(*arguments):
            self.ran.append(number)
            return graph.forward(*arguments)

        return run

    def in_words(self) -> str:
        """"one graph for 64 rows and one for any number of rows"."""
        rows = ["any number of rows" if n == "any" else f"{n} row{'s' * (n != 1)}" for n in self.rows]
        return "one graph for " + " and one for ".join(rows)


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
