"""A compiled graph that holds under a condition of the backend's own, which each call looks at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx


class Guarded:
    """A compiled graph; where `holds(inputs)` is false, the graph as it was, which `backend` compiles when needed."""

    def __init__(self, compiled: Callable, original: fx.GraphModule, backend: Callable | str) -> None:
        self._compiled, self._original, self._backend = compiled, original, backend
        self._compiled_original: Callable | None = None

    def holds(self, inputs: Sequence) -> bool:
        raise NotImplementedError

    def __call__(self, *args):
        inputs = args[0] if len(args) == 1 and isinstance(args[0], list) else args  # AOTAutograd's take either
        if self.holds(inputs):
            return self._compiled(*args)
        if self._compiled_original is None:
            original = self._original
            # Dynamo passes over the call of a graph module that it made itself.
            self._compiled_original = torch.compile(lambda *inputs: original(*inputs), backend=self._backend)
        return self._compiled_original(*inputs)
