"""What an op's op.py says of it, and what follows from that: its forms, checks, messages, outputs and gradients.

Nothing is registered here and nothing runs: op.py makes dispatcher ops of a declaration, plan.py, fallback.py and
call.py read it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path

import torch
from torch import Tensor

from .. import runtime
from . import checks
from .address import is_same, overlap
from .scalars import with_tensors
from .schema import Allocation, Argument, Form, Kept, KeptShape, Prepared, SavedBy, Shape, flat, parse

OPS = f"{runtime.PACKAGE}.ops"  # the package of the ops' folders
BACKENDS = ("triton", "cuda")
BACKWARD = ("backward", "prepared")  # the forms that give gradients

# By an argument's type, what makes Python's own of its value, or raises.
PLAIN = {
    "int": checks.integer, "SymInt": checks.integer, "Length": checks.integer, "float": checks.real,
    "bool": checks.boolean,
}  # fmt: skip


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
        check: called as check(name, *arguments); raises with the message for what is wrong with them. A
            checks.Arguments, where shapes, dtypes and names say all.
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
        package: where these files are, if not kernels.ops.<name>: of several ops of one folder.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        *,
        eager: Callable,
        check: Callable,
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
        package: str = "",
    ) -> None:
        arguments, returns = parse(schema)
        if any(a.is_list for a in arguments) and "triton" in backends:
            raise ValueError(f"op {name!r} takes lists of tensors, which a kernel in Triton cannot")
        self.name, self.eager, self.eager_in_place = name, eager, eager_in_place
        self.package = package or f"{OPS}.{name}"
        self.backends, self.auto = tuple(backends), auto
        self.auto_on_cpu = "cpp" if "cpp" in backends and not runtime.why_not("cpp", "cpu") else "eager"
        self.elementwise, self.fits, self.generates = elementwise, fits, generates
        self.reports = any(r.is_report for r in returns)
        returns = [r for r in returns if not r.is_report]
        self.scalars = tuple(a.name for a in arguments if a.is_number)
        self.tensors = tuple(a.name for a in arguments if a.is_tensor and not a.is_number)
        self.others = [a for a in arguments if a.name not in self.tensors]  # the backward takes them as they are
        self.mutated = tuple(a.name for a in arguments if a.is_mutated)
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
        self._check, self._output_shapes, self._gradient_shapes = check, dict(outputs or {}), dict(gradients or {})
        self.forms = {"": Form(name, arguments, returns)}
        if in_place:
            written = [Argument("Tensor(a!)", a.name) if a.name == in_place else a for a in arguments]
            self.forms["_"] = Form(f"{name}_", written, [])
        if self.gradients:
            self._add_backward(arguments)

    @property
    def folder(self) -> str:
        """Where its files are: in kernels/ops/ the folder's name there, elsewhere the whole path."""
        inside = self.package.removeprefix(f"{OPS}.")
        if inside != self.package:
            return inside.replace(".", "/")
        found = importlib.util.find_spec(self.package)
        if found is None or found.origin is None:
            why = f"there is no package {self.package}" if found is None else f"{self.package} has no __init__.py"
            raise ValueError(f"{self.name}: {why}")
        return str(Path(found.origin).parent)

    def launcher(self, backend: str) -> str:
        """The module of the launcher that Python runs for a backend; "" for one that C++ launches by itself."""
        in_python = backend == "triton" or (backend == "cuda" and self.generates)
        return f"{self.package}.{backend}_launch" if in_python else ""

    def _add_backward(self, arguments: Sequence[Argument]) -> None:
        types = {a.name: a.type for a in arguments}
        saved = [Argument(types.get(name, "Tensor"), name) for name in self.saved]
        if self.saves.argument:  # which may not save it
            saved = [a if a.is_list else Argument(f"{a.type.removesuffix('?')}?", a.name) for a in saved]
        incoming = [Argument("Tensor", f"grad_{output}") for output in self.differentiable(self.outputs)]
        lists = {a.name for a in arguments if a.is_list}
        outgoing = [Argument("Tensor[]" if n in lists else "Tensor", f"grad_{n}") for n in self.gradients]
        shapes = [Argument("SymInt[]", f"{name}_shape") for name in self.shapes]
        taken, needs = [*incoming, *saved, *shapes, *self.others], Argument("bool[]", "needs")
        self.forms["backward"] = Form(f"{self.name}_backward", [*taken, needs], outgoing)
        if self.prepare:  # the form that has kernels, which the backward then calls
            taken += [Argument("Ragged", name) for name in self.prepare.names]
            self.forms["prepared"] = Form(f"{self.name}_backward_prepared", [*taken, needs], outgoing)

    @property
    def backward_form(self) -> str:
        """The form that the backward's launchers compute."""
        return "prepared" if self.prepare else "backward"

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
        """What a call returns, without its values: new tensors, beside the first argument."""
        first = self.forms[form].first_tensor(arguments)

        def made(of: Allocation | list[Allocation]) -> Tensor | list[Tensor]:
            return [made(each) for each in of] if isinstance(of, list) else first.new_empty(of[0], dtype=of[1])

        outputs = tuple(map(made, self.allocations(form, arguments)))
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
        """What this call saves, in the order of `saved`; None, or an empty list, in place of what it does not save."""
        saved = self.saves_for(named, needs)
        return [named[n] if n in saved else [] if isinstance(named[n], list) else None for n in self.saved]

    def shapes_of(self, named: Mapping[str, object]) -> list[list[int]]:
        """What is kept of the arguments whose shapes alone are."""
        return [
            [size for tensor in named[name] for size in (tensor.dim(), *tensor.shape)]
            if isinstance(named[name], list) else list(named[name].shape)
            for name in self.shapes
        ]  # fmt: skip

    def with_tensors(self, arguments: Sequence) -> list:
        """The functional form's arguments, with a 0-d tensor in place of each scalar that is a number."""
        return with_tensors(self.forms[""].scalars, arguments)

    def with_plain(self, form: str, arguments: Sequence) -> list:
        """The arguments, with an int or a float for what C++ takes for one: NumPy's, a tensor of one element for an
        int. Raises TypeError for what it does not take; ValueError for a number that is too large."""
        made = self.forms[form]
        return [
            PLAIN[argument.type](made.name, argument.name, value) if argument.type in PLAIN else value
            for argument, value in zip(made.arguments, arguments, strict=True)
        ]

    def with_prepared(self, backend: str, arguments: Sequence) -> tuple:
        """The arguments of `backward_form`, for those of the backward."""
        if not self.prepare:
            return tuple(arguments)
        *taken, needs = arguments
        return (*taken, *self.prepare.function(backend, self.forms["backward"].by_name(arguments)), needs)

    # ---------------------------------------------------------------------------------------------------------- checks

    def check(self, form: str, arguments: Sequence) -> None:
        """Raise for what is wrong with the arguments' types, dtypes, shapes, devices and values."""
        made, arguments = self.forms[form], self.with_plain(form, arguments)
        for argument, value in zip(made.arguments, arguments, strict=True):
            if argument.is_list:
                checks.are_tensors(made.name, argument.name, value)
            elif argument.is_number:
                _check_scalar(made, argument.name, value, arguments)
            elif argument.is_tensor and not (argument.is_optional and value is None):
                checks.is_tensor(made.name, argument.name, value)
        if form in BACKWARD:
            self._check_backward(made, arguments)
        else:
            self._check(made.name, *arguments)

    def _check_backward(self, made: Form, arguments: Sequence) -> None:
        """What is given must be of one call: an output like its gradient, an argument like the gradient it will get."""
        named = made.by_name(arguments)
        expected = {name: shape(named) for name, shape in self._gradient_shapes.items()}
        count = len(flat(expected.values()))
        if len(named["needs"]) != count:
            raise ValueError(f"{made.name}: needs must have {count} values, for {', '.join(self.gradients)}")
        (position, first), *others = made.tensors(arguments)
        for i, tensor in [(position, first), *others]:
            checks.is_beside(made.name, made.names[i], tensor, first, made.names[position])
        optional = {argument.name for argument in self.forms[""].arguments if argument.is_optional}
        for name in self.saves_for(named, named["needs"]):
            if named[name] is None and name not in optional:
                raise ValueError(f"{made.name}: {name} must be a tensor, from which this derivative is computed")
        for name in self.differentiable(self.outputs):
            if isinstance(saved := named.get(name), Tensor):
                checks.belongs_to(made.name, f"grad_{name}", named[f"grad_{name}"], name, saved, saved.shape)
        for name, allocation in expected.items():
            if isinstance(saved := named.get(name), Tensor):
                shape, dtype = allocation
                if saved.shape != torch.Size(shape) or saved.dtype != dtype:
                    raise ValueError(
                        f"{made.name}: {name} must have shape {list(shape)} and dtype {checks.plain(dtype)}; got "
                        f"{list(saved.shape)}, {checks.plain(saved.dtype)}"
                    )

    def check_written(self, form: str, arguments: Sequence) -> None:
        """Raise if what the form writes overlaps itself, or something else that it writes."""
        made = self.forms[form]
        for i, position in enumerate(made.mutated):
            before = {made.names[other]: arguments[other] for other in made.mutated[:i]}
            checks.may_be_written(made.name, made.names[position], arguments[position], before)

    def as_before(self, form: str, arguments: Sequence) -> list:
        """The arguments, with a copy in place of each that is read and lies where the form writes: what counts is its
        value before the call, as if the caller had cloned it. Compilers drop such clones: Inductor does, of a view of
        what the graph then writes. Elementwise, what is written may also be read, since that comes first."""
        made = self.forms[form]
        written = [arguments[position] for position in made.mutated]

        def taken(value: object) -> object:
            if not isinstance(value, Tensor):
                return value
            own = [tensor for tensor in written if not (self.elementwise and is_same(value, tensor))]
            return value.clone() if any(overlap(value, tensor) for tensor in own) else value

        return [
            value if i in made.mutated else list(map(taken, value)) if isinstance(value, list) else taken(value)
            for i, value in enumerate(arguments)
        ]


def _check_scalar(made: Form, name: str, value: object, arguments: Sequence) -> None:
    if not isinstance(value, Tensor):
        if not isinstance(value, Real):
            raise TypeError(f"{made.name}: {name} must be a number or a 0-d tensor; got {type(value).__name__}")
        return
    if value.dim() or value.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"{made.name}: {name} must be a number, or a 0-d tensor of float32 or float64; got one of shape "
            f"{list(value.shape)} and dtype {checks.plain(value.dtype)}"
        )
    device = made.first_tensor(arguments).device
    if value.device.type != "cpu" and value.device != device:
        raise ValueError(f"{made.name}: {name} must be on the CPU or on {device}; got {value.device}")
    if value.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{made.name}: {name} has no gradient: detach() it")
