"""The op of the notebook's cells once more, for those who measure it: declared by torch.library alone, in two ways."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from lessons.n11_make_it_an_op import plain_function

Op = Callable[[Tensor, Tensor], Tensor]


def fake(x: Tensor, bias: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(output)


def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
    (out,) = ctx.saved_tensors
    grad_x = torch.where(out <= 0, 0, grad)  # not grad * (out > 0): Inf times 0 is NaN
    return grad_x, grad_x.flatten(0, -2).sum(0)


def with_kernel(x: Tensor, bias: Tensor) -> Tensor:
    return plain_function.add_relu(x, bias)


def with_torch(x: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(x + bias)


IMPLEMENTATIONS = {"kernel": with_kernel, "torch": with_torch}


@functools.cache
def by_decorator(implementation: str = "kernel") -> Op:
    """As in the notebook: torch.library.custom_op, which reads the schema from the annotations."""

    def add_relu(x: Tensor, bias: Tensor) -> Tensor:
        return IMPLEMENTATIONS[implementation](x, bias)

    add_relu.__annotations__ = {"x": Tensor, "bias": Tensor, "return": Tensor}
    op = torch.library.custom_op(f"lecture::decorated_{implementation}", mutates_args=())(add_relu)
    op.register_fake(fake)
    op.register_autograd(backward, setup_context=setup_context)
    return op


@functools.cache
def by_define(implementation: str = "kernel") -> Op:
    """The same in its parts, with a schema in text: define, impl, and the same fake and gradient."""
    name = f"defined_{implementation}"
    torch.library.define(f"lecture::{name}", "(Tensor x, Tensor bias) -> Tensor")
    torch.library.impl(f"lecture::{name}", ("cpu", "cuda"), IMPLEMENTATIONS[implementation])
    torch.library.register_fake(f"lecture::{name}", fake)
    torch.library.register_autograd(f"lecture::{name}", backward, setup_context=setup_context)
    return getattr(torch.ops.lecture, name).default
