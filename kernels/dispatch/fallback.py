"""An overload in Python: for Triton's interpreter, for Triton's own launcher where there is no C++ compiler, and for
CUDA source that is generated, on a CPU.

It does what core.cpp does, from the same declaration: autocast, autograd, refusals, contiguous tensors, allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
from torch import Tensor

from . import allocation, input_errors, plan
from .declaration import BACKWARD, Declaration
from .loader import Loader
from .refusals import cast, refuse_gradients
from .signature import flat


class Fallback:
    """The kernel of one overload, below autograd."""

    def __init__(self, declaration: Declaration, loader: Loader, backend: str, form: str) -> None:
        self._op, self._loader, self._backend, self._form = declaration, loader, backend, form

    def __call__(self, *arguments):
        op, signature = self._op, self._op.forms[self._form]
        device = signature.first_tensor(arguments).device
        if self._form == "backward" and op.backward_form == "prepared":
            try:  # what is wrong the other op or the prepared form notices, once a signature; in other words than these
                return op.overload(self._backend, "prepared")(*op.with_prepared(self._backend, arguments))
            except Exception:
                signature.check(arguments)
                raise
        signature.check(arguments)  # first: a sparse tensor would come back here from the core
        if self._loader.load(self._backend, device.type):  # from now on the core runs it
            return op.overload(self._backend, self._form)(*arguments)
        refuse_gradients(op, self._form, arguments)
        signature.check_written(arguments)
        outputs = [allocation.empty(shape, dtype, device) for shape, dtype in op.allocations(self._form, arguments)]
        double = signature.computes_in_double(arguments)
        contiguous = [
            _scalar(value, device, double) if i in signature.scalars
            else value.contiguous() if isinstance(value, Tensor)
            else [tensor.contiguous() for tensor in value] if i in signature.lists and i not in signature.ragged
            else value
            for i, value in enumerate(signature.as_before(arguments, op.elementwise))
        ]
        for i in signature.mutated:
            if arguments[i].is_inference() and not torch.is_inference_mode_enabled():
                raise RuntimeError(
                    f"{signature.name}: an inference tensor is written to outside of torch.inference_mode()"
                )
            if not arguments[i].is_inference():
                torch.autograd.graph.increment_version(arguments[i])
        written = [contiguous[signature.mutated[0]]] if self._form == "_" else outputs
        if op.reports and self._form in ("", "_"):
            written = [*written, input_errors.tensor(device)]
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            plan.launch(op, self._form, contiguous, written, self._backend)
        for i in signature.mutated:
            if contiguous[i] is not arguments[i]:
                arguments[i].copy_(contiguous[i])
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    # ------------------------------------------------------------------------------------------- autograd and autocast

    def save(self, ctx, inputs, output) -> None:
        """setup_context of the functional form."""
        op = self._op
        if self._form == "":
            outputs = (output,) if isinstance(output, Tensor) else output
            named = op.forms[""].by_name(inputs) | dict(zip(op.outputs, outputs, strict=True))
            flags = iter(ctx.needs_input_grad)  # one for each tensor of a list
            needs = [[next(flags) for _ in v] if i in op.forms[""].lists else next(flags) for i, v in enumerate(inputs)]
            kept = op.kept_for(named, flat(needs[i] for i in self._gradient_positions()))
            ctx.save_for_backward(*flat(kept))
            ctx.counts = [len(value) if isinstance(value, list) else None for value in kept]
            ctx.inputs = [len(value) if i in op.forms[""].lists else None for i, value in enumerate(inputs)]
            ctx.shapes = op.shapes_of(named)
            ctx.others = [named[argument.name] for argument in op.others]
            ctx.versions = [_version(other) for other in ctx.others]
            ctx.mark_non_differentiable(*(outputs[i] for i in op.undifferentiable))

    def backward(self) -> Callable | None:
        """What differentiates this form, for register_autograd; None for a form that has no gradient."""
        op = self._op
        if self._form in BACKWARD:
            return self._refuse_second_derivative
        if self._form == "_" or not op.gradients:
            return None
        positions = self._gradient_positions()

        def differentiate(ctx, *grads):
            if [_version(other) for other in ctx.others] != ctx.versions:
                changed = "a number that the derivative reads was modified by an inplace operation after the forward"
                raise RuntimeError(f"{op.name}: {changed}")
            needs = flat(ctx.needs_input_grad[i] for i in positions)
            saved = grouped(ctx.saved_tensors, ctx.counts)
            arguments = (*op.differentiable(grads), *saved, *ctx.shapes, *ctx.others, needs)
            gradients = op.overload(self._backend, "backward")(*arguments)
            gradients = gradients if isinstance(gradients, tuple) else (gradients,)
            wanted = [grad if needed else None for grad, needed in zip(flat(gradients), needs, strict=True)]
            by_position = dict(zip(positions, grouped(wanted, [ctx.inputs[i] for i in positions]), strict=True))
            return tuple(
                by_position.get(i, None if count is None else [None] * count) for i, count in enumerate(ctx.inputs)
            )

        return differentiate

    def _gradient_positions(self) -> list[int]:
        """Where the arguments that have a gradient stand in the functional form."""
        return [self._op.forms[""].names.index(name) for name in self._op.gradients]

    def _refuse_second_derivative(self, ctx, *grads):
        raise RuntimeError(f'{self._op.name} has no second derivative: use backend="eager"')

    def under_autocast(self, device_type: str) -> Callable:
        """The overload with tensors of differing dtypes cast to autocast's."""
        signature, overload = self._op.forms[self._form], self._op.overload(self._backend, self._form)

        def autocast(*arguments):
            arguments = cast(signature, arguments)
            with torch.autocast(device_type, enabled=False):
                return overload(*arguments)

        return autocast


def grouped(values: Iterable, counts: Iterable[int | None]) -> list:
    """The values, in lists of so many where there is a count."""
    values = iter(values)
    return [next(values) if count is None else [next(values) for _ in range(count)] for count in counts]


def _version(value: object) -> int:
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


def _scalar(value: Tensor, device: torch.device, double: bool) -> Tensor | float:
    """What Triton's launcher takes: a tensor where it lies on the device, or where a float32 would lose digits."""
    return value.to(device) if double or value.device == device else value.item()
