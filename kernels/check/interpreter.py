"""Triton's interpreter, watched: every load and store is held against the memory that there is.

Unwatched, an address outside of a tensor reads or writes whatever lies there, and sooner or later ends the process. In
here it raises an OutOfBounds before anything is touched: which line, which tensor, how far beyond its end. A lane that
its mask leaves out may point anywhere; what is loaded there without `other` is undefined: here a float is NaN, and an
integer 0 where programs run forwards, else another large one in each lane (Triton's interpreter gives 0). A block
pointer's or a descriptor's lanes must lie in the tensor that it was made of. Written for triton 3.6 and 3.7.
"""

from __future__ import annotations

import linecache
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
from torch import Tensor

from .. import runtime
from ..device.launch import INTERPRETING
from . import faster
from .memory import Guard

_TRITON = os.sep + "triton" + os.sep
# Triton's name of a type → the bits of its NaN.
_NAN = {"fp16": 0x7E00, "bf16": 0x7FC0, "fp32": 0x7FC00000, "fp64": 0x7FF8 << 48}


NEAR = 1 << 20  # bytes beyond which an address says nothing of the pointer that it was made of
BASE = "base"  # a pointer's attribute: (the address that its block pointer or descriptor was made of, which of the two)
HINTS = {
    "BlockPointerHandle": "boundary_check: it names each dimension in which a block may reach beyond the shape that "
    "tl.make_block_ptr was given. Is that the tensor's shape, and are the strides the tensor's?",
    "TensorDescHandle": "descriptor: accesses end at the shape that it was made with. Is that the tensor's shape, and "
    "are the strides the tensor's?",
}


class OutOfBounds(AssertionError):
    """A kernel accessed memory that belongs to none of its tensors. hint: what would have left it out."""

    hint = "mask: every load and store needs one that leaves out what lies beyond the end."


