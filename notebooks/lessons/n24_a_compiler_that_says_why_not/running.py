"""A program run on copies of its inputs, compiled or not, and what is unlike eager in what it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Ran:
    """What a call gave: its tensors, its inputs afterwards, and the gradients of those that want one."""

    results: Sequence[Tensor]
    inputs: Sequence[Tensor]
    gradients: Sequence[Tensor]

    def unlike(self, other: Ran) -> str:
        """In what it is not as the other, which is right; "" if in nothing."""
        for what in ("results", "inputs", "gradients"):
            for mine, right in zip(getattr(self, what), getattr(other, what), strict=True):
                name = {"results": "the result", "inputs": "an input afterwards", "gradients": "a gradient"}[what]
                if mine.shape != right.shape:
                    return f"{name} is {list(mine.shape)}, eager's {list(right.shape)}"
                if mine.dtype != right.dtype:
                    return f"{name} is {mine.dtype}, eager's {right.dtype}"
                if what == "results" and mine.stride() != right.stride():
                    return f"{name} has the strides {mine.stride()}, eager's {right.stride()}"
                least = 1e-5 if right.dtype is torch.float32 else 2e-2
                off = ~torch.isclose(mine.double(), right.double(), rtol=least, atol=least, equal_nan=True)
                if off.any():
                    at = off.nonzero()[0].tolist()
                    here, there = mine[tuple(at)].item(), right[tuple(at)].item()
                    return f"{name} differs: at {at} it is {here:.5g}, eager's {there:.5g}"
        return ""


def copies(inputs: Sequence) -> list:
    return [each.detach().clone().requires_grad_(each.requires_grad) if isinstance(each, Tensor) else each
            for each in inputs]  # fmt: skip


def ran(call: Callable, inputs: Sequence) -> Ran:
    """A call on copies of the inputs."""
    torch.manual_seed(0)
    given = copies(inputs)
    results = [leaf for leaf in tree_leaves(call(*given)) if isinstance(leaf, Tensor)]
    wanting = [each for each in given if isinstance(each, Tensor) and each.requires_grad]
    gradients = torch.autograd.grad(sum(result.square().sum() for result in results), wanting) if wanting else ()
    tensors = [each for each in given if isinstance(each, Tensor)]
    return Ran([result.detach() for result in results], [each.detach() for each in tensors], gradients)


def raised(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", error) if isinstance(error, BackendCompilerFailed) else error
    return f"{type(inner).__name__}: {str(inner).strip().partition(chr(10))[0][:200]}"


def compiled(program: Callable, backend: Callable) -> Callable:
    torch._dynamo.reset()
    return torch.compile(program, backend=backend)
