"""Which program of a launch stores which elements: each program has its share of them, and no element has two."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from unittest import mock

import numpy as np
from torch import Tensor

from kernels import runtime
from kernels.check import accesses_of

Stores = list[tuple[int, list[int]]]  # of each store: the program, and the offsets of its lanes


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

    def __getitem__(self, grid) -> Callable:
        def launch(*arguments, **constants) -> None:
            names = list(inspect.signature(getattr(self.kernel, "fn", self.kernel)).parameters)
            (number,) = [i for i, argument in enumerate(arguments) if argument is self.out]
            self.stores += [
                (access.program, access.offsets)
                for access in accesses_of(self.kernel, grid, *arguments, **constants)
                if access.what != "load" and access.tensor == names[number]
            ]

        return launch


def once(stores: Stores, hint: str) -> None:
    """AssertionError if two programs, or two lanes of one store, store the same element."""
    owner: dict[int, int] = {}
    for program, offsets in stores:
        element, lanes = max(Counter(offsets).items(), key=lambda each: each[1], default=(0, 1))
        if lanes > 1:
            raise AssertionError(f"the result is right, but {lanes} lanes of program {program} store element {element}"
                                 f"\nHint: {hint}")
        for element in offsets:
            if owner.setdefault(element, program) != program:
                raise AssertionError(
                    f"the result is right, but programs {owner[element]} and {program} both store element {element}"
                    f"\nHint: {hint}"
                )


def shared_out(stores: Stores, programs: int, hint: str) -> None:
    """AssertionError unless the programs, whose number divides that of the elements, store equally many."""
    counts = Counter({program: 0 for program in range(programs)})
    for program, offsets in stores:
        counts[program] += len(set(offsets))
    if len(set(counts.values())) > 1:
        most = max(counts, key=counts.get)
        least = min(counts, key=counts.get)
        raise AssertionError(
            f"the result is right, but program {most} stores {counts[most]} elements, and program {least} stores "
            f"{counts[least]}\nHint: {hint}"
        )