class Watch:
    """The memory that kernels may access: the tensors that they are given, and all that the guard made."""

    def __init__(self, guard: Guard | None, backwards: bool = False):
        self.guard, self.backwards = guard, backwards
        self.arguments: list[tuple[int, int, int, str]] = []  # (start, end, itemsize, name), of the kernel that runs
        self.error: OutOfBounds | None = None
        self.programs = 0  # of the largest grid that was launched
        self.loads = 0  # of the launch, that left lanes undefined
        self._ranges: tuple[int, np.ndarray, np.ndarray] | None = None

    def enter(self, names: list[str], values: list) -> None:
        """A kernel is about to run with these arguments."""
        self.arguments = [span for name, value in zip(names, values, strict=False) for span in _extents(name, value)]
        self._ranges, self.loads = None, 0

    def check(self, builder, what: str, pointers, mask: np.ndarray | None) -> None:
        """Raise OutOfBounds unless every pointer that the mask lets through starts an element of a tensor."""
        addresses, itemsize = pointers.data, max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        if mask is not None and not mask.all():
            # A mask that was one number for all lanes comes as int8.
            addresses = addresses[np.broadcast_to(mask.astype(bool), addresses.shape)]
        if not addresses.size:
            return
        base, kind = pointers.attr.get(BASE, (None, None))
        starts, ends = self._live()
        if base is not None:
            index = np.searchsorted(starts, base, "right") - 1
            if index >= 0 and base < ends[index]:
                starts, ends = starts[index : index + 1], ends[index : index + 1]
        first, last = int(addresses.min()), int(addresses.max())
        index = np.searchsorted(starts, first, "right") - 1
        if index >= 0 and last + itemsize <= ends[index]:
            return
        index = np.searchsorted(starts, addresses, "right") - 1
        wrong = (index < 0) | (addresses + np.uint64(itemsize) > ends[index])
        if wrong.any():
            self.error = OutOfBounds(self._describe(what, addresses[wrong], base))
            self.error.hint = HINTS.get(kind, OutOfBounds.hint)
            raise self.error

    def _live(self) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of every piece of memory, in order; pieces that overlap are one."""
        regions = self.guard.regions if self.guard else []
        if self._ranges is None or self._ranges[0] != len(regions):
            pieces = sorted([(start, end) for start, end, _, _ in self.arguments]
                            + [(region.start, region.start + region.nbytes) for region in regions])
            merged = []
            for start, end in pieces:
                if merged and start < merged[-1][1]:
                    merged[-1][1] = max(merged[-1][1], end)
                elif end > start:
                    merged.append([start, end])
            starts, ends = np.array(merged, dtype=np.uint64).reshape(-1, 2).T
            self._ranges = len(regions), starts, ends
        return self._ranges[1:]

    def _describe(self, what: str, addresses: np.ndarray, base: int | None) -> str:
        """Named by the argument that holds the base, or else lies nearest to the first of the addresses."""
        address, lanes = int(addresses.flat[0]), f"{addresses.size} lane{'s' * (addresses.size > 1)}"

        def distance(argument, address: int = address) -> int:
            start, end = argument[:2]
            return start - address if address < start else max(0, address - end)

        at = {"load": "a load from", "store": "a store to", "atomic": "an atomic to"}[what]
        holds = [argument for argument in self.arguments if base is not None and argument[0] <= base < argument[1]]
        near = holds or [argument for argument in self.arguments if distance(argument) <= NEAR]
        if not near:
            return f"{at} an address that belongs to no tensor, in {lanes}{_kernel_line()}"
        start, end, itemsize, name = min(near, key=distance)
        elements = (end - start) // itemsize
        offset = (address - start) // itemsize
        place = f"{-offset} before its first element" if offset < 0 else f"{offset - elements + 1} beyond its last"
        return (
            f"{at} {name} is out of bounds in {lanes}: the first is at offset {offset}, {place} "
            f"(it spans {elements}){_kernel_line()}"
        )


def _extents(name: str, value) -> list[tuple[int, int, int, str]]:
    """(start, end, itemsize, name) of the tensors in a kernel's argument: from a tensor's first to its last element."""
    value = getattr(value, "base", value)  # of a tensor descriptor, or of a tensor that was given another dtype
    if isinstance(value, tuple):
        return [span for i, part in enumerate(value) for span in _extents(f"{name}[{i}]", part)]
    if not isinstance(value, Tensor) or not value.numel():
        return []
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return [(value.data_ptr(), value.data_ptr() + (last + 1) * value.itemsize, value.itemsize, name)]


def _kernel_line() -> str:
    """The line of the kernel that runs: on the stack, the innermost that is neither Triton's, NumPy's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and _TRITON not in path and f"{os.sep}numpy{os.sep}" not in path:
            line = linecache.getline(path, frame.f_lineno).strip()
            return f"; {frame.f_code.co_name}, line {frame.f_lineno}: {line}"
        frame = frame.f_back
    return ""


@contextmanager
def watched(guard: Guard | None = None, *, backwards: bool = False) -> Iterator[Watch]:
    """Interpreted kernels that run in here are checked; backwards: their programs run from the last to the first.

    Programs may run in any order on a GPU. A result that hangs on it (a float atomic, a program that reads what another
    writes) differs between the two. Where kernels are compiled, or Triton is missing, nothing is watched.
    """
    watch = Watch(guard, backwards)
    if runtime.triton_mode() != "interpreted":
        yield watch
        return
    from triton.runtime import interpreter

    faster.install()

    def undefined(pointers, mask: np.ndarray):
        return None if mask.all() else _undefined(interpreter, pointers, watch)

    stack = ExitStack()
    with INTERPRETING:  # not in the middle of another thread's launch
        patches = accesses(interpreter, watch.check, undefined) | _launches(watch, interpreter, backwards)
        for (owner, name), replacement in patches.items():
            stack.enter_context(mock.patch.object(owner, name, replacement))
    try:
        yield watch
    finally:
        with INTERPRETING:
            stack.close()


