"""What an op's op.py says of it, and what follows from that: its overloads, their outputs, what is saved for backward.

Nothing is registered here and nothing runs: op.py makes dispatcher ops of a declaration, plan.py, fallback.py and
call.py read it. What the arguments of an overload must be is in its Signature (signature.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from .. import runtime
from . import checks
from .scalars import with_tensors
from .signature import Argument, Signature, flat, parse

OPS = f"{runtime.PACKAGE}.ops"  # the package of the ops' folders
BACKENDS = ("triton", "cuda")
BACKWARD = ("backward", "prepared")  # the forms that give gradients

# From an overload's arguments by name to the shape and dtype of an output or a gradient. For a gradient that is a list:
# of each tensor in it.
Allocation = tuple[Sequence[int], torch.dtype]
Shape = Callable[[Mapping[str, object]], Allocation | list[Allocation]]


def like(name: str, dtype_of: str = "") -> Shape:
    """Shape and dtype of the argument `name`. With `dtype_of`, another argument, `name` may be absent: its shape, [0]
    where it is, and the other's dtype."""
    if dtype_of:
        return lambda named: ((0,) if named[name] is None else named[name].shape, named[dtype_of].dtype)
    return lambda named: (named[name].shape, named[name].dtype)


def last_dimension(name: str) -> Shape:
    """[N] for the argument `name` of shape [..., N], and its dtype."""
    return lambda named: (named[name].shape[-1:], named[name].dtype)


