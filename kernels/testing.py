"""What an op must survive, and what counts as right: adversarial inputs, tolerances, and check().

A case describes tensors (shape, dtype, strides, special values); how an op's arguments are made of it stands in
ARGUMENTS. Values are drawn on the CPU from a seed, so they are the same on every device.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels import runtime
from kernels.add_mul_activation.eager import FUNCTIONS as ACTIVATIONS

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Case:
    """Tensors [..., N] of one shape and dtype: their layout in memory, and what is mixed into the random values.

    layout: contiguous | transposed | strided | expanded | misaligned (by one element).
    values: normal | special (NaN and Inf sprinkled in) | tiny (1e-6 and denormals) | large (up to ±100, and 1e37).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    layout: str = "contiguous"
    values: str = "normal"

    def __str__(self) -> str:
        parts = ["×".join(map(str, self.shape)), str(self.dtype).removeprefix("torch.")]
        parts += [self.layout] * (self.layout != "contiguous") + [self.values] * (self.values != "normal")
        return " ".join(parts)

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
            return self._values(seed, (count + 1,), device)[1:].view(shape)
        return self._values(seed, shape, device)

    def _values(self, seed: int, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        flat = values.view(-1)
        if self.values == "special":
            flat[seed % 3 :: 5] = torch.tensor([torch.nan, torch.inf, -torch.inf]).repeat(len(flat))[: len(flat[seed % 3 :: 5])]
        if self.values == "tiny":
            values *= 1e-6
            flat[::3] = 1e-40
        if self.values == "large":
            values *= 40
            flat[::7] = 1e37 * flat[::7].sign()
        return values.to(self.dtype).to(device)


def pointwise_cases() -> list[Case]:
    """For ops on [..., N]: every width, layout and kind of value in float32, the other dtypes on a selection."""
    shapes = [
        (0, 5), (5, 0), (1, 1), (1, 7), (7, 1), (1, 4097), (3, 8), (5, 1023), (5, 1024), (3, 1025), (2, 4097),
        (1000, 4), (33, 129), (9,), (2, 3, 5), (2, 0, 3), (64, 512),
    ]  # fmt: skip
    cases = [Case(shape) for shape in shapes]
    cases += [Case((17, 24), layout=layout) for layout in ("transposed", "strided", "expanded", "misaligned")]
    cases += [Case((5, 1023), layout="misaligned"), Case((2, 3, 8), layout="transposed"), Case((9,), layout="strided")]
    cases += [Case((13, 40), values=values) for values in ("special", "tiny", "large")]
    for dtype in FLOAT_DTYPES[1:]:
        cases += [Case((3, 1025), dtype), Case((1, 7), dtype), Case((0, 5), dtype), Case((40, 16), dtype)]
        cases += [Case((17, 24), dtype, layout) for layout in ("transposed", "expanded", "misaligned")]
        cases += [Case((13, 40), dtype, values=values) for values in ("special", "tiny", "large")]
    return cases


def wide_cases() -> list[Case]:
    """Larger than one wave of small blocks, so that every path of a GPU kernel runs; too slow for the interpreter."""
    return [Case(shape, dtype) for shape in ((1031, 1024), (517, 1023), (262147, 4)) for dtype in FLOAT_DTYPES]


@dataclass(frozen=True)
class Call:
    """Arguments for one call: tensors first, then numbers and names."""

    name: str
    tensors: tuple[Tensor, ...]
    options: tuple = ()

    def arguments(self) -> tuple:
        return (*self.tensors, *self.options)


def _add_relu(case: Case, device: torch.device) -> Iterator[Call]:
    yield Call(str(case), (case.tensor(1, device), case.tensor(2, device, case.shape[-1:])))


def _add_mul_activation(case: Case, device: torch.device) -> Iterator[Call]:
    tensors = (case.tensor(1, device), case.tensor(2, device, case.shape[-1:]), case.tensor(3, device))
    for i, activation in enumerate(ACTIVATIONS):
        multiplier = (0.5, -1.25, 2.0)[i % 3]  # exact in float32, as a compiled Triton kernel takes it
        yield Call(f"{case} {activation}", tensors, (multiplier, activation))


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

    The tolerances are torch.testing.assert_close's for the dtype. An Inf that rounding to the dtype makes of a finite
    result may also be the dtype's largest number, and the reverse: which one it is hangs on the last bit.
    """
    if actual.dtype == expected.dtype and not actual.dtype == torch.float64:
        largest = torch.finfo(actual.dtype).max
        edge = (actual.isinf() ^ expected.isinf()) & (actual.abs() >= largest * 0.999) & (expected.abs() >= largest * 0.999)
        actual = torch.where(edge & (actual.sign() == expected.sign()), expected, actual)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)


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

    Raises:
        AssertionError: naming the first case that fails, and how.
    """
    device = torch.device(device or runtime.device())
    reference(op)
    if cases is None:
        cases = pointwise_cases() + (wide_cases() if device.type == "cuda" else [])
    passed = 0
    for case in cases:
        if op.endswith("_") and case.layout == "expanded":
            continue  # an expanded tensor cannot be written to
        for call in ARGUMENTS[op.removesuffix("_")](case, device):
            try:
                with warnings.catch_warnings():
                    # Triton's interpreter computes in NumPy, which warns of every Inf and NaN.
                    warnings.simplefilter("ignore", RuntimeWarning)
                    _check_call(op, function, call)
            except Exception as error:
                raise AssertionError(f"{op}, case {call.name}: {_first_lines(error)}") from error
            passed += 1
    if not passed:
        raise ValueError("no case was given")
    print(f"{op}: {passed} cases passed on {device.type}")


def _check_call(op: str, function: Callable, call: Call) -> None:
    in_place = op.endswith("_")
    want = expected(op, call)
    eager = reference(op.removesuffix("_"))(*call.arguments())
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
        # NaN where eager gives NaN in this very dtype is right too: PyTorch's vectorised gelu on the CPU makes NaN of Inf,
        # its scalar one, float64's and the GPU's do not.
        compare(torch.where(output.isnan() & eager.isnan(), want, output) if eager.shape == output.shape else output, want)
        for before, after in list(zip(call.tensors, given.tensors, strict=True))[in_place:]:
            if not torch.equal(before.nan_to_num(nan=7.0), after.nan_to_num(nan=7.0)):
                raise AssertionError("an input was changed")
        outputs.append(output)
    if not torch.equal(outputs[0].nan_to_num(nan=7.0), outputs[1].nan_to_num(nan=7.0)):
        raise AssertionError("two runs gave different bits")


def _same_layout(tensor: Tensor) -> Tensor:
    """A copy with the tensor's strides, offset and alignment, in memory of its own."""
    storage = tensor.untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        storage, tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def _first_lines(error: Exception) -> str:
    text = str(error).strip()
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text[:500]}"


