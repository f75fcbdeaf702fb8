"""What `kernels.check` takes softmax through, and how far its results may be off."""

from dataclasses import dataclass

import torch

from ...check import Call, Case, Dimension, Spec, Sums, calls
from ...check.cases import pointwise_cases, wide_cases
from ...check.comparison import exact_gradients
from .eager import softmax


@dataclass(frozen=True)
class _Rows(Sums):
    """A row's error does not follow from the absolute values of its inputs. Part of itself that an element is off by:

        out     δ = eps + (k + |z|) · eps_sum, with z = x - max x, whose own rounding changes e^z by |z| as much
        grad_x  eps, and of what it is made of, out · (grad - Σ grad · out) with that out:
                out · (δ · (|grad| + Σ |grad| · out) + Σ δ · |grad| · out)

    Below the smallest normal number of what is computed in, results may be zero; float16's are spaced by 2^-24 there.
    """

    k: float = 8.0

    def errors(self, reference, call, exact):
        return [self._of_out(call) * exact[0] + _smallest(call)]

    def gradients(self, reference, call, needed, grads, rounds):
        (x,), grad, error = call.leaves(), grads[0].double().abs(), self._of_out(call)
        out = reference(x.double())
        terms = grad * out
        magnitude = out * (error * (grad + terms.sum(-1, keepdim=True)) + (error * terms).sum(-1, keepdim=True))
        (exact,) = exact_gradients(reference, call, needed, grads)
        return [(exact, torch.finfo(x.dtype).eps * exact.abs() + magnitude + _smallest(call))]

    def _of_out(self, call):
        (x,) = call.leaves()
        z = x.double() - x.double().amax(-1, keepdim=True) if x.numel() else x.double()
        places = self.k + z.abs().nan_to_num(nan=0.0, posinf=0.0)
        return torch.finfo(x.dtype).eps + places * torch.finfo(_computed_in(x)).eps


def _computed_in(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _smallest(call: Call) -> float:
    # 4: what is below bfloat16's smallest normal number Triton's interpreter rounds to up to 4 times that.
    (x,) = call.leaves()
    number = torch.finfo(x.dtype)
    return max(4 * torch.finfo(_computed_in(x)).tiny, number.tiny * number.eps)


def _cases(names: tuple[str, ...]) -> list[Case]:
    """Those of pointwise ops, and rows too long to be held: so few of them are cut into parts."""
    return [*pointwise_cases(names), Case((2, 32771)), Case((1, 65544), torch.bfloat16)]


def _wide_cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(300, 40000), (257, 40001), (3, 1000000), (1000001, 7), (5000, 16384)]
    cases = [Case(shape, dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)]
    return [*wide_cases(names), *cases, Case((300, 20000), torch.float64)]


SPEC = Spec(
    softmax,
    lambda case, device: calls(case, device, {"x": case.shape}),
    scale=_Rows(),
    cases=_cases,
    # The last: a row too long to be held.
    dimensions=(
        Dimension(lambda n: Case((1, n))), Dimension(lambda n: Case((n, 3)), most=16384),
        Dimension(lambda n: Case((1, 32768 + n)), large=8192, least=4096),
    ),
    wide_cases=_wide_cases,
)
