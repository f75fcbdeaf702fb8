"""What `kernels.check` takes fused_mlp through, and how far its results may be off."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...check import Call, Case, Dimension, Spec
from ...check.tf32 import EPS as TF32_EPS
from . import packing, update_spec
from .eager import ACTIVATIONS, fused_mlp

# Widths behind K, and the options: one layer to four, every activation between layers and at the end.
VARIANTS = (
    ((17, 33, 5), ("relu", "identity", "ieee")),
    ((40, 35), ("gelu", "sigmoid", "ieee")),
    ((3,), ("relu", "gelu", "tf32")),
    ((16, 1, 13, 31), ("sigmoid", "relu", "ieee")),
    ((9, 2), ("identity", "tanh", "tf32")),
    ((18, 5, 4), ("tanh", "silu", "tf32")),
    ((5, 3), ("silu", "leaky_relu", "tf32")),
    ((4, 17), ("leaky_relu", "gelu_tanh", "tf32")),
    ((7, 2), ("gelu_tanh", "identity", "tf32")),
)


def draw_mlp(case: Case, widths: Sequence[int], device) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """x [B, K'], weights and biases of such widths; K' is two columns wider than K where the case's width allows it.

    The case's layout is x's and each weight's, its values are x's: those of a weight would be in every row.
    """
    rows, columns = math.prod(case.shape[:-1]), max(case.shape[-1], widths[0])
    plain = Case(case.shape, case.dtype, case.layout)
    x = case.tensor(1, device, (rows, columns))
    # In every third row, and in what is not read: in all rows all results would be NaN.
    if case.values == "special" and case.layout != "expanded":
        x[torch.arange(rows, device=x.device) % 3 > 0, : widths[0]] = plain.tensor(2, device, (1, widths[0]))
    weights, biases = [], []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        weights.append(plain.tensor(10 + i, device, (outputs, inputs)) / math.sqrt(inputs))
        biases.append(plain.tensor(30 + i, device, (outputs,)))
    return x, tuple(weights), tuple(biases)


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    """Calls of the widths in VARIANTS, or of the case's `sizes`."""
    columns = case.shape[-1]
    for widths, options in [(case.sizes, VARIANTS[0][1])] if case.sizes else VARIANTS:
        tensors = draw_mlp(case, (max(1, columns - 2 if columns > 4 else columns), *widths), device)
        yield Call(" ".join(map(str, (case, *options))), tensors, options)


def overload(arguments: tuple) -> tuple:
    """The dispatcher op's arguments from the public function's."""
    x, weights, biases, *options = arguments
    packed, widths = packing.pack(weights, biases)
    return (x, packed, widths, *options, x.requires_grad or packed.requires_grad)


# How much an error of z changes act(z), and its derivative, at most.
SLOPES = {
    "identity": (1.0, 0.0), "relu": (1.0, 0.0), "leaky_relu": (1.0, 0.0), "sigmoid": (0.25, 0.1), "tanh": (1.0, 0.77),
    "silu": (1.1, 0.5), "gelu": (1.13, 0.8), "gelu_tanh": (1.13, 0.8),
}  # fmt: skip


@dataclass(frozen=True)
class Layers:
    """The error goes from layer to layer with the values, and back with the gradients:

        z = h Wᵀ + b        δz = √(δh² (W²)ᵀ) + k eps_sum (|h| |W|ᵀ + |b|) + eps_product √(h² (W²)ᵀ) + eps |z|
        h = act(z)          δh = slope δz + eps |h| + k eps_sum
        g = (g' W) act'(z)  likewise; where relu's or leaky_relu's z is within δz of 0, its derivative may be either

    A sum is off by k · eps_sum of its terms' absolute values, as everywhere. What its terms are off by, each by a
    rounding of its own, adds up as squares: added as absolute values it would grow √K times too large a layer, and a
    bound after four layers would be larger than the result. eps is the dtype's, eps_sum that of what sums are added up
    in. eps_product is √2 times tf32's eps where products are in tf32, to which both operands are rounded. Infinite
    values are exact.

    A derivative that is the other one is a single large error, of which the layers below make a sum of parts
    that hang together. It is as likely as a normal number to be larger than the root of its squares: five times that is
    allowed, and twice that of the roundings.
    """

    k: float = 8.0

    def errors(self, reference, call, exact):
        error = self._forward(call)[-1][-1]
        return [error + _smallest(call)]

    def gradients(self, reference, call, needed, grads, rounds):
        x, weights, _ = _doubled(call)
        steps, activations = self._forward(call), _activations(call)
        eps, eps_sum, eps_product = _epsilons(call)
        g = grads[0].double()
        e_g = flips = torch.zeros_like(g)  # the gradient's error, by roundings and by derivatives at 0
        of_weights, of_biases = [], []
        for layer in reversed(range(len(weights))):
            z, e_z, _, _ = steps[layer]
            slope, bend = _slope(activations[layer], z), SLOPES[activations[layer]][1]
            change = bend * e_z + 2 * eps * bend
            flips = flips * slope.abs()
            if activations[layer] in ("relu", "leaky_relu"):
                flips = flips + g.abs() * (z.abs() <= e_z)
            e_g = e_g * slope.abs() + g.abs() * change
            g = torch.where(slope == 0, 0.0, g * slope) if activations[layer] == "relu" else g * slope
            e_g, flips = _finite(e_g + eps * g.abs(), g), _finite(flips, g)
            h, e_h = (steps[layer - 1][2], steps[layer - 1][3]) if layer else (x, torch.zeros_like(x))
            a, h_abs = g.abs(), h.abs()
            exact = g.T @ h
            error = (_norm(e_g.T, h).square() + _norm(g.T, e_h).square()).sqrt()
            error = error + self.k * eps_sum * (a.T @ h_abs) + eps_product * _norm(g.T, h) + eps * exact.abs()
            of_weights.append((exact, 2 * error + 5 * _norm(flips.T, h)))
            exact, ones = g.sum(0), torch.ones_like(g[:, :1]).T
            error = _norm(ones, e_g)[0] + self.k * eps_sum * a.sum(0) + eps * exact.abs()
            of_biases.append((exact, 2 * error + 5 * _norm(ones, flips)[0]))
            w = weights[layer]
            own = self.k * eps_sum * (a @ w.abs()) + eps_product * _norm(g, w)
            g, e_g, flips = g @ w, _norm(e_g, w) + own, _norm(flips, w)
        padding = call.tensors[0].shape[1] - g.shape[1]
        error = 2 * (e_g + eps * g.abs()) + 5 * flips
        of_x = tuple(torch.nn.functional.pad(tensor, (0, padding)) for tensor in (g, error))
        pairs = [of_x, *reversed(of_weights), *reversed(of_biases)]
        small = _smallest(call)
        return [
            (exact, _finite(error, exact) + small) if need else None
            for (exact, error), need in zip(pairs, needed, strict=True)
        ]

    def _forward(self, call: Call) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """(z, δz, h, δh) of each layer, in float64."""
        x, weights, biases = _doubled(call)
        eps, eps_sum, eps_product = _epsilons(call)
        h, e_h, steps = x, torch.zeros_like(x), []
        for weight, bias, activation in zip(weights, biases, _activations(call), strict=True):
            z = h @ weight.T + bias
            terms = h.abs() @ weight.abs().T + bias.abs()
            own = self.k * eps_sum * terms + eps_product * _norm(h, weight.T) + eps * z.abs()
            e_z = _finite(_norm(e_h, weight.T) + own, z)
            h = ACTIVATIONS[activation](z)
            e_h = _finite(SLOPES[activation][0] * e_z + eps * h.abs() + self.k * eps_sum, z)
            steps.append((z, e_z, h, e_h))
        return steps


def _doubled(call: Call) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    x, weights, biases = call.map(lambda tensor: tensor.detach().double()).tensors
    return x[:, : weights[0].shape[1]], list(weights), list(biases)


def _activations(call: Call) -> list[str]:
    activation, final_activation, _ = call.options
    return [activation] * (len(call.tensors[1]) - 1) + [final_activation]


def _epsilons(call: Call) -> tuple[float, float, float]:
    dtype = call.tensors[0].dtype
    tf32 = call.options[2] == "tf32" and dtype == torch.float32
    summed = torch.promote_types(dtype, torch.float32)
    return torch.finfo(dtype).eps, torch.finfo(summed).eps, math.sqrt(2.0) * TF32_EPS if tf32 else 0.0


def _norm(a: Tensor, b: Tensor) -> Tensor:
    """√(a² b²), as a product of matrices; scaled, as the squares of large numbers are none."""
    if not (a.numel() and b.numel()):
        return a @ b
    rows, columns = (_finite(m.abs(), m).amax(d, keepdim=True).clamp_min(1e-300) for m, d in ((a, 1), (b, 0)))
    return ((a / rows).square() @ (b / columns).square()).sqrt() * rows * columns


def _slope(activation: str, z: Tensor) -> Tensor:
    """act'(z)."""
    z = z.detach().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(ACTIVATIONS[activation](z).sum(), z)
    return slope


def _finite(error: Tensor, value: Tensor) -> Tensor:
    return torch.where(value.isfinite(), error, 0.0).nan_to_num(nan=0.0)


def _smallest(call: Call) -> float:
    number = torch.finfo(call.tensors[0].dtype)
    return max(4 * torch.finfo(torch.float32).tiny, number.tiny * number.eps)


def _cases(names: tuple[str, ...]) -> list[Case]:
    cases = [Case(shape) for shape in ((0, 5), (1, 1), (7, 3), (129, 13))]
    cases += [Case(shape, every_option=False) for shape in ((5, 0), (7, 367), (9,), (2, 3, 8))]
    layouts = ("transposed", "strided", "expanded", "misaligned")
    cases += [Case((17, 24), layout=layout, every_option=False) for layout in layouts]
    cases += [Case((13, 40), values=values) for values in ("special", "tiny", "large")]
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        cases += [Case((13, 40), dtype), Case((7, 13), dtype, "misaligned", every_option=False)]
        cases += [Case((5, 24), dtype, values="special", every_option=False)]
    return cases


def _wide_cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(4099, 16), (2048, 128), (1031, 1024), (517, 367), (20001, 13)]
    return [Case(shape, dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)]


SPECS = {
    "fused_mlp": Spec(
        fused_mlp,
        _calls,
        scale=Layers(),
        cases=_cases,
        wide_cases=_wide_cases,
        dimensions=(
            Dimension(lambda rows: Case((rows, 3), sizes=(5, 3)), large=600, most=256),
            Dimension(lambda n: Case((2, n), sizes=(5, 3)), large=1100, most=600, on_gpu=False),
            Dimension(lambda n: Case((2, 3), sizes=(n, 3)), large=1100, most=600, on_gpu=False),
            Dimension(lambda n: Case((2, 3), sizes=(5, n)), large=1100, most=600, on_gpu=False),
        ),
        overload=overload,
    ),
    **update_spec.SPECS,
}
