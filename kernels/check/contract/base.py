"""What the contract's classes share: the backends, the op's calls, and the fixtures."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import kernels

from ... import dispatch, machine, runtime
from ...dispatch.core import on_host
from ...dispatch.op import Op
from .. import Call, Case, Spec, cases_of, eager_results, spec_of
from ..edges import edges_of, overload_arguments

DEVICE = runtime.device()
GPU = pytest.mark.skipif(DEVICE.type != "cuda", reason="no CUDA device")
ON_HOST = "cuda on host"


def why_not(backend: str) -> str:
    """Why the backend does not run here; "" if it does."""
    if backend == ON_HOST:
        return machine.compiler(runtime.path_with_python())[1]
    return runtime.backends(DEVICE)[backend]


def _parameters(*backends: str) -> list:
    """pytest parameters. Without a GPU "cuda" is the host build of the CUDA kernels, on CPU tensors."""
    names = [ON_HOST if name == "cuda" and DEVICE.type == "cpu" else name for name in backends]
    return [
        pytest.param(name, marks=pytest.mark.skipif(bool(why_not(name)), reason=why_not(name))) for name in names
    ]


every_backend = pytest.mark.parametrize("backend", _parameters("eager", "triton", "cuda"), indirect=True)
kernel_backend = pytest.mark.parametrize("backend", _parameters("triton", "cuda"), indirect=True)


@contextmanager
def running(parameter: str) -> Iterator[str]:
    """Where a parameter of every_backend runs; gives the name that the public function takes."""
    if parameter == ON_HOST:
        with on_host():
            yield "cuda"
    else:
        yield parameter


class Contract:
    """`op` is the op's name."""

    op: str

    @pytest.fixture
    def backend(self, request) -> str:
        """The name that the public function takes, where it runs."""
        with running(request.param) as name:
            yield name

    @pytest.fixture(autouse=True)
    def _dynamo_forgets(self):
        yield
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()

    @property
    def spec(self) -> Spec:
        return spec_of(self.op)

    @property
    def declaration(self) -> Op:
        return dispatch.find(self.op)

    @property
    def has_in_place(self) -> bool:
        return hasattr(kernels, self.op + "_")

    def function(self, backend: str, in_place: bool = False):
        return functools.partial(getattr(kernels, self.op + "_" * in_place), backend=backend)

    def edges(self, backend: str, backward: bool = False) -> list[Case]:
        """Cases at the edges of this backend's blocks."""
        return edges_of(self.op, self.function(backend), backend, DEVICE, backward)

    def cases(self, backend: str) -> list[Case]:
        """All of the op's, at the edges of this backend's blocks; for eager ten, since the reference is eager itself,
        where it does not round in between."""
        if backend != "eager":
            return cases_of(self.op, DEVICE, self.edges(backend))
        cases = [case for case in cases_of(self.op, DEVICE) if case.dtype.itemsize >= 4]
        return cases[:: -(-len(cases) // 10)]

    def calls(self, case: Case | None = None, device: torch.device | str = DEVICE) -> list[Call]:
        """A call for each of the op's options."""
        return list(self.spec.calls(case or Case((5, 24)), torch.device(device)))

    def call(self, case: Case | None = None, device: torch.device | str = DEVICE) -> Call:
        """With the first of the op's options."""
        return self.calls(case, device)[0]

    def variants(self, case: Case | None = None) -> list[Call]:
        """A call for each combination of the options that are no numbers: of an activation's name, say."""
        calls = {tuple(o for o in call.options if isinstance(o, str | bool)): call for call in self.calls(case)[::-1]}
        return list(calls.values())[::-1]

    def kinds(self, case: Case | None = None) -> list[Call]:
        """One of the variants for each set of tensors that the backward reads: each is another path through the op."""
        if not self.declaration.gradients:
            return self.variants(case)
        calls = {}
        for call in self.variants(case):
            reads = tuple(isinstance(value, Tensor) for value in self.backward_arguments(call))
            calls.setdefault(reads, call)
        return list(calls.values())

    def needed(self, call: Call) -> tuple[bool, ...]:
        """For each leaf of the call, whether it has a gradient."""
        return tuple(name.partition("[")[0] in self.declaration.gradients for name in self.spec.leaf_names(call))

    def grads(self, call: Call, layout: str = "contiguous") -> list[Tensor]:
        """A random gradient for each floating-point output."""
        outputs = [out for out in eager_results(self.spec, call).values() if out.is_floating_point()]
        return [
            Case(tuple(out.shape), out.dtype, layout).tensor(91 + i, out.device) for i, out in enumerate(outputs)
        ]

    def overload_arguments(self, call: Call) -> tuple:
        """The call's arguments as the dispatcher op takes them: the numbers that may change are 0-d tensors."""
        return overload_arguments(self.declaration, self.spec, call)

    def backward_arguments(self, call: Call, needs: Sequence[bool] | None = None) -> tuple:
        """The backward overload's arguments, for every gradient unless `needs` says which."""
        outputs = tuple(eager_results(self.spec, call).values())
        needs = (True,) * len(self.declaration.gradients) if needs is None else needs
        return self.declaration.backward_arguments(self.overload_arguments(call), outputs, self.grads(call), needs)
