"""The sizes at which the blocks of an op's kernels end: one less, as many, and one more.

Nobody types them. The op's own launcher is asked what it would launch for a large and for a small call; each integer
constant of a kernel, the threads of its block, and the size divided by the blocks of its grid may be the size of a
block, of whichever dimension. So every dimension that a case can make large (spec.py, `dimensions`) gets all of them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from .. import dispatch, runtime
from ..dispatch import core, plan
from ..dispatch.op import Op
from ..dispatch.schema import flat
from .cases import Call, Case
from .comparison import as_tuple
from .spec import Spec, spec_of

SMALL = 5
NO_BLOCK = ("num_warps", "num_stages")
TELL = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint))
_on_host: dict[tuple[str, bool], list[Case]] = {}


# (a launch's grid, the integers that it chose beside)
Launch = tuple[Sequence[int], Sequence[int]]


def edges(op: str, device: torch.device | str = "cpu", backward: bool = False) -> list[Case]:
    """The cases in which one dimension is a block's size, or one off, of the kernels that Python launches: as they
    would run on the device. None of an op that has no such kernels."""
    return list(_edges(op, torch.device(device).type, backward))


@functools.cache
def _edges(op: str, device: str, backward: bool) -> tuple[Case, ...]:
    spec, declaration = spec_of(op), dispatch.find(op if op in dispatch.names() else op.removesuffix("_"))
    backend = next((name for name in declaration.backends if declaration.launcher(name)), "")
    if not backend or (backward and not (declaration.gradients and declaration.backward_of[backend] == backend)):
        return ()
    launches = functools.partial(_launches, declaration, spec, backend, backward)
    return tuple(_cases(spec, launches, torch.device(device)))


def edges_on_host(op: str, function: Callable, backward: bool = False) -> list[Case]:
    """The same of the CUDA kernels that C++ launches, asked of their host build, which is made if it is not there.

    function: what runs it, inside of core.on_host().
    """
    if (op, backward) not in _on_host:
        spec, declaration = spec_of(op), dispatch.find(op)
        library = ctypes.CDLL(str(core.load_op_for_host(declaration.folder)))
        launches = functools.partial(_launches_on_host, library, declaration, spec, function, backward)
        there = not backward or (declaration.gradients and declaration.backward_of["cuda"] == "cuda")
        _on_host[op, backward] = _cases(spec, launches, torch.device("cpu")) if there else []
    return _on_host[op, backward]


def _cases(spec: Spec, launches: Callable[[Call], Iterable[Launch]], device: torch.device) -> list[Case]:
    found = {}
    for dimension in spec.dimensions:
        blocks = set()
        for size in (SMALL, dimension.large):
            call = next(iter(spec.calls(dimension.case(size), device)))
            for grid, numbers in launches(call):
                blocks |= {*numbers, *(-(-size // count) for count in grid if 1 < count < size)} - {size}
        most = dimension.most or dimension.large
        sizes = sorted({block + step for block in blocks if 1 < block <= most for step in (-1, 0, 1)})
        found |= {dimension.case(size): None for size in sizes}
    return list(found)


class _Noted(plan.Recorder):
    """What a launcher would launch, as it would be run here; nothing is compiled."""

    interpreted = property(lambda self: not self.on_gpu and runtime.triton_mode() == "interpreted")

    def launch(self, module: str, name: str, grid: tuple[int, ...], arguments: tuple, constants: dict) -> None:
        numbers = (value for name, value in constants.items() if type(value) is int and name not in NO_BLOCK)
        # tl.arange takes a power of two: any other constant is a size of the call.
        self.launches.append((grid, [value for value in numbers if value & (value - 1) == 0]))

    def launch_source(self, source, grid: tuple[int, ...], arguments: tuple) -> None:
        self.launches.append((grid, [source.threads]))


def _launches(declaration: Op, spec: Spec, backend: str, backward: bool, call: Call) -> list[Launch]:
    """The launches of a call, or of its backward; nothing is computed."""
    call = call.map(lambda tensor: tensor.requires_grad_(tensor.is_floating_point()))
    with torch.no_grad():
        form, arguments = "", declaration.with_tensors(overload_arguments(declaration, spec, call))
    if backward:
        made = declaration.made_of_shapes("", arguments)
        outputs = made if isinstance(made, tuple) else (made,)
        named = declaration.forms[""].by_name(arguments)
        of_lists = (named[name] if isinstance(named[name], list) else [None] for name in declaration.gradients)
        needs = [True for tensors in of_lists for _ in tensors]
        arguments = declaration.backward_arguments(arguments, outputs, declaration.differentiable(outputs), needs)
        form, arguments = declaration.backward_form, declaration.with_prepared(backend, arguments)
    allocations = flat(declaration.allocations(form, arguments))
    return plan.record(declaration, form, arguments, allocations, backend=backend, recorder=_Noted)[1]


def _launches_on_host(
    library: ctypes.CDLL, declaration: Op, spec: Spec, function: Callable, backward: bool, call: Call
) -> list[Launch]:
    """The same of the host build, which runs."""
    needed = [backward and name.partition("[")[0] in declaration.gradients for name in spec.leaf_names(call)]
    leaves = [leaf.clone().requires_grad_(need) for leaf, need in zip(call.leaves(), needed, strict=True)]
    launches = []
    note = TELL(lambda sizes: launches.append((sizes[0:3], [size for size in sizes[3:6] if size > 1])))
    library.fused_tell_launches(note)
    try:
        outputs = function(*call.with_leaves(leaves).arguments())
        if backward:
            launches.clear()
            outputs = [output for output in as_tuple(outputs) if output.requires_grad]
            torch.autograd.grad(outputs, [leaf for leaf in leaves if leaf.requires_grad], outputs)
    finally:
        library.fused_tell_launches(None)
    return launches


def overload_arguments(declaration: Op, spec: Spec, call: Call) -> tuple:
    """The call's arguments as the dispatcher op takes them: the numbers that may change are 0-d tensors."""
    return spec.overload(tuple(
        torch.as_tensor(value, dtype=torch.float64)
        if name in declaration.scalars and not isinstance(value, Tensor) else value
        for name, value in zip(spec.arguments, call.arguments(), strict=False)
    ))