def accesses(
    interpreter, look: Callable, undefined: Callable = lambda pointers, mask: None
) -> dict[tuple[object, str], Callable]:
    """The interpreter's four accesses (all others are made of these), each looked at first; and the pointers of block
    pointers and descriptors, which then know what they were made of.

    look: (the builder, "load", "store" or "atomic", the pointers, their mask, an array or None) → another mask, or
        None for the same. undefined: (the pointers, their mask) → what a load without `other` gives where its mask
        leaves a lane out; None for 0.
    """
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    swap, update = builder.create_atomic_cas, builder.create_atomic_rmw

    def looked_at(self, what: str, pointers, mask):
        """The mask to use. It comes as an array for a block pointer or a descriptor, else as a tensor of Triton's."""
        lanes = mask if mask is None or isinstance(mask, np.ndarray) else mask.data
        changed = look(self, what, pointers, lanes)
        if changed is None and mask is not lanes:
            return mask
        return interpreter.TensorHandle(lanes if changed is None else changed, interpreter.tl.int1)

    def new_load(self, pointers, mask, other, *rest, **named):
        mask = looked_at(self, "load", pointers, mask)
        # For a one-lane tensor Triton drops `other` if it is 0, because it tests the tensor's truth value.
        if other is None and sys._getframe(1).f_locals.get("other") is None:
            other = undefined(pointers, mask.data)
        return load(self, pointers, mask, other, *rest, **named)

    def new_store(self, pointers, value, mask, *rest, **named):
        return store(self, pointers, value, looked_at(self, "store", pointers, mask), *rest, **named)

    def new_swap(self, pointers, *rest, **named):
        look(self, "atomic", pointers, None)
        return swap(self, pointers, *rest, **named)

    def new_update(self, operation, pointers, value, mask, *rest, **named):
        return update(self, operation, pointers, value, looked_at(self, "atomic", pointers, mask), *rest, **named)

    def pointers_of(kind: type) -> Callable:
        materialize = kind.materialize_pointers

        def new_pointers(self, *arguments):
            pointers, mask = materialize(self, *arguments)
            pointers.set_attr(BASE, (int(self.base.data.item()), kind.__name__))
            return pointers, mask

        return new_pointers

    return {
        (builder, "create_masked_load"): new_load,
        (builder, "create_masked_store"): new_store,
        (builder, "create_atomic_cas"): new_swap,
        (builder, "create_atomic_rmw"): new_update,
    } | {
        (kind, "materialize_pointers"): pointers_of(kind)
        for kind in (interpreter.BlockPointerHandle, interpreter.TensorDescHandle)
    }


def _undefined(interpreter, pointers, watch: Watch) -> object | None:
    """A tensor of the interpreter's, of the type that the pointers point at: NaN, or large integers of either sign.
    None for 0."""
    element, shape = pointers.get_element_ty(), pointers.data.shape
    if str(element) in _NAN:
        value = np.full(shape, _NAN[str(element)], f"u{element.primitive_bitwidth // 8}")
    elif watch.backwards and str(element) in ("int32", "int64"):
        watch.loads += 1
        value = np.random.default_rng(watch.loads).integers(1 << 63, size=shape, dtype=np.int64)
        value = (2 * value >> (64 - element.primitive_bitwidth)).astype(f"i{element.primitive_bitwidth // 8}")
    else:
        return None
    return interpreter.TensorHandle(value.view(interpreter._get_np_dtype(element)), element)


def _launches(watch: Watch, interpreter, backwards: bool) -> dict[tuple[object, str], Callable]:
    """A launch tells the watch its arguments and its grid, and runs the grid in the order that is asked for."""
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    arguments, grid, program = executor._init_args_hst, builder.set_grid_dim, builder.set_grid_idx
    launch = executor.__call__

    def watched_arguments(self, positional, named):
        on_host, named_on_host = arguments(self, positional, named)
        watch.enter([*self.arg_names[: len(on_host)], *named_on_host], [*on_host, *named_on_host.values()])
        return on_host, named_on_host

    def watched_grid(self, *sizes):
        watch.programs = max(watch.programs, math.prod(sizes))
        return grid(self, *sizes)

    def ordered_program(self, *index):
        if backwards:
            index = [size - 1 - i for i, size in zip(index, self.grid_dim, strict=True)]
        return program(self, *index)

    def watched_launch(self, *positional, **named):
        with INTERPRETING:
            return launch(self, *positional, **named)

    return {
        (executor, "_init_args_hst"): watched_arguments,
        (builder, "set_grid_dim"): watched_grid,
        (builder, "set_grid_idx"): ordered_program,
        (executor, "__call__"): watched_launch,
    }
