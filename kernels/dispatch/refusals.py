"""What every call does before its kernel, whoever runs it: autocast's casts, and the gradients that are refused.

The C++ core does the same in autograd.h; here it is done for calls that the core does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .declaration import Declaration
from .schema import Form


def cast(form: Form, arguments: Sequence) -> Sequence:
    """Under torch.autocast, floating tensors of differing dtypes in its dtype; float64, scalars and what is written
    excepted."""
    first = form.leading(arguments)
    if not (isinstance(first, Tensor) and autocasts(first)):
        return arguments
    floating = [(i, tensor) for i, tensor in form.tensors(arguments) if tensor.is_floating_point()]
    if len({tensor.dtype for _, tensor in floating}) < 2:
        return arguments
    dtype = torch.get_autocast_dtype(first.device.type)
    castable = {i for i, _ in floating if i not in form.mutated}

    def cast(value: object) -> object:
        is_cast = isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype) if is_cast else value

    return [
        value if i not in castable else list(map(cast, value)) if i in form.lists else cast(value)
        for i, value in enumerate(arguments)
    ]


def autocasts(tensor: Tensor) -> bool:
    """Whether torch.autocast is on for the tensor's device; on "meta" there is none."""
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)


def refusing(declaration: Declaration, form_name: str, overload: Callable) -> Callable:
    """The overload, refusing what the core refuses: forward mode, and gradients that it does not have."""
    form = declaration.forms[form_name]

    def checked(*arguments):
        for _, tensor in form.tensors(arguments):
            if forward_ad.unpack_dual(tensor).tangent is not None:
                raise RuntimeError(f'{form.name} has no forward-mode derivative: use backend="eager", or reverse mode')
        refuse_gradients(declaration, form_name, arguments)
        for i in form.scalars:  # below autograd it no longer shows whether a scalar's gradient is wanted
            if isinstance(arguments[i], Tensor) and arguments[i].requires_grad and torch.is_grad_enabled():
                raise RuntimeError(f"{form.name}: {form.names[i]} has no gradient: detach() it")
        return overload(*arguments)

    return checked


def refuse_gradients(declaration: Declaration, form_name: str, arguments: Sequence) -> None:
    """Raise RuntimeError if autograd would want a gradient of a form that has none."""
    form = declaration.forms[form_name]
    if declaration.gradients and not form.mutated:
        return
    if torch.is_grad_enabled() and any(tensor.requires_grad for _, tensor in form.tensors(arguments)):
        instead = (
            f"call {declaration.name}, or {form.name} under torch.no_grad()"
            if form_name == "_"
            else "call it under torch.no_grad(), or detach() its arguments"
        )
        raise RuntimeError(f"{form.name} has no gradient: {instead}")


def refuse_unbatched(declaration: Declaration, form_name: str, arguments: Sequence) -> None:
    """Raise RuntimeError if torch.func.vmap batches what is read and not what is written, which has room for one."""
    form, is_batched = declaration.forms[form_name], torch._C._functorch.is_batchedtensor
    batched = next((form.names[i] for i, tensor in form.tensors(arguments) if is_batched(tensor)), None)
    for i in form.mutated:
        if batched is not None and not is_batched(arguments[i]):
            functional = f"call {declaration.name}, or " * (form_name == "_")
            raise RuntimeError(
                f"{form.name} does not work under torch.func.vmap with a batch of {batched} and one {form.names[i]}, "
                f"which it writes to: {functional}batch {form.names[i]} too"
            )
