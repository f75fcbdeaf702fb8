"""One declaration an op: from it come the overloads, their fakes, autograd, autocast, the refusals and the messages.

    OP = Op("add_relu", "(Tensor x, Tensor bias) -> Tensor out", eager=…, check=…, outputs={"out": like("x")},
            in_place="x", saves=("out",), gradients={"x": like("grad_out"), "bias": last_dimension("grad_out")})

For each backend ("triton", "cuda") the overloads fused_kernels::add_relu.<backend>, add_relu_.<backend> (in place) and
add_relu_backward.<backend> are defined here at import, so that an exported program loads. What runs them: the C++ core
(core.cpp) once it is loaded, which the first call on a GPU sees to; in Triton's interpreter, and where there is no C++
compiler, the Python in this file.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kernels import runtime
from kernels.dispatch import allocation, checks, extension, plan
from kernels.dispatch.plan import ScalarStandIn

NAMESPACE = "fused_kernels"
BACKENDS = ("triton", "cuda")
END = -(2**63)  # of a list in a list of integers, as core.cpp reads it

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define("_allocate(int[] shape, ScalarType dtype, Device device) -> Tensor")
_library.impl("_allocate", allocation.empty, "CompositeExplicitAutograd")

# From an op's arguments by name: the shape and dtype of an output or a gradient.
Shape = Callable[[Mapping[str, object]], tuple[Sequence[int], torch.dtype]]


def like(name: str) -> Shape:
    """Shape and dtype of the argument `name`."""
    return lambda given: (given[name].shape, given[name].dtype)


def last_dimension(name: str) -> Shape:
    """[N] for the argument `name` of shape […, N], and its dtype."""
    return lambda given: (given[name].shape[-1:], given[name].dtype)


@dataclass(frozen=True)
class Argument:
    """One argument of a schema: "Tensor x", "Tensor? bias", "Tensor(a!) weights", "str activation"."""

    type: str
    name: str

    @property
    def is_tensor(self) -> bool:
        return self.type.startswith("Tensor")

    @property
    def is_optional(self) -> bool:
        return self.type.endswith("?")

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


def _parse(schema: str) -> tuple[list[Argument], list[Argument]]:
    def read(text: str) -> list[Argument]:
        text = text.strip()
        text = text[1:-1] if text.startswith("(") else text
        return [Argument(*part.split()) for part in text.split(", ") if part]

    arguments, _, returns = schema.partition(" -> ")
    return read(arguments), read(returns)


class Form:
    """One of an op's overloads on each backend: functional, in place ("_") or the backward."""

    def __init__(self, name: str, arguments: list[Argument], returns: list[Argument], scalars: Sequence[str]) -> None:
        self.name, self.arguments, self.returns = name, arguments, returns
        self.names = [argument.name for argument in arguments]
        self.scalars = [i for i, argument in enumerate(arguments) if argument.name in scalars]
        self.mutated = [i for i, argument in enumerate(arguments) if "!" in argument.type]
        given = ", ".join(map(str, arguments))
        self.schema = f"({given}) -> ({', '.join(f'{r.type} {r.name}' for r in returns)})"
        self.plan_schema = f"({given.replace('(a!)', '')}) -> ()"

    def tensors(self, arguments: Sequence) -> Iterator[tuple[int, Tensor]]:
        """(position, tensor) of the tensors that are no scalars."""
        for i, argument in enumerate(self.arguments):
            if argument.is_tensor and i not in self.scalars and isinstance(arguments[i], Tensor):
                yield i, arguments[i]


