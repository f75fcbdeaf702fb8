"""What every call does before its kernel, whoever runs it: autocast's casts, and the gradients that are refused.

The C++ core does the same in autograd.h; here it is done for calls that the core does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .declaration import Declaration
from .signature import Signature


def cast(signature: Signature, arguments: Sequence) -> Sequence:
    """Under torch.autocast, floating tensors of differing dtypes in its dtype; float64, scalars and what is written
    excepted."""
    first = signature.first_tensor(arguments)
    if not autocasts(first):
        return arguments
    floating = [(i, tensor) for i, tensor in signature.tensors(arguments) if tensor.is_floating_point()]
    if len({tensor.dtype for _, tensor in floating}) < 2:
        return arguments
    dtype = torch.get_autocast_dtype(first.device.type)
    castable = {i for i, _ in floating if i not in signature.mutated}

    def cast(value: object) -> object:
        is_cast = isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype) if is_cast else value

    return [
        value if i not in castable else list(map(cast, value)) if i in signature.lists else cast(value)
        for i, value in enumerate(arguments)
    ]


def autocasts(tensor: Tensor) -> bool:
    """Whether torch.autocast is on for the tensor's device; on "meta" there is none."""
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)


def refusing(declaration: Declaration, form: str, overload: Callable) -> Callable:
    """The overload, refusing what the core refuses: forward mode, and gradients that it does not have."""
    signature = declaration.forms[form]

    def checked(*arguments):
        for _, tensor in signature.tensors(arguments):
            if forward_ad.unpack_dual(tensor).tangent is not None:
                instead = 'use backend="eager", or reverse mode'
                raise RuntimeError(f"{signature.name} has no forward-mode derivative: {instead}")
        refuse_gradients(declaration, form, arguments)
        for i in signature.scalars:  # below autograd it no longer shows whether a scalar's gradient is wanted
            if isinstance(arguments[i], Tensor) and arguments[i].requires_grad and torch.is_grad_enabled():
                raise RuntimeError(f"{signature.name}: {signature.names[i]} has no gradient: detach() it")
        return overload(*arguments)

    return checked


def refuse_gradients(declaration: Declaration, form: str, arguments: Sequence) -> None:
    """Raise RuntimeError if autograd would want a gradient of a form that has none."""
    signature = declaration.forms[form]
    if declaration.gradients and not signature.mutated:
        return
    if torch.is_grad_enabled() and any(tensor.requires_grad for _, tensor in signature.tensors(arguments)):
        instead = (
            f"call {declaration.name}, or {signature.name} under torch.no_grad()"
            if form == "_"
            else "call it under torch.no_grad(), or detach() its arguments"
        )
        raise RuntimeError(f"{signature.name} has no gradient: {instead}")


def refuse_unbatched(declaration: Declaration, form: str, arguments: Sequence) -> None:
    """Raise RuntimeError if torch.func.vmap batches an argument that is read, and not the one that is written to."""
    signature, is_batched = declaration.forms[form], torch._C._functorch.is_batchedtensor
    batched = next((signature.names[i] for i, tensor in signature.tensors(arguments) if is_batched(tensor)), None)
    for i in signature.mutated:
        if batched is not None and not is_batched(arguments[i]):
            functional, written = f"call {declaration.name}, or " * (form == "_"), signature.names[i]
            raise RuntimeError(
                f"{signature.name} does not work under torch.func.vmap with a batch of {batched} and one {written}, "
                f"which it writes to: {functional}batch {written} too"
            )
