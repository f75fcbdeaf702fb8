"""The sizes at which the blocks of an op's kernels end: one less, as many, and one more.

Nobody types them: the op's own launcher is asked what it launches for a large call. Each constant of a Triton kernel
that is a power of two may be the size of a block, of whichever dimension; in a CUDA kernel the threads of a block, and
the size divided by the blocks of the grid. So every dimension that a case can make large (spec.py, `dimensions`) gets
all of them. A block that grows with the size, as the next power of two does, has its edges at 7, 8 and 9 anyhow.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from .. import dispatch, runtime
from ..dispatch import core, plan
from ..dispatch.op import Op
from ..dispatch.signature import flat
from .cases import Call, Case
from .comparison import as_tuple
from .spec import Spec, spec_of

NO_BLOCK = ("num_warps", "num_stages")
TELL = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint))
_on_host: dict[tuple[str, bool], list[Case]] = {}


def edges(op: str, device: torch.device | str = "cpu", backward: bool = False) -> list[Case]:
    """The cases in which one dimension is a block's size, or one off, of the kernels that Python launches: as they
    would run on the device. None of an op that has no such kernels."""
    return list(_edges(op, torch.device(device), backward))


@functools.cache
def _edges(op: str, device: torch.device, backward: bool) -> tuple[Case, ...]:
    spec, declaration = spec_of(op), dispatch.find(op if op in dispatch.names() else op.removesuffix("_"))
    backend = next(iter(declaration.launchers), "")
    if not backend or (backward and not _has_backward(declaration, backend)):
        return ()
    return tuple(_cases(spec, device, lambda call, size: _constants(declaration, spec, backend, backward, call)))


def cases_of(op: str, device: torch.device | str = "cpu", ends: Iterable[Case] | None = None) -> list[Case]:
    """The cases that `check` takes the op through on such a device; ends: in place of those of `edges`."""
    spec = spec_of(op)
    wide = spec.wide_cases(spec.tensors) if torch.device(device).type == "cuda" else []
    return list(dict.fromkeys([*spec.cases(spec.tensors), *(edges(op, device) if ends is None else ends), *wide]))


def edges_on_host(op: str, function: Callable, backward: bool = False) -> list[Case]:
    """The same of the CUDA kernels that C++ launches, asked of their host build, which is made if it is not there.

    function: what runs it, inside of core.on_host().
    """
    if (op, backward) not in _on_host:
        spec, declaration = spec_of(op), dispatch.find(op)
        library = ctypes.CDLL(str(core.load_op_for_host(declaration.folder)))
        blocks = functools.partial(_of_grids, library, spec, function, declaration.gradients if backward else ())
        there = not backward or _has_backward(declaration, "cuda")
        _on_host[op, backward] = _cases(spec, torch.device("cpu"), blocks) if there else []
    return _on_host[op, backward]


def edges_of(
    op: str, function: Callable, backend: str, device: torch.device | str, backward: bool = False
) -> list[Case]:
    """The same of the kernels that `function` runs, which are this backend's, whoever launches them."""
    if backend == "cuda" and core.runs_on_host() and backend not in dispatch.find(op).launchers:
        return edges_on_host(op, function, backward)
    return edges(op, device, backward)


def _has_backward(declaration: Op, backend: str) -> bool:
    return bool(declaration.gradients) and declaration.backward_of[backend] == backend


def _cases(spec: Spec, device: torch.device, blocks: Callable[[Call, int], Iterable[int]]) -> list[Case]:
    """blocks: (a call, the size of its one large dimension) → what may be sizes of blocks."""
    cases = {}
    for dimension in spec.dimensions:
        if device.type == "cuda" and not dimension.on_gpu:
            continue
        large, most = dimension.large, dimension.most or dimension.large
        call = next(iter(spec.calls(dimension.case(large), device)))
        tried = {block for block in blocks(call, large) if dimension.least <= block <= most and block != large}
        cases |= {dimension.case(size): None for size in sorted({b + step for b in tried for step in (-1, 0, 1)})}
    return list(cases)


class _Constants(plan.Recorder):
    """Records what a launcher would launch, as it would be run here, the constants alone; nothing is compiled."""

    interpreted = property(lambda self: not self.on_gpu and runtime.triton_mode() == "interpreted")

    def launch(self, module: str, name: str, grid: tuple[int, ...], arguments: tuple, constants: dict) -> None:
        self.launches.append([value for name, value in constants.items() if name not in NO_BLOCK])

    def launch_source(self, source, grid: tuple[int, ...], arguments: tuple) -> None:
        self.launches.append([source.threads])


def _constants(declaration: Op, spec: Spec, backend: str, backward: bool, call: Call) -> Iterable[int]:
    """Those of the launches of a call, or of its backward, that may be sizes of blocks; nothing is computed."""
    call = call.map(lambda tensor: tensor.requires_grad_(tensor.is_floating_point()))
    with torch.no_grad():
        form, arguments = "", declaration.with_tensors(overload_arguments(declaration, spec, call))
    if backward:
        results = declaration.made_of_shapes("", arguments)
        outputs = results if isinstance(results, tuple) else (results,)
        named = declaration.forms[""].by_name(arguments)
        of_lists = (named[name] if isinstance(named[name], list) else [None] for name in declaration.gradients)
        needs = [True for tensors in of_lists for _ in tensors]
        arguments = declaration.backward_arguments(arguments, outputs, declaration.differentiable(outputs), needs)
        form, arguments = declaration.backward_form, declaration.with_prepared(backend, arguments)
    allocations = flat(declaration.allocations(form, arguments))
    _, launches = plan.record(declaration, form, arguments, allocations, backend=backend, recorder=_Constants)
    # tl.arange takes a power of two: any other constant is a size of the call.
    return (value for value in flat(launches) if type(value) is int and value & (value - 1) == 0)


def _of_grids(library: ctypes.CDLL, spec: Spec, function: Callable, gradients: Iterable[str], call: Call, size: int):
    """The threads of the blocks that a call launches on the host, and the size over the blocks of each grid; with
    gradients, of the backward that gives them."""
    needed = [name.partition("[")[0] in gradients for name in spec.leaf_names(call)]
    leaves = [leaf.clone().requires_grad_(need) for leaf, need in zip(call.leaves(), needed, strict=True)]
    candidates = []

    @TELL
    def note(sizes) -> None:
        candidates.extend(sizes[3:6])
        candidates.extend(-(-size // blocks) for blocks in sizes[0:3] if blocks > 1)

    library.fused_tell_launches(note)
    try:
        outputs = function(*call.with_leaves(leaves).arguments())
        if any(needed):
            candidates.clear()
            outputs = [output for output in as_tuple(outputs) if output.requires_grad]
            torch.autograd.grad(outputs, [leaf for leaf in leaves if leaf.requires_grad], outputs)
    finally:
        library.fused_tell_launches(None)
    return candidates


def overload_arguments(declaration: Op, spec: Spec, call: Call) -> tuple:
    """The call's arguments as the dispatcher op takes them: the numbers that may change are 0-d tensors."""
    return spec.overload(tuple(
        torch.as_tensor(value, dtype=torch.float64)
        if name in declaration.scalars and not isinstance(value, Tensor) else value
        for name, value in zip(spec.arguments, call.arguments(), strict=False)
    ))
