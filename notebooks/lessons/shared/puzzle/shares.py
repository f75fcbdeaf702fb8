"""Which program of a launch stores which elements: each program has its share of them, and no element has two."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from kernels import runtime
from kernels.check import accesses_of
from lessons.shared.puzzle import reader
from lessons.shared.puzzle.in_triton import InTriton

Stores = list[tuple[int, list[int]]]  # of each store: the program, and the offsets of its lanes


@dataclass(frozen=True)
class SharedOut(InTriton):
    """A puzzle whose programs each store a part of the result: no element is stored twice, and where the parts are of
    one size all programs store equally many.

    looked_at: of each launch that is looked at, what it is called, the launch's arguments, the one of them that is
        stored to, and the number of programs, 0 if their parts differ. hint: what to think of.
    """

    looked_at: Callable[[], Sequence[tuple[str, tuple, Tensor, int]]] = tuple
    hint: str = ""

    def hold(self, name: str, answer: Callable, device: torch.device) -> str:
        text = super().hold(name, answer, device)
        for what, arguments, out, programs in self.looked_at():
            stores = stores_of(answer, lambda kernel, inputs=arguments: self.launch(kernel, *inputs), out)
            try:
                _once(stores)
                if programs:
                    _alike(stores, programs)
            except AssertionError as error:
                message = f"{name}, case {what}: the result is right, but {error}"
                raise AssertionError(f"{message}\nHint: {self.hint}") from error
        return text


def stores_of(kernel: object, launch: Callable[[object], None], out: Tensor) -> Stores:
    """The stores to `out`, a contiguous tensor of the CPU, in launch(kernel). On a GPU's machine it is only looked at:
    another process interprets the kernel."""
    if runtime.triton_mode() != "interpreted":
        looked_at = _Looked(kernel, out)
        launch(looked_at)
        return looked_at.stores
    from triton.runtime import interpreter

    builder, stores = interpreter.InterpreterBuilder, []
    store, update = builder.create_masked_store, builder.create_atomic_rmw

    def note(self, pointers, mask) -> None:
        lanes = np.asarray(mask.data).astype(bool)
        addresses = pointers.data.astype(np.int64)
        addresses = addresses[np.broadcast_to(lanes, addresses.shape)] - out.data_ptr()
        x, y, z = (*self.grid_idx, 0, 0)[:3]
        across, down, *_ = (*self.grid_dim, 1, 1)
        inside = addresses[(addresses >= 0) & (addresses < out.nbytes)] // out.itemsize
        stores.append((int(x + across * (y + down * z)), inside.tolist()))

    def noted_store(self, pointers, value, mask, *rest, **named):
        note(self, pointers, mask)
        return store(self, pointers, value, mask, *rest, **named)

    def noted_update(self, operation, pointers, value, mask, *rest, **named):
        note(self, pointers, mask)
        return update(self, operation, pointers, value, mask, *rest, **named)

    with mock.patch.multiple(builder, create_masked_store=noted_store, create_atomic_rmw=noted_update):
        launch(kernel)
    return stores


class _Looked:
    """Stands for a kernel; its launch is looked at and not run."""

    def __init__(self, kernel: object, out: Tensor):
        self.kernel, self.out, self.stores = kernel, out, []
        self.fn = reader.plain(kernel)  # whose signature a launch may ask for

    def __getitem__(self, grid) -> Callable:
        def launch(*arguments, **constants) -> None:
            names = list(inspect.signature(self.fn).parameters)
            (number,) = [i for i, argument in enumerate(arguments) if argument is self.out]
            self.stores += [
                (access.program, access.offsets)
                for access in accesses_of(self.kernel, grid, *arguments, **constants)
                if access.what != "load" and access.tensor == names[number]
            ]

        return launch


def _once(stores: Stores) -> None:
    """AssertionError if two programs, two stores of one, or two lanes of a store, store the same element."""
    owner: dict[int, int] = {}
    for program, offsets in stores:
        element, lanes = max(Counter(offsets).items(), key=lambda pair: pair[1], default=(0, 1))
        if lanes > 1:
            raise AssertionError(f"{lanes} lanes of program {program} store element {element}")
        for element in offsets:
            if (other := owner.get(element)) == program:
                raise AssertionError(f"program {program} stores element {element} twice")
            if other is not None:
                raise AssertionError(f"programs {other} and {program} both store element {element}")
            owner[element] = program


def _alike(stores: Stores, programs: int) -> None:
    """AssertionError unless these programs store equally many elements."""
    counts = dict.fromkeys(range(programs), 0)
    for program, offsets in stores:
        counts[program] += len(offsets)
    most, least = max(counts, key=counts.get), min(counts, key=counts.get)
    if counts[most] > counts[least]:
        raise AssertionError(
            f"program {most} stores {counts[most]} elements, and program {least} stores {counts[least]}"
        )
