"""How far from the exact result an op may be, and the comparison.

The exact result is the reference's in float64 on the same inputs. A Spec's scale says what error each element may have:

    Pointwise   |got - exact| ≤ atol + rtol · |exact|: torch.testing.assert_close's defaults
    Sums        |got - exact| ≤ eps · |exact| + k · eps_sum · magnitude

A sum may cancel, so its error is not one of its own size but of its terms': magnitude is the reference on the absolute
values of the inputs. eps is the dtype's, for the rounding of the result; eps_sum is that of the numbers that
the sum is added up in, float32 for half precision. Integers and booleans are compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..dtypes import DTYPES
from .cases import Call

# torch.testing.assert_close's (rtol, atol).
TOLERANCES = {dtype: known.tolerances for dtype, known in DTYPES.items() if known.tolerances}


def as_tuple(results: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (results,) if isinstance(results, Tensor) else tuple(results)


def _sum_epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(torch.promote_types(dtype, torch.float32)).eps


def double(tensor: Tensor) -> Tensor:
    """A copy in float64; integers and booleans stay what they are."""
    return tensor.to(torch.float64 if tensor.is_floating_point() else tensor.dtype, copy=True)


def _absolute(tensor: Tensor) -> Tensor:
    return double(tensor).abs() if tensor.is_floating_point() else tensor.clone()


@dataclass(frozen=True)
class Pointwise:
    """Every element of the output hangs on one element of each input, broadcast to the output's shape.

    of_output: whether this call's derivative is computed from the output as it was rounded to the dtype (as PyTorch's
    own sigmoid and tanh do), which adds that rounding's error to the gradient.
    """

    of_output: Callable[[Call], bool] = lambda call: False

    def errors(self, reference: Callable, call: Call, exact: Sequence[Tensor]) -> list[Tensor]:
        """The error that each element may have, of each floating-point result `exact`, in float64."""
        # The absolute tolerance is for values of about 1; among smaller inputs it would let anything pass. Halves below
        # the dtype's smallest normal number are spaced evenly, by tiny · eps.
        rtol, atol = TOLERANCES[_dtype(call)]
        number = torch.finfo(_dtype(call))
        largest = max(_largest(tensor) for tensor in call.leaves() if tensor.is_floating_point())
        atol = max(atol * min(1.0, largest), number.tiny * number.eps)
        return [atol + rtol * result.abs() for result in exact]

    def gradients(
        self, reference: Callable, call: Call, needed: Sequence[bool], grads: Sequence[Tensor], rounds: bool
    ) -> list[tuple[Tensor, Tensor] | None]:
        """(the exact gradient, the error it may have) of each tensor that is needed.

        The gradient of a tensor that was broadcast is the sum of the terms t_i that it would have at each place:

            |got - Σ t_i| ≤ atol + rtol · |Σ t_i| + 4 · eps_sum · Σ |t_i| + 2 · eps · √(Σ g_i²)

        eps_sum is float32's, as half precision is summed in float32. The last part is only there if the derivative is
        of the rounded output (or `rounds`: of a function that rounds what is in between, as eager PyTorch does): each
        term is then wrong by about eps · g_i, with g_i the gradient that comes in, up as often as down.
        """
        dtype = _dtype(call)
        rtol, atol = TOLERANCES[dtype]
        terms = exact_gradients(reference, call.map(lambda t: t.expand(_shape(t, grads[0]))), needed, grads)
        incoming = sum(grad.double().square() for grad in grads)
        rounding = 2 * torch.finfo(dtype).eps if rounds or self.of_output(call) else 0.0
        pairs = []
        for tensor, term in zip(call.leaves(), terms, strict=True):
            if term is None:
                pairs.append(None)
                continue
            exact = term.sum_to_size(tensor.shape)
            error = atol + rtol * exact.abs() + 4 * _sum_epsilon(dtype) * term.abs().sum_to_size(tensor.shape)
            pairs.append((exact, error + rounding * incoming.sum_to_size(tensor.shape).sqrt()))
        return pairs


@dataclass(frozen=True)
class Sums:
    """Sums and products of many terms: a matrix product, a softmax, pooled look-ups.

    k: how many roundings of the sum's precision, each as large as the magnitude, an element's error may amount to.
    magnitude: called as the reference, on the inputs' absolute values; returns a tensor for each result, outputs first,
        then what is mutated; default: the reference itself.
    gradient_magnitude: (call in float64, the incoming gradients' absolute values) → the magnitude of the gradient of
        each of the call's tensors (None where it has none); default: magnitude's own gradients.
    """

    k: float = 4.0
    magnitude: Callable | None = None
    gradient_magnitude: Callable | None = None

    def errors(self, reference: Callable, call: Call, exact: Sequence[Tensor]) -> list[Tensor]:
        sizes = as_tuple((self.magnitude or reference)(*call.map(_absolute).arguments()))
        sizes = [size for size in sizes if size.is_floating_point()]
        dtype = _dtype(call)
        return [
            torch.finfo(dtype).eps * result.abs() + self.k * _sum_epsilon(dtype) * size.abs()
            for result, size in zip(exact, sizes, strict=True)
        ]

    def gradients(
        self, reference: Callable, call: Call, needed: Sequence[bool], grads: Sequence[Tensor], rounds: bool
    ) -> list[tuple[Tensor, Tensor] | None]:
        """(exact, error) of each gradient, by the same formula; rounds: eps_sum is the dtype's own."""
        dtype = _dtype(call)
        epsilon = torch.finfo(dtype).eps
        incoming = [grad.double().abs() for grad in grads]
        exact = exact_gradients(reference, call, needed, grads)
        if self.gradient_magnitude is None:
            sizes = exact_gradients(self.magnitude or reference, call.map(_absolute), needed, incoming)
        else:
            sizes = self.gradient_magnitude(call.map(double), incoming)
        factor = self.k * (epsilon if rounds else _sum_epsilon(dtype))
        return [
            None if result is None else (result, epsilon * result.abs() + factor * size.abs())
            for result, size in zip(exact, sizes, strict=True)
        ]


def exact_gradients(
    reference: Callable, call: Call, needed: Sequence[bool], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """The reference's gradients by autograd, in float64."""
    return gradients(reference, call.map(double), needed, [grad.double() for grad in grads])


def gradients(
    function: Callable, call: Call, needed: Sequence[bool], grad: Tensor | Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients of function(*arguments), for those of the call's leaves that are needed.

    grad: one that comes in for each floating-point output; of one output, the tensor itself will do.
    """
    leaves = [leaf.detach().requires_grad_(need) for leaf, need in zip(call.leaves(), needed, strict=True)]
    outputs = as_tuple(function(*call.with_leaves(leaves).arguments()))
    outputs = [output for output in outputs if output.is_floating_point()]
    wanted = [leaf for leaf, need in zip(leaves, needed, strict=True) if need]
    gradients = iter(torch.autograd.grad(outputs, wanted, as_tuple(grad)))
    return [next(gradients) if need else None for need in needed]


def _shape(tensor: Tensor, grad: Tensor) -> torch.Size:
    """A 0-d tensor is a number to the op; what else is smaller than the output is broadcast to it."""
    return torch.broadcast_shapes(tensor.shape, grad.shape) if tensor.dim() else tensor.shape


def _dtype(call: Call) -> torch.dtype:
    return next(tensor.dtype for tensor in call.leaves() if tensor.is_floating_point())


def _largest(tensor: Tensor) -> float:
    """The largest magnitude among the numbers that are finite; of no numbers, 1."""
    finite = tensor[tensor.isfinite()]
    return finite.abs().max().item() if len(finite) else 1.0


class Mismatch(AssertionError):
    """Some elements are wrong; `where` is True for those. digits: how many are right of each; 0 if not of each, or if
    nearly all are."""

    def __init__(self, message: str, where: Tensor, digits: int = 0):
        super().__init__(message)
        self.where, self.digits = where, digits


def compare(
    actual: Tensor,
    expected: Tensor,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    error: Tensor | None = None,
) -> None:
    """Raise AssertionError unless they agree in shape, dtype, device, NaN and Inf, and to within the tolerances.

    rtol, atol: default: TOLERANCES of the dtype. error: instead of them, what each element may be off by (≥ 0, of
    expected's shape); where it is NaN, the tolerances all the same: a magnitude of absolute values keeps an Inf that
    the result has lost, as in relu(-Inf), and a NaN comes of that. An Inf that rounding to the dtype makes of a finite
    result may also be the dtype's largest number, and the reverse: which one it is hangs on the last bit. Integers and
    booleans must be equal.
    """
    for name in ("shape", "dtype", "device"):
        want, got = getattr(expected, name), getattr(actual, name)
        if got != want:
            raise AssertionError(f"{name}: expected {_plain(want)}, got {_plain(got)}")
    if not expected.is_floating_point():
        right, allowed = actual == expected, None
    else:
        if expected.dtype != torch.float64:
            near = 0.999 * torch.finfo(expected.dtype).max
            edge = (actual.isinf() ^ expected.isinf()) & (actual.abs() >= near) & (expected.abs() >= near)
            actual = torch.where(edge & (actual.sign() == expected.sign()), expected, actual)
        rtol, atol = (
            default if own is None else own
            for own, default in zip((rtol, atol), TOLERANCES[expected.dtype], strict=True)
        )
        allowed = atol + rtol * expected.double().abs()
        if error is not None:
            allowed = torch.where(error.isnan(), allowed, error)
        near = (actual.double() - expected.double()).abs() <= allowed
        both_finite = actual.isfinite() & expected.isfinite()
        right = (both_finite & near) | (actual == expected) | (actual.isnan() & expected.isnan())
    if not right.all():
        raise Mismatch(_worst(actual, expected, allowed, ~right), ~right, _right_digits(actual, expected, ~right))


def _worst(actual: Tensor, expected: Tensor, allowed: Tensor | None, wrong: Tensor) -> str:
    count, elements = int(wrong.sum()), wrong.numel()
    off = (actual.double() - expected.double()).abs().nan_to_num(nan=torch.inf).where(wrong, -1.0)
    index = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
    want, got = expected[index].item(), actual[index].item()
    bound = f" (tolerance {allowed[index].item():.2g})" if allowed is not None and expected[index].isfinite() else ""
    share = f"{count} of {elements} elements are" if count > 1 else f"1 of {elements} elements is"
    shown = _shown(want, got) if expected.is_floating_point() else f"expected {want}, got {got}"
    return f"{share} wrong. At {list(index)}: {shown}{bound}"


def _right_digits(actual: Tensor, expected: Tensor, wrong: Tensor) -> int:
    """How many decimal digits are right of nine wrong elements in ten, if 2 to 5 are: what rounding to fewer bits looks
    like.

    An element may cancel, so a digit is one of the wrong elements' mean size, where that is larger.
    """
    if not expected.is_floating_point() or expected.itemsize == 2:
        return 0
    want, got = expected[wrong].double(), actual[wrong].double()
    if not (want.isfinite().all() and got.isfinite().all()):
        return 0
    parts = (got - want).abs() / want.abs().clamp(min=want.abs().mean().item() or 1.0)
    part = parts.kthvalue(-(-9 * len(parts) // 10)).values.item()
    digits = math.floor(-math.log10(part)) if part > 0 else 0
    return digits if 2 <= digits <= 5 else 0


def _shown(want: float, got: float) -> str:
    """Both with as many digits as tell them apart."""
    digits = next((digits for digits in (7, 10) if f"{want:.{digits}g}" != f"{got:.{digits}g}"), 17)
    return f"expected {want:.{digits}g}, got {got:.{digits}g}"


def _plain(value: object) -> str:
    return str(list(value) if isinstance(value, torch.Size) else value).removeprefix("torch.")