class Op:
    """An op, as its op.py declares it; calling it is what the public function does.

    Args:
        name: fused_kernels::<name>, and the folder in kernels/ops/.
        schema: torch's, with named returns. A number that changes from call to call (a multiplier, a learning rate) is a
            Tensor in it and named in `scalars`: it may be given as a number or a 0-d tensor, and does not recompile. What
            an optimizer's update writes is Tensor(a!).
        eager: the functional reference; eager_in_place: the same for the in-place form.
        check: called as check(name, *arguments); raises with the message for what is wrong with them.
        outputs, gradients: name → Shape. Gradients are of the arguments of these names; the backward's own arguments are
            grad_<output>, what is saved, and the other arguments that are no tensors. An op without gradients has none.
        saves: what the backward reads, names of arguments and outputs; a mapping from the values of the string argument
            `saves_by` if that decides.
        in_place: the argument that the in-place form writes, in place of the one output; "" for none.
        elementwise: each element is read before it is written, so that another argument may be the one written.
        triton, cuda: whether the folder has triton_launch.py, cuda.cu.
        auto: the backend that "auto" is on a GPU: the faster one by the op's record.
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
        in_place: str = "",
        eager_in_place: Callable | None = None,
        scalars: Sequence[str] = (),
        elementwise: bool = False,
        backends: Sequence[str] = BACKENDS,
        auto: str = "triton",
        package: str = "",
    ) -> None:
        self.name, self.eager, self.check = name, eager, check
        self.package = package or f"kernels.ops.{name}"
        self.scalars, self.in_place, self.elementwise = tuple(scalars), in_place, elementwise
        self.backends, self.auto = tuple(backends), auto
        self._eager_in_place = eager_in_place
        arguments, returns = _parse(schema)
        self._shapes = dict(outputs or {})
        self._gradient_shapes = dict(gradients or {})
        self.tensors = tuple(a.name for a in arguments if a.is_tensor and a.name not in scalars)
        self.outputs = tuple(r.name for r in returns)
        self.mutated = tuple(a.name for a in arguments if "!" in a.type)
        self.gradients = tuple(self._gradient_shapes)
        self._saves = saves if isinstance(saves, Mapping) else {"": tuple(saves)}
        self._saves_by = saves_by
        self.saved = tuple(dict.fromkeys(name for names in self._saves.values() for name in names))
        self._others = [a for a in arguments if a.name in scalars or not a.is_tensor]

        self._functional = Form(name, arguments, returns, scalars)
        self._forms = {"": self._functional}
        if in_place:
            written = [Argument("Tensor(a!)", a.name) if a.name == in_place else a for a in arguments]
            self._forms["_"] = Form(f"{name}_", written, [], scalars)
        if self.gradients:
            optional = "?" if len(self._saves) > 1 else ""
            types = {a.name: a.type for a in arguments}
            saved = [Argument("Tensor?" if optional or types.get(s) == "Tensor?" else "Tensor", s) for s in self.saved]
            taken = [*(Argument("Tensor", f"grad_{output}") for output in self.outputs), *saved, *self._others]
            found = [Argument("Tensor", f"grad_{name}") for name in self.gradients]
            self._forms["backward"] = Form(
                f"{name}_backward", [*taken, Argument("bool[]", "needs")], found, scalars
            )
        self._numbers: dict[float, Tensor] = {}
        self._loaded: dict[tuple[str, str], bool] = {}
        self._overloads = {(b, form): self._define(b, form) for form in self._forms for b in self.backends}
        self._calls: dict[tuple[str, str, bool], Callable] = {}  # (backend, form, on CUDA) → what is called

    # ------------------------------------------------------------------------------------------------- the definitions

    def _define(self, backend: str, form: str):
        made = self._forms[form]
        qualified = f"{NAMESPACE}::{made.name}"
        _library.define(f"{made.name}.{backend}{made.schema}")
        _library.define(f"_plan_{made.name}.{backend}{made.plan_schema}")
        _library.impl(f"{made.name}.{backend}", self._python_kernel(backend, form), "CompositeExplicitAutograd")
        _library.impl(f"_plan_{made.name}.{backend}", self._planner(backend, form), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{qualified}.{backend}", self._fake(backend, form), lib=_library)
        if form != "backward" and backend == "triton":  # which CPU tensors go to; of CUDA tensors the core takes care
            _library.impl(f"{made.name}.{backend}", self._autocast(backend, form), "AutocastCPU")
        overload = getattr(getattr(torch.ops.fused_kernels, made.name), backend)
        if form == "backward":
            torch.library.register_autograd(f"{qualified}.{backend}", self._refuse_second_derivative, lib=_library)
        elif form == "" and self.gradients:
            torch.library.register_autograd(
                f"{qualified}.{backend}", self._differentiate(backend), setup_context=self._save, lib=_library
            )
        return overload

    def overload(self, backend: str, form: str = ""):
        """fused_kernels::<name>.<backend>; form: "", "_" (in place) or "backward"."""
        return self._overloads[backend, form]

    def _fake(self, backend: str, form: str) -> Callable:
        made = self._forms[form]

        def fake(*arguments):
            first = next(tensor for _, tensor in made.tensors(arguments))
            self._require(backend, first.device.type)
            self._check(form, arguments)
            made_ = tuple(first.new_empty(shape, dtype=dtype) for shape, dtype in self._allocations(form, arguments))
            return made_[0] if len(made_) == 1 else made_ or None

        return fake

    def _allocations(self, form: str, arguments: Sequence) -> list[tuple[Sequence[int], torch.dtype]]:
        """Shape and dtype of what a call allocates and returns; a gradient that is not needed has no elements."""
        given = dict(zip(self._forms[form].names, arguments, strict=True))
        if form == "backward":
            shapes = [shape(given) for shape in self._gradient_shapes.values()]
            return [
                (shape if needed else (0,), dtype)
                for (shape, dtype), needed in zip(shapes, given["needs"], strict=True)
            ]
        return [] if form == "_" else [self._shapes[name](given) for name in self.outputs]

    # ---------------------------------------------------------------------------------------------------------- checks

    def _check(self, form: str, arguments: Sequence) -> None:
        """Raise for what is wrong with the arguments' types, dtypes, shapes, devices and values."""
        made = self._forms[form]
        for argument, value in zip(made.arguments, arguments, strict=True):
            if argument.name in self.scalars:
                self._check_scalar(made.name, argument.name, value, arguments)
            elif argument.is_tensor and not isinstance(value, Tensor) and not (argument.is_optional and value is None):
                raise TypeError(f"{made.name}: {argument.name} must be a tensor; got {type(value).__name__}")
        if form == "backward":
            self._check_backward(arguments)
        else:
            self.check(made.name, *arguments)

    def _check_scalar(self, op: str, name: str, value: object, arguments: Sequence) -> None:
        if isinstance(value, Tensor):
            first = next((a for a in arguments if isinstance(a, Tensor)), value)
            if value.dim() or value.dtype not in (torch.float32, torch.float64):
                raise TypeError(
                    f"{op}: {name} must be a number, or a 0-d tensor of float32 or float64; got one of shape "
                    f"{list(value.shape)} and dtype {checks.plain(value.dtype)}"
                )
            if value.device.type != "cpu" and value.device != first.device:
                raise ValueError(f"{op}: {name} must be on the CPU or on {first.device}; got {value.device}")
            if value.requires_grad:
                raise RuntimeError(f"{op}: {name} has no gradient: detach() it")
        elif not isinstance(value, Real):
            raise TypeError(f"{op}: {name} must be a number or a 0-d tensor; got {type(value).__name__}")

    def _check_backward(self, arguments: Sequence) -> None:
        """The gradients and what was saved must be those of one call: what the op itself gives and takes is checked by
        comparing gradients with what they are gradients of."""
        made = self._forms["backward"]
        given = dict(zip(made.names, arguments, strict=True))
        if len(given["needs"]) != len(self.gradients):
            raise ValueError(f"{made.name}: needs must have {len(self.gradients)} values, for {', '.join(self.gradients)}")
        for name in self._saves_for(given):
            if given[name] is None and f"Tensor {name}" in map(str, self._functional.arguments + self._functional.returns):
                raise ValueError(f"{made.name}: {name} must be a tensor, which this derivative is computed from")
        for name in self.outputs:
            if isinstance(saved := given.get(name), Tensor):
                grad = given[f"grad_{name}"]
                checks.belongs_to(made.name, f"grad_{name}", grad, name, saved, saved.shape)
        for name, shape in self._gradient_shapes.items():
            if isinstance(saved := given.get(name), Tensor):
                expected, dtype = shape(given)
                if saved.shape != torch.Size(expected) or saved.dtype != dtype:
                    raise ValueError(
                        f"{made.name}: {name} must have shape {list(expected)} and dtype {checks.plain(dtype)}; got "
                        f"{list(saved.shape)}, {checks.plain(saved.dtype)}"
                    )

    def _check_written(self, form: str, arguments: Sequence) -> None:
        made = self._forms[form]
        for position in made.mutated:
            others = {name: value for i, (name, value) in enumerate(zip(made.names, arguments, strict=True)) if i != position}
            checks.may_be_written(made.name, made.names[position], arguments[position], others, self.elementwise)

    def _saves_for(self, given: Mapping[str, object]) -> Sequence[str]:
        return self._saves[given[self._saves_by] if self._saves_by else ""]

    def _require(self, backend: str, device_type: str) -> None:
        """Raise RuntimeError, with what is missing and how to get it, unless this machine runs the backend."""
        if backend == "cuda" and device_type == "cpu" and extension.runs_on_host():
            return
        if self._loaded.get((backend, device_type)):
            return
        if reason := runtime.why_not(backend, device_type):
            raise RuntimeError(f'backend="{backend}" does not run here: {reason}')

    # ------------------------------------------------------------------------------------------------- the public call

    def __call__(self, backend: str, *arguments, form: str = ""):
        """What the public functions do. backend: "auto", "eager", "triton" or "cuda"; form: "_" for in place."""
        if torch.compiler.is_compiling():
            return self._traced(backend, form, arguments)
        try:
            call = self._calls[backend, form, arguments[0].is_cuda]
        except (KeyError, TypeError, AttributeError):
            call = self._resolve(backend, form, arguments)
        try:
            for i in self._functional.scalars:
                arguments = (*arguments[:i], self._as_tensor(arguments[i]), *arguments[i + 1 :])
            return call(*arguments)
        except Exception as error:
            self._explain(form, arguments, error)
            raise

    def _resolve(self, backend: str, form: str, arguments: tuple) -> Callable:
        """What a call on this backend and device is; looked up once."""
        first, made = arguments[0], self._forms[form]
        if not isinstance(first, Tensor):
            raise TypeError(f"{made.name}: {made.names[0]} must be a tensor; got {type(first).__name__}")
        chosen = (self.auto if first.is_cuda else "eager") if backend == "auto" else backend
        if chosen == "eager":
            call = self._eager_call(form)
        elif chosen not in BACKENDS:
            raise ValueError(f"backend must be one of auto, eager, {', '.join(BACKENDS)}; got {backend!r}")
        else:
            if chosen not in self.backends:
                raise RuntimeError(f'backend="{chosen}" does not run here: {self.name} has no such kernel')
            in_cpp = self._load(chosen, first.device.type)
            call = self._overloads[chosen, form]
            if not in_cpp:
                self._require(chosen, first.device.type)
                call = self._refusing(call, form)
            if first.device.type == "cpu":  # the interpreter and the host build may come and go
                return call
        self._calls[backend, form, first.is_cuda] = call
        return call

    def _traced(self, backend: str, form: str, arguments: tuple):
        """While torch.compile or torch.export traces: the overload alone, which loads what it needs when it runs."""
        if backend == "auto":
            backend = self.auto if arguments[0].is_cuda else "eager"
        if backend == "eager":
            return self._eager_call(form)(*arguments)
        if backend not in BACKENDS:
            raise ValueError(f"backend must be one of auto, eager, {', '.join(BACKENDS)}; got {backend!r}")
        if self.scalars:
            # A number reaches the op as a tensor: as a number it would be a constant of the graph, and recompile. On the
            # device, so that a captured graph sees it change.
            arguments = tuple(
                torch.ones((), dtype=torch.float64, device=arguments[0].device) * value
                if name in self.scalars and not isinstance(value, Tensor)
                else value
                for name, value in zip(self._functional.names, arguments, strict=True)
            )
        return self._overloads[backend, form](*arguments)

    def _as_tensor(self, value: object) -> object:
        """A scalar as a 0-d tensor, if it is a number."""
        if type(value) is not float:
            if isinstance(value, Tensor) or not isinstance(value, Real):
                return value
            value = float(value)
        number = self._numbers.get(value)
        return self._number(value) if number is None else number

    def _number(self, value: float) -> Tensor:
        with torch.inference_mode(False):  # it may be saved for a backward later
            tensor = torch.tensor(value, dtype=torch.float64, device="cpu")
        if type(tensor) is Tensor:  # not a fake one
            if len(self._numbers) >= 1024:
                self._numbers.clear()
            self._numbers[value] = tensor
        return tensor

    def _explain(self, form: str, arguments: Sequence, error: Exception) -> None:
        """Raise with the declaration's own message if an argument is to blame for the error."""
        self._check(form, arguments)
        if "setup_context" in str(error) or "functorch" in str(error):
            raise RuntimeError(f'{self.name} does not work under torch.func: use backend="eager"') from None

    def _eager_call(self, form: str) -> Callable:
        made = self._forms[form]

        def eager(*arguments):
            self._check_for_eager(form, arguments)
            arguments = self._cast(made, arguments)
            arguments = tuple(
                float(value) if i in made.scalars and not isinstance(value, Tensor) else value
                for i, value in enumerate(arguments)
            )
            if form == "":
                if not made.mutated:
                    return self.eager(*arguments)
            elif not torch.compiler.is_compiling():  # a compiled graph has no addresses, and writes last
                self._refuse_gradients(form, arguments)
                self._check_written(form, arguments)
            return (self._eager_in_place or self.eager)(*arguments)

        return eager

    def _check_for_eager(self, form: str, arguments: Sequence) -> None:
        made = self._forms[form]
        if torch.is_autocast_enabled(arguments[0].device.type):
            arguments = self._cast(made, arguments)
        self._check(form, arguments)

    def _refusing(self, call: Callable, form: str) -> Callable:
        """An overload that Python runs: what the core refuses is refused here."""
        made = self._forms[form]

        def checked(*arguments):
            for _, tensor in made.tensors(arguments):
                if forward_ad.unpack_dual(tensor).tangent is not None:
                    raise RuntimeError(f'{made.name} has no forward-mode derivative: use backend="eager"')
            if made.mutated or not self.gradients:
                self._refuse_gradients(form, arguments)
            return call(*arguments)

        return checked

    def _refuse_gradients(self, form: str, arguments: Sequence) -> None:
        made = self._forms[form]
        if torch.is_grad_enabled() and any(tensor.requires_grad for _, tensor in made.tensors(arguments)):
            instead = f"call {self.name}, or {made.name} under torch.no_grad()" if form == "_" else (
                "call it under torch.no_grad(), or detach() its arguments")  # fmt: skip
            raise RuntimeError(f"{made.name} has no gradient: {instead}")

    # ----------------------------------------------------------------------------------------------------- the C++ core

    def _load(self, backend: str, device_type: str) -> bool:
        """Whether the core runs this backend's overloads on these devices; loads and tells it on first use."""
        key = backend, device_type
        if key in self._loaded:
            return self._loaded[key]
        if device_type == "cpu":
            if not (backend == "cuda" and extension.runs_on_host()):
                return False
            extension.load_core()
            self.declare(backend, "cpu", str(extension.load_op_for_host(self.name)))
            return True
        if device_type != "cuda":
            return False
        library = ""
        if backend == "cuda":
            if not extension.op_is_built(self.name):
                self._require(backend, device_type)
            library = str(extension.load_op(self.name))
        try:
            extension.load_core()
        except RuntimeError as error:
            if backend == "cuda":
                raise
            self._require(backend, device_type)
            warnings.warn(f"Triton's own launcher is used, at some 5 times the cost of a call: {error}", stacklevel=2)
            self._register_autocast_cuda(backend)
            self._loaded[key] = False
            return False
        self.declare(backend, device_type, library)
        return True

    def declare(self, backend: str, device_type: str, library: str) -> None:
        """Tell the core of this op on a backend, whose tensors are on devices of this type. `library`: the op's cuda.cu."""
        names = self._functional.names
        positions = {name: i for i, name in enumerate(names)} | {name: -1 - i for i, name in enumerate(self.outputs)}
        saves = [[*(positions[name] for name in saved), END] for saved in self._saves.values()]
        backward = self._forms["backward"].scalars if self.gradients else []
        torch.ops.fused_kernels._declare(
            self.name, backend, device_type, library,
            [positions[name] for name in self.gradients],
            [positions[name] for name in self.mutated],
            positions[self.in_place] if self.in_place else -1,
            self.elementwise,
            positions[self._saves_by] if self._saves_by else -1,
            list(self._saves), sum(saves, []),
            [positions[name] for name in self.saved],
            [positions[argument.name] for argument in self._others],
            self._functional.scalars, backward,
        )  # fmt: skip
        self._loaded[backend, device_type] = True

    def _planner(self, backend: str, form: str) -> Callable:
        """What the core calls for a signature that it has not seen: checks, then says what to allocate and to launch."""
        made = self._forms[form]

        def make_plan(*arguments) -> None:
            self._check(form, arguments)
            self._check_written(form, arguments)
            allocations = self._allocations(form, arguments)
            recorded = [], []
            if backend == "triton":
                recorded = self._record(form, arguments, allocations)
            outputs = [number for shape, dtype in allocations for number in plan.allocation(shape, dtype)]
            torch.ops.fused_kernels._add_plan(outputs, *recorded)

        make_plan.__name__ = f"plan_{made.name}"
        return make_plan

    def _record(self, form: str, arguments: Sequence, allocations: list) -> tuple[list[int], list[int]]:
        """(workspaces, launches) of the Triton launcher for such arguments, as _add_plan takes them."""
        from kernels.device import launch

        made = self._forms[form]
        device = next(tensor.device for _, tensor in made.tensors(arguments))
        double = any(tensor.dtype == torch.float64 for _, tensor in made.tensors(arguments))
        slot, given = 0, []
        for i, (argument, value) in enumerate(zip(made.arguments, arguments, strict=True)):
            if argument.is_tensor:
                if value is not None:
                    scalar = i in made.scalars and value.device.type == "cpu" and (device.type == "cuda" or value.dim() == 0)
                    value = ScalarStandIn(slot, double) if scalar else plan.stand_in(slot, value)
                slot += 1
            given.append(value)
        outputs = [plan.StandIn(slot + i, shape, dtype) for i, (shape, dtype) in enumerate(allocations)]
        slot += len(outputs)
        if form == "_":
            outputs = [given[made.mutated[0]]]
            slot += 1
        arch = 90
        if device.type == "cuda":
            major, minor = torch.cuda.get_device_capability(device)
            arch = 10 * major + minor
        recorder = plan.Recorder(slot, device, arch)
        on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with launch.recording(recorder), on_device:
            self._launch(form, given, outputs)
        return recorder.workspaces, recorder.launches

    def _launch(self, form: str, arguments: Sequence, outputs: Sequence) -> None:
        """Call the op's Triton launcher, with tensors or with stand-ins."""
        launcher = importlib.import_module(f"{self.package}.triton_launch")
        if form == "backward":
            *arguments, needs = arguments
            outputs = [output if needed else None for output, needed in zip(outputs, needs, strict=True)]
            launcher.backward(*arguments, *outputs)
        else:
            launcher.forward(*arguments, *outputs)

    # ---------------------------------------------------------------------------------- in Python, where there is no core

    def _python_kernel(self, backend: str, form: str) -> Callable:
        """Below autograd, where the core has not been told of this backend (yet)."""
        made = self._forms[form]

        def kernel(*arguments):
            device = next(tensor.device for _, tensor in made.tensors(arguments))
            if self._load(backend, device.type):
                return self._overloads[backend, form](*arguments)
            self._require(backend, device.type)
            if backend != "triton":
                raise RuntimeError(f'backend="{backend}" runs CUDA tensors: move the tensors to the GPU with .cuda()')
            self._check(form, arguments)
            self._check_written(form, arguments)
            outputs = [allocation.empty(shape, dtype, device) for shape, dtype in self._allocations(form, arguments)]
            given = [self._for_launcher(made, i, value, device, arguments) for i, value in enumerate(arguments)]
            for i in made.mutated:
                if not arguments[i].is_inference():
                    torch.autograd.graph.increment_version(arguments[i])
            on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
            with on_device:
                self._launch(form, given, [given[made.mutated[0]]] if form == "_" else outputs)
            for i in made.mutated:
                if given[i] is not arguments[i]:
                    arguments[i].copy_(given[i])
            return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

        return kernel

    def _for_launcher(self, made: Form, position: int, value: object, device: torch.device, arguments: Sequence):
        """A tensor contiguous; a scalar as a number, or as a tensor where a float32 would lose digits."""
        if not isinstance(value, Tensor):
            return value
        if position not in made.scalars:
            return value.contiguous()
        double = any(tensor.dtype == torch.float64 for _, tensor in made.tensors(arguments))
        return value.to(device) if double or value.device == device else value.item()

    def _save(self, ctx, inputs, output) -> None:
        outputs = (output,) if isinstance(output, Tensor) else output
        given = dict(zip(self._functional.names, inputs, strict=True)) | dict(zip(self.outputs, outputs, strict=True))
        saved = self._saves_for(given)
        ctx.save_for_backward(*(given[name] if name in saved else None for name in self.saved))
        ctx.others = [given[argument.name] for argument in self._others]

    def _differentiate(self, backend: str) -> Callable:
        names = self._functional.names
        positions = [names.index(name) for name in self.gradients]

        def differentiate(ctx, *grads):
            needs = [ctx.needs_input_grad[i] for i in positions]
            found = self._overloads[backend, "backward"](*grads, *ctx.saved_tensors, *ctx.others, needs)
            found = (found,) if isinstance(found, Tensor) else found
            given = {i: grad for i, grad, needed in zip(positions, found, needs, strict=True) if needed}
            return tuple(given.get(i) for i in range(len(names)))

        return differentiate

    def _refuse_second_derivative(self, ctx, *grads):
        raise RuntimeError(f'{self.name} has no second derivative: use backend="eager"')

    def _cast(self, made: Form, arguments: Sequence) -> tuple:
        """Under torch.autocast, floating tensors of differing dtypes cast to its dtype; float64, scalars and what is
        written excepted."""
        device = arguments[0].device.type
        floating = {i: t for i, t in made.tensors(arguments) if t.is_floating_point()}
        if len({t.dtype for t in floating.values()}) < 2 or not torch.is_autocast_enabled(device):
            return tuple(arguments)
        dtype = torch.get_autocast_dtype(device)
        castable = {i for i, t in floating.items() if t.dtype != torch.float64 and i not in made.mutated}
        return tuple(value.to(dtype) if i in castable else value for i, value in enumerate(arguments))

    def _autocast(self, backend: str, form: str, device_type: str = "cpu") -> Callable:
        made = self._forms[form]

        def autocast(*arguments):
            cast = self._cast(made, arguments)
            with torch.autocast(device_type, enabled=False):
                return self._overloads[backend, form](*cast)

        return autocast

    def _register_autocast_cuda(self, backend: str) -> None:
        for form in ("", "_"):
            if form in self._forms:
                name = f"{self._forms[form].name}.{backend}"
                _library.impl(name, self._autocast(backend, form, "cuda"), "AutocastCUDA")

    # --------------------------------------------------------------------------------------------------------- for tests

    def backward_arguments(self, arguments: Sequence, outputs: Sequence, grads: Sequence, needs: Sequence[bool]) -> tuple:
        """The backward overload's arguments after a call of the functional one."""
        scalars = self._functional.scalars
        arguments = [self._as_tensor(value) if i in scalars else value for i, value in enumerate(arguments)]
        given = dict(zip(self._functional.names, arguments, strict=True))
        given |= dict(zip(self.outputs, outputs, strict=True))
        saved = self._saves_for(given)
        others = [given[argument.name] for argument in self._others]
        return (*grads, *(given[name] if name in saved else None for name in self.saved), *others, list(needs))
