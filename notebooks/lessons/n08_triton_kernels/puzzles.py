"""Problems of Triton on the way to add_relu, each with one new thing.

masked     out = relu(x + bias) of n numbers, by programs of 16: the mask
channels   out = x + bias, x [batch, channels, width], bias [channels]: which number of the bias a place takes
relu       out = relu(x + bias), bias [columns], where x has NaN and Inf
places     out[j] = the place in a large tensor of the number that a late program computes: 64 bits
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from kernels.check import Call, Case, OutOfBounds, Spec, accesses_of
from lessons.shared.puzzle import InTriton, Judge

BLOCK = 16
PLACES_BLOCK = 32


def _programs(numbers: int) -> tuple[int]:
    return (-(-numbers // BLOCK),)


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
        hint = "every place is inside, so the mask lets all through: is what is stored relu(x + bias)?"
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
    yield Call(f"{batch}×{count}×{width}", tuple(tensors), hint=f"{hint} The mask is right.")


# --------------------------------------------------------------------------------------------------------------- relu


def _launch_relu(kernel, x: Tensor, bias: Tensor, out: Tensor) -> None:
    """kernel[programs](x, bias, out, n, columns, BLOCK)."""
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

_SHAPES = {
    "masked": ((64,), (40,), (33,), (1,), (200,)),
    "channels": ((2, 4, 1), (1, 3, 5), (2, 3, 5), (3, 4, 24), (5, 1, 7), (2, 7, 33)),
    "relu": ((5, 24), (3, 7)),
    "places": ((2 * PLACES_BLOCK,),),
}


def _puzzle(reference: Callable, calls: Callable, launch: Callable, special: tuple[Case, ...] = ()) -> InTriton:
    cases = [*map(Case, _SHAPES[reference.__name__]), *special]
    spec = Spec(reference, calls, outputs=(), mutated=("out",), cases=lambda names: cases)
    return InTriton(spec, launch, __name__)


PUZZLES = {
    "masked": _puzzle(masked, _masked_calls, _launch_masked),
    "channels": _puzzle(channels, _channels_calls, _launch_channels),
    "relu": _puzzle(relu, _relu_calls, _launch_relu, (Case((13, 40), values="special"),)),
    "places": _puzzle(places, _places_calls, _launch_places),
}
attempt = Judge(PUZZLES).attempt
