"""Puzzles whose answer is a function of tensors. It runs on the CPU, where an index out of range ends no process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor

from kernels.check.cases import Call
from kernels.check.spec import Spec
from lessons.shared.puzzle import reader, waits
from lessons.shared.puzzle.in_triton import checked


@dataclass(frozen=True)
class InPyTorch:
    """spec: what must come out. run: run(answer, *the call's arguments) → that; default: the answer itself.

    rules: what it may not do on a GPU; default: the host may wait. allowed: what of the lecture it may call.
    then: then(name, answer, call), of each call whose values are right: raises AssertionError if something else is not.
    """

    spec: Spec
    run: Callable | None = None
    rules: waits.Quiet | None = None
    allowed: Sequence[Callable] = ()
    then: Callable[[str, Callable, Call], None] | None = None

    def judge(self, name: str, answer: Callable) -> str:
        answer = reader.alone(answer, self.allowed)

        def function(*arguments):
            result = answer(*arguments) if self.run is None else self.run(answer, *arguments)
            if isinstance(result, tuple | list) and len(self.spec.outputs) == 1:
                raise AssertionError(f"must return a tensor; got {type(result).__name__}")
            return result.contiguous() if isinstance(result, Tensor) else result

        text = checked(name, function, self.spec, "cpu")
        for call in calls_of(self.spec):
            try:
                if self.rules is not None:
                    waits.look(self.rules, answer, call)
                if self.then is not None:
                    self.then(name, answer, call)
            except AssertionError as error:
                raise AssertionError(f"{name}, case {call.name}: {error}") from error
        return text


@contextmanager
def no_autograd() -> Iterator[None]:
    """In here nothing is differentiated: who asks autograd for a gradient gets an AssertionError."""
    with ExitStack() as stack:
        for asked in ("torch.autograd._engine_run_backward", "torch.autograd.forward_ad.enter_dual_level"):
            stack.enter_context(mock.patch(asked, _refuse))
        yield


def _refuse(*arguments, **named) -> None:
    raise AssertionError("autograd was asked: here the gradients are yours to write")


def calls_of(spec: Spec) -> list[Call]:
    """All calls of a puzzle, in order."""
    return [call for case in spec.cases(spec.tensors) for call in spec.calls(case, torch.device("cpu"))]


class _Densely(torch.autograd.Function):
    """What comes in; its gradient is made dense."""

    @staticmethod
    def forward(context, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context, grad: Tensor) -> Tensor:
        return grad.to_dense() if grad.is_sparse else grad


def dense_gradient(tensor: Tensor) -> Tensor:
    """The tensor; where its gradient is sparse, as F.embedding's can be, it arrives dense: Adam takes no sparse one."""
    return _Densely.apply(tensor) if tensor.requires_grad else tensor
