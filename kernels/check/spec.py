"""What an op must do, as its ops/<op>/spec.py declares it: SPEC = Spec(reference, calls, …)."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..runtime import PACKAGE
from .cases import Call, Case, pointwise_cases, wide_cases
from .comparison import Pointwise, Sums, as_tuple, double

_OPS = Path(__file__).resolve().parent.parent / "ops"


@dataclass(frozen=True)
class Dimension:
    """of: n → the case in which this dimension is n, and all others are small. large: an n of several blocks. least,
    most (default: large): of a smaller or larger block there is no case. on_gpu: whether a GPU has these cases too:
    where a size is compiled into the kernel, each takes seconds."""

    of: Callable[[int], Case]
    large: int = 4096
    least: int = 2
    most: int = 0
    on_gpu: bool = True

    def case(self, n: int) -> Case:
        return replace(self.of(n), every_option=False)


@dataclass(frozen=True)
class Spec:
    """An op's calls, its results, and how exact they must be.

    reference: plain PyTorch, called with the public op's positional arguments. It returns the outputs and writes to the
        arguments that are mutated.
    calls: (case, device) → the calls that a case gives: none, or one for each of the op's options.
    outputs: names of what is returned, in order. One that is also in `mutated` must be that argument itself.
    mutated: names of the arguments that are written to; all others must come out unchanged.
    repeatable: whether two runs must give the same bits.
    scale: how far floating-point results may be off.
    cases: (names of the tensor arguments) → the cases for every device. wide_cases: more of them, for a GPU.
    dimensions: those that a kernel may cut into blocks, at whose edges there are cases, too (edges.py).
    overload: a call's arguments → the dispatcher op's, if the public function computes some of them.
    """

    reference: Callable
    calls: Callable[[Case, torch.device], Iterable[Call]]
    outputs: tuple[str, ...] = ("out",)
    mutated: tuple[str, ...] = ()
    repeatable: bool = True
    scale: Pointwise | Sums = Pointwise()  # noqa: RUF009
    cases: Callable[[tuple[str, ...]], list[Case]] = pointwise_cases
    wide_cases: Callable[[tuple[str, ...]], list[Case]] = wide_cases
    dimensions: tuple[Dimension, ...] = (Dimension(lambda n: Case((1, n))), Dimension(lambda n: Case((n, 3))))
    overload: Callable[[tuple], tuple] = tuple

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of all positional arguments."""
        return tuple(inspect.signature(self.reference).parameters)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the arguments that are tensors, or None or a list of tensors."""
        call = next(iter(self.calls(Case((1, 1)), torch.device("cpu"))))
        return self.arguments[: len(call.tensors)]

    def leaf_names(self, call: Call) -> list[str]:
        """A name for each of call.leaves(): "x", or "weights[1]" in a list."""
        names = []
        for name, value in zip(self.arguments, call.tensors, strict=False):
            count = len(replace(call, tensors=(value,)).leaves())
            names += [name] * count if isinstance(value, Tensor) else [f"{name}[{i}]" for i in range(count)]
        return names

    def results(self, function: Callable, call: Call) -> dict[str, Tensor]:
        """Call the function; what it returned and what it should have written to, by name.

        Raises AssertionError if it returned something else than the outputs.
        """
        arguments = dict(zip(self.arguments, call.arguments(), strict=False))
        returned = function(*call.arguments())
        values = as_tuple(returned) if isinstance(returned, Tensor | tuple | list) else (returned,)
        if returned is None and not self.outputs:
            values = ()
        if len(values) != len(self.outputs):
            raise AssertionError(f"must return {len(self.outputs)} tensors, {self.outputs}; got {len(values)}")
        for name, value in zip(self.outputs, values, strict=True):
            if not isinstance(value, Tensor):
                raise AssertionError(f"must return a tensor; got {type(value).__name__}")
            if name in self.mutated and value is not arguments[name]:
                first = "its first argument" if name == self.arguments[0] else f"its argument {name}"
                raise AssertionError(f"must return {first}")
        return dict(zip(self.outputs, values, strict=True)) | {name: arguments[name] for name in self.mutated}

    def in_place(self) -> Spec:
        """The spec of the op's in-place twin, which writes the output to its first argument and returns that."""
        functional, first = self.reference, self.arguments[:1]

        def reference(*arguments):
            return arguments[0].copy_(functional(*arguments))

        reference.__signature__ = inspect.signature(functional)
        return replace(self, reference=reference, outputs=first, mutated=first)


@functools.cache
def _specs() -> dict[str, str]:
    """op → the folder whose spec.py has its spec: SPEC, or in SPECS, by name, those of a folder with several ops."""
    folders = {}
    for path in sorted(_OPS.glob("*/spec.py")):
        folder, several = path.parent.name, re.search(r"^SPECS\b", path.read_text(), re.MULTILINE)
        ops = importlib.import_module(f"{PACKAGE}.ops.{folder}.spec").SPECS if several else [folder]
        folders |= dict.fromkeys(ops, folder)
    return folders


def names() -> list[str]:
    """The ops that have a spec."""
    return sorted(_specs())


def spec_of(op: str) -> Spec:
    """The op's spec; with a trailing underscore, of a functional op's in-place twin.

    ValueError: an unknown op.
    """
    folders = _specs()
    name = op if op in folders else op.removesuffix("_")
    if name not in folders:
        raise ValueError(f"unknown op {op!r}: expected one of {', '.join(sorted(folders))}")
    module = importlib.import_module(f"{PACKAGE}.ops.{folders[name]}.spec")
    spec = module.SPECS[name] if hasattr(module, "SPECS") else module.SPEC
    return spec.in_place() if op.endswith("_") and not spec.mutated else spec


def exact_results(spec: Spec, call: Call) -> dict[str, Tensor]:
    """The reference's results in float64, on copies of the call's tensors. Integers stay integers."""
    return spec.results(spec.reference, call.map(double))


def eager_results(spec: Spec, call: Call) -> dict[str, Tensor]:
    """The reference's results in the call's own dtypes; the call's tensors are left as they are."""
    if not spec.mutated:
        return spec.results(spec.reference, call)
    return spec.results(spec.reference, call.map(torch.clone))


def expected(op: str, call: Call) -> Tensor | tuple[Tensor, ...]:
    """What the op must return, or write: computed in float64, rounded to the dtypes that eager gives."""
    spec = spec_of(op)
    eager = eager_results(spec, call)
    results = tuple(exact.to(eager[name].dtype) for name, exact in exact_results(spec, call).items())
    return results[0] if len(results) == 1 else results


def reference(op: str) -> Callable:
    """The op's eager function, which everything is compared with; with a trailing underscore, in place."""
    return spec_of(op).reference


def calls_of(op: str, case: Case, device: torch.device | str = "cpu") -> list[Call]:
    """The calls of the op that a case gives."""
    return list(spec_of(op).calls(case, torch.device(device)))
