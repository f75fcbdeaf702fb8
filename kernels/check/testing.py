"""What an op must survive, and what counts as right: adversarial inputs, tolerances, and check().

A case describes tensors (shape, dtype, strides, special values); how an op's arguments are made of it stands in
ARGUMENTS. Values are drawn on the CPU from a seed, so they are the same on every device. What is checked of a function
stands in `check`, and in `check_gradients`.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels import runtime
from kernels.ops.add_mul_activation.eager import FUNCTIONS as ACTIVATIONS

# torch.testing.assert_close's (rtol, atol).
TOLERANCES = {
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
FLOAT_DTYPES = tuple(TOLERANCES)


@dataclass(frozen=True)
class Case:
    """Tensors [..., N] of one shape and dtype: their layout in memory, and what their random values are.

    layout: contiguous | transposed | strided | expanded | misaligned (by one element).
    values: normal | special (NaN and Inf sprinkled in) | tiny (1e-6, and the dtype's smallest normal number) |
        large (to ±150) | huge (an eighth of the dtype's largest number, sprinkled in).
    only: the one argument that has this layout and these values, the others being contiguous and normal; "": all.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    layout: str = "contiguous"
    values: str = "normal"
    only: str = ""

    def __str__(self) -> str:
        parts = ["×".join(map(str, self.shape)), str(self.dtype).removeprefix("torch.")]
        parts += [self.layout] * (self.layout != "contiguous") + [self.values] * (self.values != "normal")
        return " ".join(parts + [self.only] * bool(self.only))

    def tensor(self, seed: int, device: torch.device | str = "cpu", shape: tuple[int, ...] | None = None) -> Tensor:
        """A tensor of this case; shape: instead of the case's (a bias, say). `seed` tells its tensors apart."""
        shape = self.shape if shape is None else shape
        if self.layout == "transposed" and len(shape) > 1:
            return self._values(seed, (*shape[:-2], shape[-1], shape[-2]), device).transpose(-1, -2)
        if self.layout == "strided":
            return self._values(seed, (*shape[:-1], 2 * shape[-1]), device)[..., ::2]
        if self.layout == "expanded":
            one = (1, *shape[1:]) if len(shape) > 1 else (1,)
            return self._values(seed, one, device).expand(shape)
        if self.layout == "misaligned":
            count = torch.Size(shape).numel()
            return self._values(seed, (count + 2,), device)[1:-1].view(shape)
        return self._values(seed, shape, device)

    def _values(self, seed: int, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        where = torch.rand(shape, generator=generator)
        if self.values == "special":
            for low, value in ((0.0, torch.nan), (0.1, torch.inf), (0.2, -torch.inf)):
                values[(low <= where) & (where < low + 0.1)] = value
        elif self.values == "tiny":
            values = torch.where(where < 0.3, values * torch.finfo(self.dtype).tiny, values * 1e-6)
        elif self.values == "large":
            values *= 40
        elif self.values == "huge":
            values = torch.where(where < 0.3, values.sign() * (torch.finfo(self.dtype).max / 8), values)
        return values.to(self.dtype).to(device)


def pointwise_cases() -> list[Case]:
    """For ops on [..., N]: every width, layout and kind of value in float32, the other dtypes on a selection."""
    shapes = [
        (0, 5), (5, 0), (1, 1), (1, 7), (7, 1), (1000, 4), (1, 4097), (3, 8), (5, 1023), (5, 1024), (3, 1025),
        (2, 4097), (33, 129), (9,), (2, 3, 5), (2, 0, 3), (64, 512),
    ]  # fmt: skip
    cases = [Case(shape) for shape in shapes]
    cases += [Case((17, 24), layout=layout) for layout in ("transposed", "strided", "expanded", "misaligned")]
    cases += [Case((5, 1023), layout="misaligned"), Case((2, 3, 8), layout="transposed"), Case((9,), layout="strided")]
    cases += [Case((13, 40), values=values) for values in ("special", "tiny", "large")]
    # A kernel may look at one argument's layout and forget another's.
    for only in ("x", "bias", "y"):
        cases += [Case((17, 24), layout=layout, only=only) for layout in ("strided", "expanded", "misaligned")]
        cases += [Case((13, 40), values=values, only=only) for values in ("special", "huge")]
    for dtype in FLOAT_DTYPES[1:]:
        cases += [Case((3, 1025), dtype), Case((1, 7), dtype), Case((0, 5), dtype), Case((40, 16), dtype)]
        cases += [Case((17, 24), dtype, layout) for layout in ("transposed", "expanded", "misaligned")]
        cases += [Case((13, 40), dtype, values=values) for values in ("special", "tiny", "large")]
        cases += [Case((17, 24), dtype, "misaligned", only="x"), Case((13, 40), dtype, values="huge", only="x")]
    return cases


def wide_cases() -> list[Case]:
    """Larger than one wave of small blocks, so that every path of a GPU kernel runs; too slow for the interpreter."""
    cases = [Case(shape, dtype) for shape in ((1031, 1024), (517, 1023), (262147, 4)) for dtype in FLOAT_DTYPES]
    return cases + [Case((1031, 1024), layout="misaligned", only=only) for only in ("", "x", "bias", "y")]


@dataclass(frozen=True)
class Call:
    """Arguments for one call: tensors first, then numbers and names."""

    name: str
    tensors: tuple[Tensor, ...]
    options: tuple = ()

    def arguments(self) -> tuple:
        return (*self.tensors, *self.options)


def _calls(
    case: Case, device: torch.device, shapes: Mapping[str, tuple[int, ...]], options: Iterable[tuple] = ((),)
) -> Iterator[Call]:
    """A call for each of the options, with tensors of these names and shapes; none if case.only is not among them."""
    if case.only and case.only not in shapes:
        return
    others = Case(case.shape, case.dtype)
    tensors = tuple(
        (case if case.only in ("", name) else others).tensor(seed, device, shape)
        for seed, (name, shape) in enumerate(shapes.items(), 1)
    )
    for chosen in options:
        yield Call(" ".join([str(case), *(option for option in chosen if isinstance(option, str))]), tensors, chosen)


def _add_relu(case: Case, device: torch.device) -> Iterator[Call]:
    return _calls(case, device, {"x": case.shape, "bias": case.shape[-1:]})


def _add_mul_activation(case: Case, device: torch.device) -> Iterator[Call]:
    # The multipliers are exact in float32, as which a compiled Triton kernel takes them.
    options = zip(itertools.cycle((0.5, -1.25, 2.0)), ACTIVATIONS, strict=False)
    return _calls(case, device, {"x": case.shape, "bias": case.shape[-1:], "y": case.shape}, options)


# op → the calls that a case gives. Its reference is the function of its name in kernels/<op>/eager.py.
ARGUMENTS: dict[str, Callable[[Case, torch.device], Iterator[Call]]] = {
    "add_relu": _add_relu,
    "add_mul_activation": _add_mul_activation,
}


def reference(op: str) -> Callable:
    """The op's eager function, which everything is compared with; op may end in an underscore (in place)."""
    if op.removesuffix("_") not in ARGUMENTS:
        raise ValueError(f"unknown op {op!r}: expected one of {', '.join(ARGUMENTS)}")
    return getattr(importlib.import_module(f"kernels.{op.removesuffix('_')}.eager"), op)


def expected(op: str, call: Call) -> Tensor:
    """What the functional op must return: computed in float64, rounded to the inputs' dtype."""
    tensors = [tensor.double() for tensor in call.tensors]
    return reference(op.removesuffix("_"))(*tensors, *call.options).to(call.tensors[0].dtype)


def compare(actual: Tensor, expected: Tensor, *, rtol: float | None = None, atol: float | None = None) -> None:
    """Raise AssertionError unless they agree in shape, dtype, device, NaN and Inf, and within the tolerances.

    The tolerances' defaults are TOLERANCES of the dtype. An Inf that rounding to the dtype makes of a finite result may
    also be the dtype's largest number, and the reverse: which one it is hangs on the last bit.
    """
    for name in ("shape", "dtype", "device"):
        want, got = getattr(expected, name), getattr(actual, name)
        if got != want:
            raise AssertionError(f"{name}: expected {_plain(want)}, got {_plain(got)}")
    defaults = TOLERANCES[expected.dtype]
    rtol, atol = (default if given is None else given for given, default in zip((rtol, atol), defaults, strict=True))
    if actual.dtype != torch.float64:
        near = 0.999 * torch.finfo(actual.dtype).max
        edge = (actual.isinf() ^ expected.isinf()) & (actual.abs() >= near) & (expected.abs() >= near)
        actual = torch.where(edge & (actual.sign() == expected.sign()), expected, actual)
    torch.testing.assert_close(
        actual,
        expected,
        rtol=rtol,
        atol=atol,
        equal_nan=True,
        msg=lambda text: f"{text}\n{_worst(actual, expected, rtol, atol)}",
    )


def _worst(actual: Tensor, expected: Tensor, rtol: float, atol: float) -> str:
    wrong = ~torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    error = (actual.double() - expected.double()).abs().nan_to_num(nan=torch.inf).where(wrong, -1.0)
    index = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
    return f"At {list(index)}: expected {expected[index].item():.7g}, got {actual[index].item():.7g}"


def _plain(value: object) -> str:
    return str(list(value) if isinstance(value, torch.Size) else value).removeprefix("torch.")


@contextmanager
def poisoned() -> Iterator[None]:
    """torch.empty gives NaN in here, inside custom ops too: what a kernel does not write shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def check(
    op: str,
    function: Callable,
    *,
    device: torch.device | str | None = None,
    cases: Iterable[Case] | None = None,
) -> None:
    """Hold `function` against the op's eager reference in float64 on all adversarial cases; print how many passed.

    Args:
        op: "add_relu", say, or "add_relu_" for an in-place function, which must return its first argument.
        function: called with the public op's positional arguments.
        device: default: the GPU if there is one. cases: default: those of the op.

    A call must give eager's values within TOLERANCES, with NaN and Inf where eager has them, in eager's shape and
    dtype, on the inputs' device, contiguous; write every element; leave its inputs and the memory beside them as they
    are; and give the same bits again.

    Raises:
        AssertionError: naming the first case that fails, and how. ValueError: an unknown op; no case.
    """
    device = torch.device(device or runtime.device())
    reference(op)
    if cases is None:
        cases = pointwise_cases() + (wide_cases() if device.type == "cuda" else [])
    passed = 0
    for case in cases:
        if op.endswith("_") and case.layout == "expanded" and case.only in ("", tensor_arguments(op)[0]):
            continue  # an expanded tensor cannot be written to
        for call in ARGUMENTS[op.removesuffix("_")](case, device):
            try:
                with _numpy_quiet():
                    _check_call(op, function, call)
            except Exception as error:
                raise AssertionError(f"{op}, case {call.name}: {_describe(error)}") from error
            passed += 1
    if not passed:
        raise ValueError("no case was given")
    print(f"{op}: {passed} cases passed on {device.type}")


@contextmanager
def _numpy_quiet() -> Iterator[None]:
    """Triton's interpreter computes in NumPy, which warns of every Inf and NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _check_call(op: str, function: Callable, call: Call) -> None:
    in_place = op.endswith("_")
    want = expected(op, call)
    eager = reference(op.removesuffix("_"))(*call.arguments())
    # The absolute tolerance is for values of about 1; among smaller inputs it would let anything pass. Halves below the
    # dtype's smallest normal number are spaced evenly, by tiny · eps.
    rtol, atol = TOLERANCES[want.dtype]
    largest = max((_largest(tensor) for tensor in call.tensors), default=1.0)
    number = torch.finfo(want.dtype)
    atol = max(atol * min(1.0, largest), number.tiny * number.eps)
    outputs = []
    for _ in range(2):
        given = replace(call, tensors=tuple(_same_layout(tensor) for tensor in call.tensors))
        with poisoned():
            output = function(*given.arguments())
        if not isinstance(output, Tensor):
            raise AssertionError(f"must return a tensor; got {type(output).__name__}")
        if in_place and output is not given.tensors[0]:
            raise AssertionError("must return its first argument")
        if not in_place and not output.is_contiguous():
            raise AssertionError(f"the output must be contiguous; its strides are {output.stride()}")
        # NaN where eager gives NaN in this very dtype is right too: PyTorch's vectorised gelu on the CPU makes NaN of
        # Inf, its scalar one, float64's and the GPU's do not.
        comparable = output.shape == eager.shape and output.device == eager.device and output.dtype == eager.dtype
        compare(
            torch.where(output.isnan() & eager.isnan(), want, output) if comparable else output,
            want,
            rtol=rtol,
            atol=atol,
        )
        outputs.append(output.clone())
        if in_place:
            output.copy_(call.tensors[0])  # what is left to find is a write beside x
        for name, before, after in zip(tensor_arguments(op), call.tensors, given.tensors, strict=True):
            if not torch.equal(_memory(before), _memory(after)):
                beside = "the memory beside " if in_place and after is output else ""
                raise AssertionError(f"{beside}{name} was changed")
    if not torch.equal(*map(_memory, outputs)):
        raise AssertionError("two runs gave different bits")


def _largest(tensor: Tensor) -> float:
    """The largest magnitude among the numbers that are finite; of no numbers, 1."""
    finite = tensor[tensor.isfinite()]
    return finite.abs().max().item() if len(finite) else 1.0


def _memory(tensor: Tensor) -> Tensor:
    """All bytes of the memory that the tensor is a view of."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _same_layout(tensor: Tensor) -> Tensor:
    """A copy with the tensor's strides, offset and alignment, in memory of its own."""
    storage = tensor.untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        storage, tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def _describe(error: Exception) -> str:
    text = str(error).strip()
    return text if isinstance(error, AssertionError) and text else f"{type(error).__name__}: {text[:500]}"


# ------------------------------------------------------------------------------------------------------------------
# Gradients.


def gradients(function: Callable, call: Call, needed: tuple[bool, ...], grad: Tensor) -> list[Tensor | None]:
    """The gradients of the tensors that `needed` names, of function(*arguments) against `grad`."""
    tensors = [tensor.detach().requires_grad_(need) for tensor, need in zip(call.tensors, needed, strict=True)]
    output = function(*tensors, *call.options)
    wanted = [tensor for tensor, need in zip(tensors, needed, strict=True) if need]
    found = iter(torch.autograd.grad(output, wanted, grad))
    return [next(found) if need else None for need in needed]


def check_gradients(
    op: str, function: Callable, call: Call, needed: tuple[bool, ...], grad: Tensor, *, rounds: bool = False
) -> None:
    """Hold function's gradients against float64 eager's; raises AssertionError.

    Tolerances beyond TOLERANCES: sigmoid's and tanh's gradients are computed from the rounded output, as PyTorch's own
    are, which costs an error of the output's rounding times the gradient; with `rounds` every gradient may have it, for
    functions that round what is in between to their dtype, as eager PyTorch does. A gradient of fewer elements than
    `grad` is a sum. It may cancel, so its error is not one of its own size, and grows with the root of the number of
    terms, as they round either way: eight roots of float32's rounding, as half precision is accumulated in float32
    (PyTorch's own, over 65,536 rows, needs six); of the output's rounding, where the terms have that error, two.
    """
    exact = replace(call, tensors=tuple(tensor.double() for tensor in call.tensors))
    want = gradients(reference(op), exact, needed, grad.double())
    with poisoned(), _numpy_quiet():
        got = gradients(function, call, needed, grad)
    dtype = call.tensors[0].dtype
    rtol, atol = TOLERANCES[dtype]
    largest = grad.abs().max().item() if grad.numel() else 0.0
    norm = grad.double().norm().item()
    epsilon = torch.finfo(dtype).eps
    rounds |= not {"sigmoid", "tanh"}.isdisjoint(call.options)
    adding = 8 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    if rounds:
        adding = max(adding, 2 * epsilon)
    for name, a, b in zip(tensor_arguments(op), got, want, strict=True):
        if b is None:
            continue
        # The root of the terms' number, times the gradient's root mean square.
        summed = norm / max(1, b.numel()) ** 0.5
        try:
            compare(a, b.to(dtype), rtol=rtol, atol=max(atol, 2 * epsilon * largest * rounds, adding * summed))
        except AssertionError as error:
            raise AssertionError(f"{op}, the gradient of {name}: {error}") from error


def tensor_arguments(op: str) -> tuple[str, ...]:
    """The names of the op's tensor arguments, in order."""
    hints = inspect.signature(reference(op)).parameters.values()
    return tuple(parameter.name for parameter in hints if parameter.annotation in (Tensor, "Tensor"))
