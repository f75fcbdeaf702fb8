"""A declaration becomes dispatcher ops: the overloads, their fakes, autograd, autocast, and who plans their calls.

    OP = Op("add_relu", "(Tensor x, Tensor bias) -> Tensor out", shapes="x [..., N]: floating; bias [N]: x",
            eager=…, outputs={"out": like("x")}, in_place="x", saves=("out",),
            gradients={"x": like("grad_out"), "bias": last_dimension("grad_out")})

For each backend ("triton", "cuda", of some ops "cpp") the overloads fused_kernels::add_relu.<backend>,
add_relu_.<backend> (in place) and add_relu_backward.<backend> are defined here at import, so that an exported program
loads. What runs them: the C++ core (core.cpp) once it is loaded, which the first call on a GPU sees to; in Triton's
interpreter, and where there is no C++ compiler, the Python of fallback.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from . import allocation, plan
from .call import PublicFunction
from .declaration import (
    BACKWARD,
    Declaration,
    Kept,
    KeptShape,
    KeptShapes,
    Prepared,
    SavedBy,
    last_dimension,
    like,
)  # fmt: skip
from .fallback import Fallback
from .loader import Loader

__all__ = ["Kept", "KeptShape", "KeptShapes", "Op", "Prepared", "SavedBy", "last_dimension", "like"]

NAMESPACE = "fused_kernels"

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define("_allocate(int[] shape, ScalarType dtype, Device device) -> Tensor")
_library.impl("_allocate", allocation.empty, "CompositeExplicitAutograd")


def _define(schema: str) -> bool:
    """Define an op, and whether nobody had: the library that has the ops without Python (kernels/library) may have
    been loaded before."""
    wanted = torch._C.parse_schema(f"{NAMESPACE}::{schema}")
    try:
        there = torch._C._get_schema(wanted.name, wanted.overload_name)
    except RuntimeError:
        there = None
    if there is not None and there == wanted:
        return False
    _library.define(schema)  # where there is another schema, torch says where that comes from
    return True


def _implement(name: str, function: Callable, is_new: bool) -> None:
    with nullcontext() if is_new else warnings.catch_warnings():
        if not is_new:
            warnings.filterwarnings("ignore", "Warning only once for all operators")
        # The core's own kernels, registered for a device and not for all as these are, come before them.
        _library.impl(name, function, "CompositeExplicitAutograd")


class Op(Declaration):
    """A declaration whose overloads are defined. `call` and `call_in_place` are what its public functions call.

    Args: a Declaration's.
    """

    def __init__(self, name: str, schema: str, **declared) -> None:
        super().__init__(name, schema, **declared)
        self.loader = Loader(self, self._use_tritons_launcher)
        for form in self.forms:
            for backend in dict.fromkeys(self.backward_of.values()) if form in BACKWARD else self.backends:
                self._define(backend, form)
        self.call = PublicFunction(self, self.loader, "")
        self.call_in_place = PublicFunction(self, self.loader, "_") if "_" in self.forms else None

    def _define(self, backend: str, form: str) -> None:
        name, planner = (f"{prefix}{self.forms[form].name}.{backend}" for prefix in ("", "_plan_"))
        is_new = _define(name + self.forms[form].schema)
        _library.define(planner + self.forms[form].plan_schema)
        fallback = Fallback(self, self.loader, backend, form)
        _implement(name, fallback, is_new)
        _library.impl(planner, partial(plan.make_plan, self, backend, form), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", self._fake(backend, form), lib=_library)
        if self.forms[form].mutated:
            _library.impl(name, self._resolving(backend, form), "Negative")
        if form in BACKWARD and self.forms[form].lists:  # others PyTorch calls one by one, and lists not
            _library.impl(name, self._refuse_batches, "FuncTorchBatched")
        if form not in BACKWARD and backend in self.launchers:  # which runs CPU tensors; of CUDA's the core takes care
            _library.impl(name, fallback.under_autocast("cpu"), "AutocastCPU")
        if backward := fallback.backward():
            torch.library.register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=fallback.save, lib=_library)

    def _fake(self, backend: str, form: str) -> Callable:
        def fake(*arguments):
            first = self.forms[form].first_tensor(arguments)
            self.loader.require(backend, first.device.type)
            self.forms[form].check(arguments)
            return self.made_of_shapes(form, arguments)

        return fake

    def _refuse_batches(self, *arguments) -> None:
        raise RuntimeError(
            f'{self.name} has no gradients in batches, which torch.func.jacrev asks for: use backend="eager"'
        )

    def _resolving(self, backend: str, form: str) -> Callable:
        """The overload where a tensor has the negative bit (the imaginary part of a conjugate, say). PyTorch's own way
        is for an op that returns what it writes, once."""

        def resolve(value: object) -> object:
            return value.resolve_neg() if isinstance(value, Tensor) else value

        def resolving(*arguments):
            self.forms[form].check_written(arguments)
            resolved = [list(map(resolve, value)) if isinstance(value, list) else resolve(value) for value in arguments]
            returned = self.overload(backend, form)(*resolved)
            for i in self.forms[form].mutated:
                if resolved[i] is not arguments[i]:
                    arguments[i].copy_(resolved[i])
            return returned

        return resolving

    def _use_tritons_launcher(self, backend: str, error: RuntimeError) -> None:
        warnings.warn(
            f"Triton's own launcher is used, and a call costs several times as much: {error}", stacklevel=3
        )
        for form in self.forms.keys() - {*BACKWARD}:
            fallback = Fallback(self, self.loader, backend, form)
            _library.impl(f"{self.forms[form].name}.{backend}", fallback.under_autocast("cuda"), "AutocastCUDA")