@dataclass(frozen=True)
class Kept:
    """A floating output that is kept for the backward and has no gradient of its own."""

    shape: Shape

    def __call__(self, arguments: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
        return self.shape(arguments)


@dataclass(frozen=True)
class KeptShape:
    """A gradient with the shape of the argument `name` and another argument's dtype. The backward keeps the shape
    alone: the argument may be written to, or go, between forward and backward."""

    name: str
    dtype_of: str

    def __call__(self, arguments: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
        return arguments[f"{self.name}_shape"], arguments[self.dtype_of].dtype


@dataclass(frozen=True)
class KeptShapes(KeptShape):
    """The same for an argument that is a list of tensors, each of which gets a gradient. For each
    tensor the list of integers has its number of dimensions, then its shape."""

    def __call__(self, arguments: Mapping[str, object]) -> list[tuple[Sequence[int], torch.dtype]]:
        numbers, shapes, dtype = list(arguments[f"{self.name}_shape"]), [], arguments[self.dtype_of].dtype
        while numbers:
            end = 1 + numbers[0]
            shapes.append((numbers[1:end], dtype))
            numbers = numbers[end:]
        return shapes


@dataclass(frozen=True)
class SavedBy:
    """What the backward reads, where the value of a string argument decides: names for each value; and, `wanted`,
    what it reads besides where the gradient of an argument is wanted: names for each of these."""

    argument: str
    saves: Mapping[str, Sequence[str]]
    wanted: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """What another op makes for the backward's kernels: function(backend, the backward's arguments by name) gives the
    Ragged tensors of these names."""

    names: Sequence[str]
    function: Callable[[str, Mapping[str, object]], Sequence[Tensor]]


class Declaration:
    """An op, as its op.py declares it.

    Args:
        name: fused_kernels::<name>, and the folder in kernels/ops/.
        schema: torch's, with named returns. A number that changes from call to call (a multiplier, a learning rate) is
            a Number: it may be given as a number or a 0-d tensor, and does not recompile. A tensor of ids whose number
            changes from call to call is Ragged, and that number, given as one, a Length: another one is no new
            signature. A Tensor[] is a list of tensors, of any shapes, a Ragged[] one of ids; the first argument, if it
            is a list, has one at least. An op that takes lists has no kernel in Triton, where an array cannot be an
            argument. What an optimizer's update writes is Tensor(a!), and such an op returns nothing. "Report report"
            behind the returns: its kernels tell the host what is wrong with their input (dispatch/input_errors.py), and
            the forward's launchers take one tensor more, behind the outputs.
        eager: the reference; eager_in_place: the same for the in-place form.
        shapes: the arguments' shapes and dtypes, as a Signature reads them. hints: what the message adds where the
            argument of this name has another shape.
        check: called as check(name, *arguments); raises for what the shapes do not say.
        outputs, gradients: name → Shape. Gradients are of the arguments of these names; what their shapes are made of
            are the backward's own arguments: grad_<output>, what is saved, and the other arguments that are no tensors.
            An op without gradients refuses arguments that require one. An output that is Kept has none, and the
            backward takes none of it.
        saves: what the backward reads, names of arguments and outputs; or SavedBy a string argument. The
            backward takes <argument>_shape, a list of integers, behind what is saved, for an argument whose gradient is
            a KeptShape. The gradient of an argument that is a list is KeptShapes, and a list.
        prepare: what the backward's kernels need of another op (a sort, say): it is made when there is a gradient to
            compute, and the backward's launchers take it behind its other arguments.
        in_place: the argument that the in-place form writes, in place of the one output; "" for none.
        elementwise: each element is read before it is written, so that another argument may be the one written. What
            is read and lies where the op writes is copied before it otherwise.
        backends: those it has code for: "triton" (triton_launch.py), "cuda" (cuda.cu), and for CPU tensors "cpp"
            (cpu.cpp), which "auto" is on a CPU where there is a C++ compiler. Where not each has its own backward, a
            mapping from each to the one whose backward it takes.
        auto: the backend that "auto" is on a GPU, the faster one by the op's record; or called as auto(*arguments) at
            each call, and by torch.compile where it traces one.
        fits: called as fits(backend, the arguments by name) where a call of a new kind is planned, which under
            torch.compile is when it runs: raises if that backend's kernels cannot take it.
        generates: in cuda.cu's place there is cuda_launch.py, which launches CUDA source that it generates
            (device/source_launch.py).
        launches: the function of a launcher in Python, if not `forward`: of several ops of one folder.
        by_nvcc: cuda.cu takes nvcc, whole; else g++, and NVRTC for its kernels (host_side.py).
        package: where these files are, if not kernels.ops.<name>: of several ops of one folder.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        *,
        eager: Callable,
        shapes: str = "",
        hints: Mapping[str, str] | None = None,
        check: Callable | None = None,
        eager_in_place: Callable | None = None,
        outputs: Mapping[str, Shape] | None = None,
        saves: Sequence[str] | SavedBy = (),
        gradients: Mapping[str, Shape] | None = None,
        prepare: Prepared | None = None,
        in_place: str = "",
        elementwise: bool = False,
        backends: Sequence[str] | Mapping[str, str] = BACKENDS,
        auto: str | Callable[..., str] = "triton",
        fits: Callable | None = None,
        generates: bool = False,
        launches: str = "forward",
        by_nvcc: bool = False,
        package: str = "",
    ) -> None:
        arguments, returns = parse(schema)
        if any(a.is_list for a in arguments) and "triton" in backends:
            raise ValueError(f"op {name!r} takes lists of tensors, which a kernel in Triton cannot")
        self.name, self.eager, self.eager_in_place = name, eager, eager_in_place
        self.package = package or f"{OPS}.{name}"
        self.backends, self.auto = tuple(backends), auto
        self.auto_on_cpu = "cpp" if "cpp" in backends and not runtime.why_not("cpp", "cpu") else "eager"
        self.elementwise, self.fits, self.generates, self.by_nvcc = elementwise, fits, generates, by_nvcc
        self.launches = launches
        self.reports = any(r.type == "Report" for r in returns)
        returns = [r for r in returns if r.type != "Report"]
        functional = Signature(name, arguments, returns, shapes, hints, check)
        self.forms = {"": functional}
        self.scalars = tuple(functional.names[i] for i in functional.scalars)
        self.tensors = tuple(a.name for a in arguments if a.is_tensor and a.name not in self.scalars)
        self.others = [a for a in arguments if a.name not in self.tensors]  # the backward takes them as they are
        self.mutated = tuple(functional.names[i] for i in functional.mutated)
        self.outputs = tuple(r.name for r in returns)
        self.undifferentiable = tuple(i for i, r in enumerate(returns) if isinstance(outputs[r.name], Kept))
        self.gradients = tuple(gradients or ())
        self.saves = saves if isinstance(saves, SavedBy) else SavedBy("", {"": tuple(saves)})
        reads = (*self.saves.saves.values(), *self.saves.wanted.values())
        self.saved = tuple(dict.fromkeys(name for names in reads for name in names))
        self.shapes = tuple(shape.name for shape in (gradients or {}).values() if isinstance(shape, KeptShape))
        self.prepare = prepare
        for text in (name, *self.backends, *self.saves.saves):
            if "\t" in text or "\n" in text:  # loader.py writes them between tabs and newlines
                raise ValueError(f"op {name!r}: {text!r} must have no tab and no newline")
        # backend → the one whose backward it takes
        self.backward_of = dict(backends) if isinstance(backends, Mapping) else {b: b for b in backends}
        # The backends with a launcher that Python runs, each with its module; C++ launches the others by itself.
        in_python = {"triton", "cuda"} if generates else {"triton"}
        with_kernels = dict.fromkeys((*self.backends, *self.backward_of.values()))
        self.launchers = {b: f"{self.package}.{b}_launch" for b in with_kernels if b in in_python}
        self._output_shapes, self._gradient_shapes = dict(outputs or {}), dict(gradients or {})
        self.backward_form = "prepared" if prepare else "backward"  # which the backward's launchers compute
        if in_place:
            written = [Argument("Tensor(a!)", a.name) if a.name == in_place else a for a in arguments]
            self.forms["_"] = Signature(f"{name}_", written, [], shapes, hints, check)
        if self.gradients:
            self._add_backward(arguments)

    @property
    def folder(self) -> str:
        """Where its files are: in kernels/ops/ the folder's name there, elsewhere the whole path."""
        inside = self.package.removeprefix(f"{OPS}.")
        if inside != self.package:
            return inside.replace(".", "/")
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            why = f"there is no package {self.package}" if spec is None else f"{self.package} has no __init__.py"
            raise ValueError(f"{self.name}: {why}")
        return str(Path(spec.origin).parent)

    def _add_backward(self, arguments: Sequence[Argument]) -> None:
        types = {a.name: a.type for a in arguments}
        saved = [Argument(types.get(name, "Tensor"), name) for name in self.saved]
        if self.saves.argument:  # which may not save it
            saved = [a if a.is_list else Argument(f"{a.type.removesuffix('?')}?", a.name) for a in saved]
        incoming = [Argument("Tensor", f"grad_{output}") for output in self.differentiable(self.outputs)]
        lists = {a.name for a in arguments if a.is_list}
        outgoing = [Argument("Tensor[]" if n in lists else "Tensor", f"grad_{n}") for n in self.gradients]
        shapes = [Argument("SymInt[]", f"{name}_shape") for name in self.shapes]
        prepared = [Argument("Ragged", name) for name in self.prepare.names] if self.prepare else []
        # Where something is prepared, that form has the kernels, and the backward calls it.
        for form, more in {"backward": [], self.backward_form: prepared}.items():
            name = f"{self.name}_backward" + "_prepared" * (form == "prepared")
            arguments = [*incoming, *saved, *shapes, *self.others, *more, Argument("bool[]", "needs")]
            self.forms[form] = Signature(name, arguments, outgoing, check=partial(self._check_backward, form))

    def overload(self, backend: str, form: str = ""):
        """fused_kernels::<name>.<backend>; form: "", "_" (in place), "backward" or "prepared"."""
        packet = getattr(torch.ops.fused_kernels, self.forms[form].name)
        return getattr(packet, self.backward_of[backend] if form in BACKWARD else backend)

    def allocations(self, form: str, arguments: Sequence) -> list[Allocation | list[Allocation]]:
        """Shape and dtype of what a call allocates and returns; a gradient that is not needed has no elements."""
        named = self.forms[form].by_name(arguments)
        if form in BACKWARD:
            needs = iter(named["needs"])

            def needed(shape: Sequence[int], dtype: torch.dtype) -> Allocation:
                return (shape if next(needs) else (0,)), dtype

            shapes = [shape(named) for shape in self._gradient_shapes.values()]
            return [[needed(*s) for s in shape] if isinstance(shape, list) else needed(*shape) for shape in shapes]
        return [] if form == "_" else [self._output_shapes[name](named) for name in self.outputs]

    def made_of_shapes(self, form: str, arguments: Sequence) -> Tensor | list[Tensor] | tuple | None:
        """New tensors like those that a call returns, on the first argument's device; their values are not computed."""
        first = self.forms[form].first_tensor(arguments)

        def new(output: Allocation | list[Allocation]) -> Tensor | list[Tensor]:
            return [*map(new, output)] if isinstance(output, list) else first.new_empty(output[0], dtype=output[1])

        outputs = tuple(map(new, self.allocations(form, arguments)))
        return outputs[0] if len(outputs) == 1 else outputs or None

    # ------------------------------------------------------------------------------------------------------- gradients

    def differentiable(self, of_outputs: Sequence) -> list:
        """The values that belong to differentiable outputs."""
        return [value for i, value in enumerate(of_outputs) if i not in self.undifferentiable]

    def saves_for(self, named: Mapping[str, object], needs: Sequence[bool]) -> Sequence[str]:
        """Which of the arguments and outputs, by name, the backward reads after this call; needs: which gradients."""
        besides = []
        if self.saves.wanted:
            wanted = [name for name, needed in zip(self.gradients, needs, strict=True) if needed]
            besides = [self.saves.wanted.get(name, ()) for name in wanted if isinstance(named.get(name), Tensor)]
        return [*self.saves.saves[named[self.saves.argument] if self.saves.argument else ""], *sum(besides, ())]

    def backward_arguments(
        self, arguments: Sequence, outputs: Sequence[Tensor], grads: Sequence[Tensor], needs: Sequence[bool]
    ) -> tuple:
        """The backward overload's arguments after a call of the functional one; grads: of the outputs that have one;
        needs: one for each tensor that may have a gradient."""
        named = self.forms[""].by_name(self.with_tensors(arguments)) | dict(zip(self.outputs, outputs, strict=True))
        kept = self.kept_for(named, needs)
        return (*grads, *kept, *self.shapes_of(named), *(named[argument.name] for argument in self.others), list(needs))

    def kept_for(self, named: Mapping[str, object], needs: Sequence[bool]) -> list[Tensor | list[Tensor] | None]:
        """What this call saves for backward, in the order of `saved`; None or an empty list for the rest."""
        saved = self.saves_for(named, needs)
        return [named[n] if n in saved else [] if isinstance(named[n], list) else None for n in self.saved]

    def shapes_of(self, named: Mapping[str, object]) -> list[list[int]]:
        """The shapes of those arguments whose shapes alone are saved for backward."""
        return [
            [size for tensor in named[name] for size in (tensor.dim(), *tensor.shape)]
            if isinstance(named[name], list) else list(named[name].shape)
            for name in self.shapes
        ]  # fmt: skip

    def with_tensors(self, arguments: Sequence) -> list:
        """The functional form's arguments, with a 0-d tensor in place of each scalar that is a number."""
        return with_tensors(self.forms[""].scalars, arguments)

    def with_prepared(self, backend: str, arguments: Sequence) -> tuple:
        """The arguments of `backward_form`, for those of the backward."""
        if not self.prepare:
            return tuple(arguments)
        *others, needs = arguments
        return (*others, *self.prepare.function(backend, self.forms["backward"].by_name(arguments)), needs)

    def _check_backward(self, form: str, op: str, *arguments) -> None:
        """All must be of one call: an output like its gradient, an argument like the gradient that it will get."""
        signature = self.forms[form]
        named = signature.by_name(arguments)
        expected = {name: shape(named) for name, shape in self._gradient_shapes.items()}
        count = len(flat(expected.values()))
        if len(named["needs"]) != count:
            raise ValueError(f"{op}: needs must have {count} values, for {', '.join(self.gradients)}")
        (position, first), *others = signature.tensors(arguments)
        for i, tensor in [(position, first), *others]:
            if tensor.layout != torch.strided or tensor.device != first.device:
                checks.is_beside(op, signature.names[i], tensor, first, signature.names[position])
        optional = {argument.name for argument in self.forms[""].arguments if argument.is_optional}
        for name in self.saves_for(named, named["needs"]):
            if named[name] is None and name not in optional:
                raise ValueError(f"{op}: {name} must be a tensor, from which this derivative is computed")
        for name in self.differentiable(self.outputs):
            if isinstance(saved := named.get(name), Tensor):
                checks.belongs_to(op, f"grad_{name}", named[f"grad_{name}"], name, saved, saved.shape)
        for name, allocation in expected.items():
            if isinstance(saved := named.get(name), Tensor):
                shape, dtype = allocation
                if saved.shape != torch.Size(shape) or saved.dtype != dtype:
                    raise ValueError(
                        f"{op}: {name} must have shape {list(shape)} and dtype {checks.plain(dtype)}; got "
                        f"{list(saved.shape)}, {checks.plain(saved.dtype)}"
                    )
