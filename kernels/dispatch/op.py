"""One declaration an op: from it come the overloads, their fakes, autograd, autocast, the refusals and the messages.

    OP = Op("add_relu", "(Tensor x, Tensor bias) -> Tensor out", eager=…, check=…, outputs={"out": like("x")},
            in_place="x", saves=("out",), gradients={"x": like("grad_out"), "bias": last_dimension("grad_out")})

For each backend ("triton", "cuda", of some ops "cpp") the overloads fused_kernels::add_relu.<backend>,
add_relu_.<backend> (in place) and add_relu_backward.<backend> are defined here at import, so that an exported program
loads. What runs them: the C++ core (core.cpp) once it is loaded, which the first call on a GPU sees to; in Triton's
interpreter, and where there is no C++ compiler, the Python of fallback.py.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Real

import torch
from torch import Tensor

from kernels import runtime
from kernels.dispatch import allocation, checks, extension, plan, report
from kernels.dispatch.call import Call
from kernels.dispatch.fallback import Fallback
from kernels.dispatch.schema import Argument, Form, Shape, last_dimension, like, parse

__all__ = ["Op", "last_dimension", "like"]

NAMESPACE = "fused_kernels"
BACKENDS = ("triton", "cuda")
BACKWARD = ("backward", "prepared")  # the forms that give gradients
_loading = threading.RLock()
END = -(2**63)  # of a list in a list of integers, as core.cpp reads it

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define("_allocate(int[] shape, ScalarType dtype, Device device) -> Tensor")
_library.impl("_allocate", allocation.empty, "CompositeExplicitAutograd")


class Op:
    """An op, as its op.py declares it. `call` and `call_in_place` are what its public functions call.

    Args:
        name: fused_kernels::<name>, and the folder in kernels/ops/.
        schema: torch's, with named returns. A number that changes from call to call (a multiplier, a learning rate) is
            a Tensor in it and named in `scalars`: it may be given as a number or a 0-d tensor, and does not recompile.
            What an optimizer's update writes is Tensor(a!), and such an op returns nothing.
        eager: the reference; eager_in_place: the same for the in-place form.
        check: called as check(name, *arguments); raises with the message for what is wrong with them.
        outputs, gradients: name → Shape. Gradients are of the arguments of these names; what their shapes are made of
            are the backward's own arguments: grad_<output>, what is saved, and the other arguments that are no tensors.
            An op without gradients refuses arguments that require one.
        saves: what the backward reads, names of arguments and outputs; a mapping from the values of the string argument
            `saves_by` if that decides.
        undifferentiable: floating outputs that have no gradient, such as what is kept for the backward: it takes none.
        prepare, prepared: where the backward's kernels need what another op makes (a sort, say): prepare(backend, the
            backward's arguments by name) → the tensors of these names, when there is a gradient to compute. The
            backward's launchers take them behind its other arguments.
        in_place: the argument that the in-place form writes, in place of the one output; "" for none.
        elementwise: each element is read before it is written, so that another argument may be the one written.
        backends: those it has code for: "triton" (triton_launch.py), "cuda" (cuda.cu), and for CPU tensors "cpp"
            (cpu.cpp), which "auto" is on a CPU where there is a C++ compiler.
        backward_backends: those of them that have code for the backward; the others' is the first's.
        reports: whether its kernels tell the host what is wrong with their input (dispatch/report.py): the forward's
            launchers then take one tensor more, behind the outputs.
        auto: the backend that "auto" is on a GPU: the faster one by the op's record.
        fits: called as fits(backend, the arguments by name) where a call of a new kind is planned, which under
            torch.compile is when it runs: raises if that backend's kernels cannot take it.
        package: where these files are, if not kernels.ops.<name>: of several ops of one folder.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        *,
        eager: Callable,
        check: Callable,
        outputs: Mapping[str, Shape] | None = None,
        saves: Sequence[str] | Mapping[str, Sequence[str]] = (),
        saves_by: str = "",
        gradients: Mapping[str, Shape] | None = None,
        undifferentiable: Sequence[str] = (),
        prepare: Callable | None = None,
        prepared: Sequence[str] = (),
        in_place: str = "",
        eager_in_place: Callable | None = None,
        scalars: Sequence[str] = (),
        elementwise: bool = False,
        backends: Sequence[str] = BACKENDS,
        backward_backends: Sequence[str] | None = None,
        reports: bool = False,
        auto: str = "triton",
        fits: Callable | None = None,
        package: str = "",
    ) -> None:
        arguments, returns = parse(schema)
        self.name, self.eager, self.eager_in_place = name, eager, eager_in_place
        self.package = package or f"kernels.ops.{name}"
        self.backends, self.auto = tuple(backends), auto
        self.auto_on_cpu = "cpp" if "cpp" in backends and not runtime.why_not("cpp", "cpu") else "eager"
        self.folder = self.package.removeprefix("kernels.ops.").replace(".", "/")
        self.elementwise, self.reports = elementwise, reports
        self.scalars = tuple(scalars)
        self.tensors = tuple(a.name for a in arguments if a.is_tensor and a.name not in scalars)
        self.outputs = tuple(r.name for r in returns)
        self.undifferentiable = tuple(self.outputs.index(name) for name in undifferentiable)
        self.mutated = tuple(a.name for a in arguments if a.is_mutated)
        self.gradients = tuple(gradients or ())
        self.others = [a for a in arguments if a.name in scalars or not a.is_tensor]  # backward takes them as they are
        self._check, self._output_shapes, self._gradient_shapes = check, dict(outputs or {}), dict(gradients or {})
        self._saves = saves if isinstance(saves, Mapping) else {"": tuple(saves)}
        self.saved = tuple(dict.fromkeys(name for names in self._saves.values() for name in names))
        self._saves_by = saves_by
        self._prepare, self._fits = prepare, fits
        self._loaded: dict[tuple[str, str], bool] = {}  # (backend, device type) → whether the core runs it

        self.forms = {"": Form(name, arguments, returns, scalars)}
        if in_place:
            written = [Argument("Tensor(a!)", a.name) if a.name == in_place else a for a in arguments]
            self.forms["_"] = Form(f"{name}_", written, [], scalars)
        if self.gradients:
            types = {a.name: a.type for a in arguments}
            saved = [Argument("Tensor?" if saves_by else types.get(s, "Tensor"), s) for s in self.saved]
            grads = [Argument("Tensor", f"grad_{output}") for output in self.differentiable(self.outputs)]
            found = [Argument("Tensor", f"grad_{name}") for name in self.gradients]
            taken = [*grads, *saved, *self.others, Argument("bool[]", "needs")]
            self.forms["backward"] = Form(f"{name}_backward", taken, found, scalars)
            if prepare:  # the form that has kernels, which the backward then calls
                *taken, needs = taken
                taken += [*(Argument("Tensor", made) for made in prepared), needs]
                self.forms["prepared"] = Form(f"{name}_backward_prepared", taken, found, scalars)
        with_backward = self.backends if backward_backends is None else tuple(backward_backends)
        self._backward_of = {b: b if b in with_backward else with_backward[0] for b in self.backends}
        self._overloads = {
            (b, form): self._define(b, form)
            for form in self.forms
            for b in (with_backward if form in BACKWARD else self.backends)
        }
        self.call = Call(self, "")
        self.call_in_place = Call(self, "_") if in_place else None

    def overload(self, backend: str, form: str = ""):
        """fused_kernels::<name>.<backend>; form: "", "_" (in place), "backward" or "prepared"."""
        return self._overloads[self._backward_of[backend] if form in BACKWARD else backend, form]

    @property
    def backward_form(self) -> str:
        """The form that the backward's launchers compute."""
        return "prepared" if self._prepare else "backward"

    def with_prepared(self, backend: str, arguments: Sequence) -> tuple:
        """The arguments of `backward_form`, for those of the backward."""
        if not self._prepare:
            return tuple(arguments)
        *taken, needs = arguments
        return (*taken, *self._prepare(backend, self.forms["backward"].by_name(arguments)), needs)

    def differentiable(self, of_outputs: Sequence) -> list:
        """Of something for each output, that of those that have a gradient."""
        return [value for i, value in enumerate(of_outputs) if i not in self.undifferentiable]

    # ------------------------------------------------------------------------------------------------- the definitions

    def _define(self, backend: str, form: str):
        made = self.forms[form]
        name, planner = f"{made.name}.{backend}", f"_plan_{made.name}.{backend}"
        _library.define(name + made.schema)
        _library.define(planner + made.plan_schema)
        overload = getattr(getattr(torch.ops.fused_kernels, made.name), backend)
        fallback = Fallback(self, backend, form, overload)
        # The core's own kernels, registered for a device and not for all as these are, come before them.
        _library.impl(name, fallback, "CompositeExplicitAutograd")
        _library.impl(planner, self._planner(backend, form), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", self._fake(backend, form), lib=_library)
        if form not in BACKWARD and backend == "triton":  # which CPU tensors go to; of CUDA tensors the core takes care
            _library.impl(name, fallback.under_autocast("cpu"), "AutocastCPU")
        if backward := fallback.backward():
            torch.library.register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=fallback.save, lib=_library)
        return overload

    def _fake(self, backend: str, form: str) -> Callable:
        def fake(*arguments):
            first = self.forms[form].first_tensor(arguments)
            self.require(backend, first.device.type)
            self.check(form, arguments)
            made = tuple(first.new_empty(shape, dtype=dtype) for shape, dtype in self.allocations(form, arguments))
            return made[0] if len(made) == 1 else made or None

        return fake

    def _planner(self, backend: str, form: str) -> Callable:
        """What the core calls for a signature new to it: checks, then says what to allocate and to launch."""

        def make_plan(*arguments) -> None:
            self.check(form, arguments)
            self.check_written(form, arguments)
            if self._fits and form not in BACKWARD:
                self._fits(backend, self.forms[form].by_name(arguments))
            allocations = self.allocations(form, arguments)
            if self.reports:
                device = self.forms[form].first_tensor(arguments).device
                torch.ops.fused_kernels._set_report(report.tensor(device), device)
            recorded = plan.record(self, form, arguments, allocations) if backend == "triton" else ([], [])
            outputs = [number for shape, dtype in allocations for number in plan.allocation(shape, dtype)]
            torch.ops.fused_kernels._add_plan(outputs, *recorded)

        return make_plan

    def allocations(self, form: str, arguments: Sequence) -> list[tuple[Sequence[int], torch.dtype]]:
        """Shape and dtype of what a call allocates and returns; a gradient that is not needed has no elements."""
        given = self.forms[form].by_name(arguments)
        if form in BACKWARD:
            shapes = [shape(given) for shape in self._gradient_shapes.values()]
            return [(s if needed else (0,), dtype) for (s, dtype), needed in zip(shapes, given["needs"], strict=True)]
        return [] if form == "_" else [self._output_shapes[name](given) for name in self.outputs]

    def saves_for(self, given: Mapping[str, object]) -> Sequence[str]:
        """What of the arguments and outputs, by name, the backward reads after this call."""
        return self._saves[given[self._saves_by] if self._saves_by else ""]

    # ---------------------------------------------------------------------------------------------------------- checks

    def check(self, form: str, arguments: Sequence) -> None:
        """Raise for what is wrong with the arguments' types, dtypes, shapes, devices and values."""
        made = self.forms[form]
        for argument, value in zip(made.arguments, arguments, strict=True):
            if argument.name in self.scalars:
                self._check_scalar(made, argument.name, value, arguments)
            elif argument.is_tensor and not (argument.is_optional and value is None):
                checks.is_tensor(made.name, argument.name, value)
        if form in BACKWARD:
            self._check_backward(made, arguments)
        else:
            self._check(made.name, *arguments)

    def _check_scalar(self, made: Form, name: str, value: object, arguments: Sequence) -> None:
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

    def _check_backward(self, made: Form, arguments: Sequence) -> None:
        """What is given must be of one call: an output like its gradient, an argument like the gradient it will get."""
        given = made.by_name(arguments)
        if len(given["needs"]) != len(self.gradients):
            names = ", ".join(self.gradients)
            raise ValueError(f"{made.name}: needs must have {len(self.gradients)} values, for {names}")
        first = made.first_tensor(arguments)
        for i, tensor in made.tensors(arguments):
            checks.is_beside(made.name, made.names[i], tensor, first)
        optional = {argument.name for argument in self.forms[""].arguments if argument.is_optional}
        for name in self.saves_for(given):
            if given[name] is None and name not in optional:
                raise ValueError(f"{made.name}: {name} must be a tensor, from which this derivative is computed")
        for name in self.differentiable(self.outputs):
            if isinstance(saved := given.get(name), Tensor):
                checks.belongs_to(made.name, f"grad_{name}", given[f"grad_{name}"], name, saved, saved.shape)
        for name, shape in self._gradient_shapes.items():
            if isinstance(saved := given.get(name), Tensor):
                expected, dtype = shape(given)
                if saved.shape != torch.Size(expected) or saved.dtype != dtype:
                    raise ValueError(
                        f"{made.name}: {name} must have shape {list(expected)} and dtype {checks.plain(dtype)}; got "
                        f"{list(saved.shape)}, {checks.plain(saved.dtype)}"
                    )

    def check_written(self, form: str, arguments: Sequence) -> None:
        """Raise if what the form writes overlaps itself or what it reads."""
        made = self.forms[form]
        for position in made.mutated:
            given = made.by_name(arguments)
            written = given.pop(made.names[position])
            checks.may_be_written(made.name, made.names[position], written, given, self.elementwise)

    def require(self, backend: str, device_type: str) -> None:
        """Raise RuntimeError, with what is missing and how to get it, unless this machine runs the backend."""
        if (backend, device_type) == ("cuda", "cpu"):
            if extension.runs_on_host():
                return
        elif self._loaded.get((backend, device_type)):
            return
        if reason := runtime.why_not(backend, device_type):
            raise RuntimeError(f'backend="{backend}" does not run here: {reason}')

    # ----------------------------------------------------------------------------------------------------- the C++ core

    def load(self, backend: str, device_type: str) -> bool:
        """Whether the core runs this backend's overloads for tensors on such devices; loads it on first use."""
        key = backend, device_type
        if key == ("cuda", "cpu") and not extension.runs_on_host():
            return False
        if key in self._loaded:
            return self._loaded[key]
        with _loading:
            return self._loaded[key] if key in self._loaded else self._load(backend, device_type)

    def _load(self, backend: str, device_type: str) -> bool:
        if (backend, device_type) == ("cuda", "cpu"):
            extension.load_core()
            self.declare(backend, device_type, str(extension.load_op_for_host(self.folder)))
        elif backend == "cpp" and device_type == "cpu":
            self.require(backend, device_type)
            extension.load_core()
            self.declare(backend, device_type, str(extension.load_op_for_cpu(self.folder)))
        elif device_type != "cuda" or backend == "cpp":
            return False
        elif backend == "cuda":
            if not extension.op_is_built(self.folder):
                self.require(backend, device_type)
            extension.load_core()
            self.declare(backend, device_type, str(extension.load_op(self.folder)))
        else:
            try:
                extension.load_core()
            except RuntimeError as error:
                self.require(backend, device_type)
                warnings.warn(
                    f"Triton's own launcher is used, and a call costs several times as much: {error}", stacklevel=2
                )
                for form in ("", "_") if self.call_in_place else ("",):
                    fallback = Fallback(self, backend, form, self._overloads[backend, form])
                    _library.impl(f"{self.forms[form].name}.{backend}", fallback.under_autocast("cuda"), "AutocastCUDA")
                self._loaded[backend, device_type] = False
                return False
            self.declare(backend, device_type, "")
        return True

    def declare(self, backend: str, device_type: str, library: str) -> None:
        """Tell the core of this op on a backend, for tensors on devices of this type. `library`: the op's cuda.cu."""
        positions = {name: i for i, name in enumerate(self.forms[""].names)}
        positions |= {name: -1 - i for i, name in enumerate(self.outputs)}
        torch.ops.fused_kernels._declare(
            self.name, backend, device_type, library,
            [positions[name] for name in self.gradients],
            [positions[name] for name in self.mutated],
            self.forms["_"].mutated[0] if self.call_in_place else -1,
            self.elementwise,
            positions[self._saves_by] if self._saves_by else -1,
            list(self._saves),
            [number for names in self._saves.values() for number in (*(positions[name] for name in names), END)],
            [positions[name] for name in self.saved],
            [positions[argument.name] for argument in self.others],
            self.forms[""].scalars,
            self.forms["backward"].scalars if self.gradients else [],
            self.reports,
            list(self.undifferentiable),
            self._backward_of[backend],
            self.forms[self.backward_form].name if self.gradients else "",
        )  # fmt: skip
        self._loaded[backend, device_type] = True

    def backward_arguments(
        self, arguments: Sequence, outputs: Sequence[Tensor], grads: Sequence[Tensor], needs: Sequence[bool]
    ) -> tuple:
        """The backward overload's arguments after a call of the functional one; grads: of the outputs that have one."""
        given = self.forms[""].by_name(self.call.with_tensors(arguments))
        given |= dict(zip(self.outputs, outputs, strict=True))
        saved = self.saves_for(given)
        others = [given[argument.name] for argument in self.others]
        return (*grads, *(given[name] if name in saved else None for name in self.saved), *others, list(needs))