# ------------------------------------------------------------------------------------------------------------------
# Gradients.


def gradients(function: Callable, call: Call, needed: tuple[bool, ...], grad: Tensor) -> list[Tensor | None]:
    """The gradients of the tensors that `needed` names, of function(*arguments) against `grad`."""
    tensors = [tensor.detach().requires_grad_(need) for tensor, need in zip(call.tensors, needed, strict=True)]
    output = function(*tensors, *call.options)
    wanted = [tensor for tensor, need in zip(tensors, needed, strict=True) if need]
    found = iter(torch.autograd.grad(output, wanted, grad))
    return [next(found) if need else None for need in needed]


def check_gradients(op: str, function: Callable, call: Call, needed: tuple[bool, ...], grad: Tensor) -> None:
    """Hold function's gradients against float64 eager's; raises AssertionError.

    Tolerances beyond assert_close's: sigmoid's and tanh's gradients are computed from the rounded output, as PyTorch's
    own are, which costs an error of the output's rounding times the gradient; the bias gradient is a sum over the rows,
    whose error is that of its terms' rounding, not of its own value, which may cancel.
    """
    exact = replace(call, tensors=tuple(tensor.double() for tensor in call.tensors))
    want = gradients(reference(op), exact, needed, grad.double())
    with poisoned():
        got = gradients(function, call, needed, grad)
    dtype = call.tensors[0].dtype
    epsilon = torch.finfo(dtype).eps
    largest = grad.double().abs().nan_to_num(0.0, 0.0, 0.0).max().item() if grad.numel() else 0.0
    for index, (a, b) in enumerate(zip(got, want, strict=True)):
        if b is None:
            assert a is None
            continue
        default = {torch.float32: (1.3e-6, 1e-5), torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5)}
        rtol, atol = default.get(dtype, (1e-7, 1e-7))
        atol = max(atol, 2 * epsilon * largest)
        if index == 1:
            atol *= max(1.0, grad.numel() / max(1, grad.shape[-1])) ** 0.5
        compare(a, b.to(dtype), rtol=rtol, atol=atol)


def tensor_arguments(op: str) -> tuple[str, ...]:
    """The names of the op's tensor arguments, in order."""
    hints = inspect.signature(reference(op)).parameters.values()
    return tuple(parameter.name for parameter in hints if parameter.annotation in (Tensor, "Tensor"))
