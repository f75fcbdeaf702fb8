"""What a public function does: find the backend, and call its overload at the price of PyTorch's own calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.compiler import is_compiling

from kernels.dispatch import fallback

if TYPE_CHECKING:
    from kernels.dispatch.op import Op

_numbers: dict[float, Tensor] = {}  # of scalars that were given as numbers


class Call:
    """One form of an op, functional or in place, as its public function calls it."""

    def __init__(self, op: Op, form: str) -> None:
        self._op, self._form = op, form
        self._made = op.forms[form]
        self._scalars = self._made.scalars
        self._on_gpu: dict[str, Callable] = {}  # backend → what is called

    def __call__(self, backend: str, *arguments):
        if is_compiling():
            return self._traced(backend, arguments)
        try:
            call = self._on_gpu[backend] if arguments[0].is_cuda else self._resolve(backend, arguments)
        except (KeyError, TypeError, AttributeError):
            call = self._resolve(backend, arguments)
        try:
            if self._scalars:
                arguments = self.with_tensors(arguments)
            return call(*arguments)
        except Exception as error:
            self._explain(arguments, error)
            raise

    def with_tensors(self, arguments: Sequence) -> list:
        """The arguments, with a 0-d tensor in place of each scalar that is a number."""
        given = list(arguments)
        for i in self._scalars:
            value = given[i]
            if type(value) is float and value in _numbers:
                given[i] = _numbers[value]
            elif not isinstance(value, Tensor) and isinstance(value, Real):
                given[i] = _as_tensor(float(value))
        return given

    def _resolve(self, backend: str, arguments: tuple) -> Callable:
        """What this backend is for these arguments; for CUDA tensors it is kept."""
        op, first = self._op, arguments[0]
        if not isinstance(first, Tensor):
            raise TypeError(f"{self._made.name}: {self._made.names[0]} must be a tensor; got {type(first).__name__}")
        known = ("eager", "triton", "cuda")
        if backend not in ("auto", *known):
            raise ValueError(f"backend must be one of auto, {', '.join(known)}; got {backend!r}")
        chosen = (op.auto if first.is_cuda else "eager") if backend == "auto" else backend
        if chosen == "eager":
            call = self._eager
        elif chosen not in op.backends:
            raise RuntimeError(f'backend="{chosen}" does not run here: {op.name} has no such kernel')
        else:
            call = op.overload(chosen, self._form)
            if not op.load(chosen, first.device.type):
                op.require(chosen, first.device.type)
                call = fallback.refusing(op, self._form, call)
        if first.is_cuda:
            self._on_gpu[backend] = call
        return call

    def _traced(self, backend: str, arguments: tuple):
        """While torch.compile or torch.export traces: the overload alone, which loads what it needs when it runs."""
        op = self._op
        if backend == "auto":
            backend = op.auto if arguments[0].is_cuda else "eager"
        if backend == "eager":
            return self._eager(*arguments)
        if backend not in op.backends:
            raise ValueError(f"backend must be one of auto, eager, {', '.join(op.backends)}; got {backend!r}")
        if self._scalars:
            # As a number a scalar would be a constant of the graph, and every other value a compilation. As a tensor on
            # the device a captured graph sees it change, too.
            given = list(arguments)
            for i in self._scalars:
                if not isinstance(given[i], Tensor):
                    given[i] = torch.ones((), dtype=torch.float64, device=given[0].device) * given[i]
            arguments = given
        return op.overload(backend, self._form)(*arguments)

    def _eager(self, *arguments):
        op, made = self._op, self._made
        arguments = fallback.cast(made, arguments)
        op.check(self._form, arguments)
        given = [
            value.item() if i in self._scalars and isinstance(value, Tensor) and not is_compiling() else value
            for i, value in enumerate(arguments)
        ]
        if not made.mutated:
            return op.eager(*given)
        if not is_compiling():  # a compiled graph has no addresses, and writes last
            fallback.refuse_gradients(op, self._form, arguments)
            op.check_written(self._form, arguments)
        return (op.eager_in_place if self._form else op.eager)(*given)

    def _explain(self, arguments: Sequence, error: Exception) -> None:
        """Raise with the declaration's own message if an argument is to blame for the error."""
        self._op.check(self._form, arguments)
        if "setup_context" in str(error):
            raise RuntimeError(f'{self._op.name} does not work under torch.func here: use backend="eager"') from None


def _as_tensor(value: float) -> Tensor:
    with torch.inference_mode(False):  # it may be saved for a backward later
        tensor = torch.tensor(value, dtype=torch.float64, device="cpu")
    if type(tensor) is Tensor:  # not a fake one
        if len(_numbers) >= 1024:
            _numbers.clear()
        _numbers[value] = tensor
    return tensor
