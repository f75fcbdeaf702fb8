"""Problems of Triton on the way to add_relu, each with one new thing; puzzles.py has them all by name.

masked     out = relu(x + bias) of n numbers, by programs of 16: the mask
channels   out = x + bias, x [batch, channels, width], bias [channels]: which number of the bias a place takes
relu       out = relu(x + bias), bias [columns], where x has NaN and Inf
places     out[j] = the place in a large tensor of the number that a late program computes: 64 bits
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from kernels import runtime
from kernels.check import Call, Case, OutOfBounds, Spec, accesses_of

BLOCK = 16
PLACES_BLOCK = 32


def _programs(numbers: int) -> tuple[int]:
    return (-(-numbers // BLOCK),)


def _only(shapes: tuple) -> dict:
    """What a Spec has for cases of these shapes."""
    return {"cases": lambda names: [Case(shape) for shape in shapes], "wide_cases": lambda names: []}


# ----------------------------------------------------------------------------------------------- tl.maximum, compiled


@contextmanager
def maximum_as_compiled() -> Iterator[None]:
    """In here the interpreter's tl.maximum, tl.minimum and tl.clamp do what PTX's instructions do: `max` and `min` give
    the number where the other is NaN, `max.NaN` and `min.NaN` (propagate_nan=ALL) give NaN, and of two zeros `max`
    gives +0, `min` −0. By itself the interpreter has NumPy's functions for all, which give NaN. Where kernels are
    compiled, nothing changes.

    https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-max
    """
    if runtime.triton_mode() != "interpreted":
        yield
        return
    from triton import language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder

    def larger(a, b):
        return np.where((a == b) & np.signbit(a), b, np.maximum(a, b))

    def smaller(a, b):
        return -larger(-a, -b)

    def number(choose):
        return lambda a, b: np.where(np.isnan(a), b, np.where(np.isnan(b), a, choose(a, b)))

    def clamp(self, arg, lo, hi, propagate_nan):
        told = propagate_nan == tl.PropagateNan.ALL
        at_least, at_most = (larger, smaller) if told else (number(larger), number(smaller))
        return self.ternary_op(arg, lo, hi, lambda a, low, high: at_most(at_least(a, low), high))

    made = {"create_maxnumf": number(larger), "create_maximumf": larger,
            "create_minnumf": number(smaller), "create_minimumf": smaller}  # fmt: skip
    with ExitStack() as stack:
        for name, function in made.items():
            operation = lambda self, a, b, function=function: self.binary_op(a, b, function)  # noqa: E731
            stack.enter_context(mock.patch.object(builder, name, operation))
        stack.enter_context(mock.patch.object(builder, "create_clampf", clamp))
        yield


# ------------------------------------------------------------------------------------------------------------- masked


def _launch_masked(kernel, x: Tensor, bias: Tensor, out: Tensor) -> None:
    """kernel[programs](x, bias, out, n, BLOCK)."""
    if out.is_cuda and x.numel() == 40:
        look_beside(kernel, x.numel())
    kernel[_programs(x.numel())](x, bias, out, x.numel(), BLOCK=BLOCK)


def look_beside(kernel, n: int) -> None:
    """Raise OutOfBounds if a program reads or writes beside its tensors. On a GPU a load beside one, of what is never
    stored, leaves no trace, so there the kernel goes through the interpreter too."""

    def accessed():
        return accesses_of(kernel, _programs(n), *(torch.zeros(n) for _ in range(3)), n, BLOCK=BLOCK)

    with ThreadPoolExecutor(1) as pool:  # the modes of a check hold for its own thread
        found = pool.submit(accessed).result()
    for access in found:
        beside = [offset for offset in access.offsets if not 0 <= offset < n]
        if beside:
            what = {"load": "a load from", "store": "a store to"}.get(access.what, "an atomic to")
            raise OutOfBounds(f"{what} {access.tensor} is out of bounds: the first is at offset {beside[0]} of {n}")


def masked(x: Tensor, bias: Tensor, out: Tensor) -> None:
    out.copy_(torch.relu(x + bias))


def _masked_calls(case: Case, device: torch.device) -> Iterator[Call]:
    n = case.shape[0]
    if n % BLOCK:
        hint = f"{n} numbers, {BLOCK} a program: the last program has {n % BLOCK}. What does the mask say of place {n}?"
    else:
        hint = f"{n} numbers, {BLOCK} a program: every place is inside. The mask is of places, i, and lets all through."
    yield Call(f"{n} numbers", tuple(case.tensor(seed, device) for seed in (1, 2, 3)), hint=hint)


# ----------------------------------------------------------------------------------------------------------- channels


def _launch_channels(kernel, x: Tensor, bias: Tensor, out: Tensor) -> None:
    """kernel[programs](x, bias, out, n, channels, width, BLOCK)."""
    kernel[_programs(x.numel())](x, bias, out, x.numel(), x.shape[1], x.shape[2], BLOCK=BLOCK)


def channels(x: Tensor, bias: Tensor, out: Tensor) -> None:
    out.copy_(x + bias[:, None])


def _channels_calls(case: Case, device: torch.device) -> Iterator[Call]:
    batch, count, width = (1, *case.shape)[-3:]
    if width == 1:
        hint = f"a width of 1: place {count} is the first channel of the second row, and takes bias[0]."
    elif batch == 1:
        hint = f"one row: places 0 to {width - 1} are channel 0, and place {width} is the first of channel 1."
    else:
        hint = f"place {count * width} is the first of the second row: after {count} channels they begin again at 0."
    tensors = [case.tensor(seed, device, shape) for seed, shape in enumerate((case.shape, (count,), case.shape), 1)]
    yield Call(f"{batch}×{count}×{width}", tuple(tensors), hint=hint)


# --------------------------------------------------------------------------------------------------------------- relu


def _launch_relu(kernel, x: Tensor, bias: Tensor, out: Tensor) -> None:
    """kernel[programs](x, bias, out, n, columns, BLOCK)."""
    with maximum_as_compiled():
        kernel[_programs(x.numel())](x, bias, out, x.numel(), len(bias), BLOCK=BLOCK)


def relu(x: Tensor, bias: Tensor, out: Tensor) -> None:
    out.copy_(torch.relu(x + bias))


def _relu_calls(case: Case, device: torch.device) -> Iterator[Call]:
    """The special values only in x: Inf - Inf is no question here."""
    x, out = case.tensor(1, device), Case(case.shape).tensor(3, device)
    bias = Case(case.shape).tensor(2, device, case.shape[-1:])
    hint = "ordinary numbers: those below 0 become 0, the others stay."
    yield Call(str(case), (x, bias, out), hint=hint)


# ------------------------------------------------------------------------------------------------------------- places


def _launch_places(kernel, out: Tensor, first: int) -> None:
    """kernel[2](out, first, BLOCK)."""
    kernel[(2,)](out, first, BLOCK=PLACES_BLOCK)


def places(out: Tensor, first: int) -> None:
    out.copy_(first * PLACES_BLOCK + torch.arange(len(out), device=out.device))


def _places_calls(case: Case, device: torch.device) -> Iterator[Call]:
    for first in (0, 5, 2**26 - 1, 2**26, 2**30):
        last = (first + 2) * PLACES_BLOCK - 1
        hint = f"program {first} begins at place {first} · {PLACES_BLOCK}."
        if last >= 2**31:
            hint = f"place {last:,} is more than 32 bits hold: which operation gets there first, in what type?"
        yield Call(f"programs {first:,} and {first + 1:,}", (case.integers(1, 100, device),), (first,), hint=hint)


# ---------------------------------------------------------------------------------------------------------------------

SPECS = {
    "masked": Spec(
        masked, _masked_calls, outputs=(), mutated=("out",), launch=_launch_masked, **_only(((64,), (40,), (33,), (1,)))
    ),
    "channels": Spec(
        channels,
        _channels_calls,
        outputs=(),
        mutated=("out",),
        launch=_launch_channels,
        **_only(((2, 4, 1), (1, 3, 5), (2, 3, 5), (3, 4, 24), (5, 1, 7), (2, 7, 33))),
    ),
    "relu": Spec(
        relu,
        _relu_calls,
        outputs=(),
        mutated=("out",),
        launch=_launch_relu,
        cases=lambda names: [Case((5, 24)), Case((3, 7)), Case((13, 40), values="special")],
        wide_cases=lambda names: [],
    ),
    "places": Spec(
        places, _places_calls, outputs=(), mutated=("out",), launch=_launch_places, **_only(((2 * PLACES_BLOCK,),))
    ),
}
