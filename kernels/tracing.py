"""What torch.compile is told of a function that it meets while it traces."""

from __future__ import annotations

from collections.abc import Callable


def constant_in_a_graph(function: Callable) -> Callable:
    """torch.compile calls the function once, when it traces: as torch.compiler.assume_constant_result has it, for which
    one imports Dynamo, and Triton with it."""
    function._dynamo_marked_constant = True
    return function
