"""How a launcher launches CUDA source that it has generated: launch.py's counterpart for an op's cuda_launch.py.

    launch(Source("scale", text, threads=128), (blocks,), x, x.numel())

The kernel takes one struct, every member of which has eight bytes: the arguments, in their order. Under `recording` the
launch goes to the recorder: kernels/dispatch/plan.py has the source compiled by NVRTC, and makes of it what C++ replays
at every call of that signature. With tensors of a CPU the source is compiled by g++ over check/host/cuda_on_host.h.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..dispatch.address import address
from ..dispatch.cuda_source import Source
from ..dispatch.intercept import recorder


@dataclass(frozen=True)
class Elements:
    """How many elements a tensor has in the call: of ids that is another number each time."""

    of: Tensor


@dataclass(frozen=True)
class Stride:
    """How many elements lie from one to the next in a tensor of one dimension."""

    of: Tensor


def launch(source: Source, grid: tuple[int, ...], *arguments: Tensor | Elements | Stride | int) -> None:
    """Launch the kernel, or record that. An argument is a tensor, of which the kernel gets the address, or a number."""
    if (records := recorder()) is not None:
        return records.launch_source(source, grid, arguments)
    return on_host(source, grid, [_number(argument) for argument in arguments])


def _number(argument: Tensor | Elements | Stride | int) -> int:
    if isinstance(argument, Elements):
        return argument.of.numel()
    if isinstance(argument, Stride):
        return argument.of.stride(0)
    return address(argument) or 0 if isinstance(argument, Tensor) else argument


def on_host(source: Source, grid: tuple[int, ...], numbers: list[int]) -> None:
    """Run the kernel here. RuntimeError: it does not compile; or what it did wrong."""
    from ..check.host.run_source import run

    run(source, grid, numbers)
