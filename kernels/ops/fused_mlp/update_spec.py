"""What `kernels.check` takes update.py's ops through, and how far their results may be off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...check import Call, Case, Dimension, Spec
from ...check.tf32 import EPS as TF32_EPS
from . import eager
from .packing import derivative_reads_input, elements, hidden_parts, layers, padded, views

ROWS = (Dimension(lambda rows: Case((rows, 3)), large=600, most=256),)


def filled(case: Case, seed: int, device: torch.device, widths: list[int]) -> Tensor:
    """[B, Σ P(n)]: of each width so many numbers, then zeros."""
    rows = math.prod(case.shape[:-1])
    tensor = case.tensor(seed, device, (rows, sum(map(padded, widths))))
    column = 0
    for width in widths if case.layout != "expanded" or rows else ():
        tensor[:, column + width : column + padded(width)] = 0
        column += padded(width)
    return tensor


def buffer(case: Case, seed: int, device: torch.device, widths: str) -> Tensor:
    """Weights and biases as packing.py lays them out, zeros between them."""
    drawn = case.tensor(seed, device, (elements(widths),))
    packed = torch.zeros_like(drawn)
    for (weight, bias), (from_weight, from_bias) in zip(views(packed, widths), views(drawn, widths), strict=True):
        weight.copy_(from_weight / math.sqrt(weight.shape[1]))
        bias.copy_(from_bias)
    return drawn.copy_(packed)


# ---------------------------------------------------------------------------------------------------- fused_mlp_chain

CHAINS = (
    ("13-33-17-5", "relu", "sigmoid", "ieee", 16), ("13-17-5", "gelu", "identity", "tf32", 13),
    ("3-16-1", "tanh", "relu", "tf32", 0), ("13-7", "relu", "silu", "ieee", 14),
    ("5-9-2", "leaky_relu", "gelu_tanh", "tf32", 5),
)


def _chains(case: Case, device: torch.device) -> Iterator[Call]:
    rows, plain = math.prod(case.shape[:-1]), Case(case.shape, case.dtype)
    own = replace(plain, layout=case.layout)
    for widths, activation, final, precision, x_columns in CHAINS:
        parts = layers(widths)
        reads = [activation] * (len(parts) - 1) + [final]
        kept = [layer.outputs for layer in parts[:-1]]
        kept += [layer.outputs for layer, name in zip(parts, reads, strict=True) if derivative_reads_input(name)]
        tensors = (
            case.tensor(1, device, (rows, parts[-1].outputs)), buffer(plain, 2, device, widths),
            filled(plain, 3, device, kept), own.tensor(4, device, (rows, parts[-1].outputs)),
        )
        yield Call(f"{case} {widths} {activation} {final} {precision}", tensors,
                   (widths, activation, final, precision, x_columns))


@dataclass(frozen=True)
class Chain:
    """As spec.Layers has it of gradients, whose derivatives are exact here: they are of what is given."""

    k: float = 8.0

    def errors(self, reference, call, exact):
        g, packed, hidden, out = (tensor.double() for tensor in call.tensors)
        widths, activation, final, precision, x_columns = call.options
        outputs, inputs, _ = hidden_parts(widths, activation, final)
        dtype = call.tensors[0].dtype
        eps, eps_sum = (torch.finfo(torch.promote_types(dtype, least)).eps for least in (dtype, torch.float32))
        product = math.sqrt(2.0) * TF32_EPS if precision == "tf32" and dtype == torch.float32 else 0.0
        error, of_layers = torch.zeros_like(g), []
        for i, (weight, _) in reversed([*enumerate(views(packed, widths))]):
            act = activation if outputs[i:] else final
            columns = inputs[i] if derivative_reads_input(act) else outputs[i] if outputs[i:] else -1
            kept = out if columns < 0 else hidden[:, columns : columns + len(weight)]
            slope = eager.INPUT_GRADIENTS[act](torch.ones_like(kept), kept)
            error = error * slope.abs() + 4 * eps * g.abs()  # 1 - tanh² cancels
            g = eager.INPUT_GRADIENTS[act](g, kept)
            error = _finite(error, g)
            of_layers.append(torch.nn.functional.pad(error, (0, padded(len(weight)) - len(weight))))
            own = self.k * eps_sum * (g.abs() @ weight.abs()) + product * _norm(g, weight)
            g, error = g @ weight, _norm(error, weight) + own
            error = _finite(error, g)
        of_x = torch.nn.functional.pad(error, (0, x_columns - error.shape[1])) if x_columns else g[:, :0]
        tiny = torch.finfo(dtype).tiny
        return [
            2 * bound + eps * _finite(result.abs(), result) + 4 * max(tiny * eps, torch.finfo(torch.float32).tiny)
            for bound, result in zip((of_x, torch.cat(of_layers[::-1], 1)), exact, strict=True)
        ]


def _norm(a: Tensor, b: Tensor) -> Tensor:
    """√(a² b²): what errors that are as often up as down add up to."""
    return (a.square() @ b.square()).sqrt()


def _finite(error: Tensor, value: Tensor) -> Tensor:
    return torch.where(value.isfinite(), error, 0.0).nan_to_num(nan=0.0)


def _chain_cases(names: tuple[str, ...]) -> list[Case]:
    cases = [Case((17, 3)), *(Case((rows, 3), every_option=False) for rows in (0, 1, 33))]
    layouts = ("transposed", "strided", "expanded", "misaligned")
    cases += [Case((9, 3), layout=layout, every_option=False) for layout in layouts]
    cases += [Case((13, 3), values=values, every_option=False) for values in ("special", "tiny", "large")]
    return [*cases, *(Case((13, 3), dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64))]


# ------------------------------------------------------------------------------ fused_mlp_gradients and fused_mlp_step

RATE, EPS = 0.3, 1e-6
# (widths, rule, decay); of other widths it is another compilation.
STEPS = (
    ("13-70-33-1 16-20-4", "adagrad", 0.1), ("13-70-33-1 16-20-4", "sgd", 0.0), ("20-12", "adagrad", 0.0),
    ("20-12", "sgd", 0.1),
)


def _operands(case: Case, device: torch.device, widths: str) -> list[list[Tensor]]:
    rows, plain = math.prod(case.shape[:-1]), Case(case.shape)
    own = plain if case.layout == "expanded" else replace(plain, layout=case.layout)
    parts = [layers(of_mlp) for of_mlp in widths.split()]
    return [
        [case.tensor(10 + i, device, (rows, of_mlp[0].inputs + i)) for i, of_mlp in enumerate(parts)],
        [filled(own, 20 + i, device, [layer.outputs for layer in of_mlp[:-1]]) for i, of_mlp in enumerate(parts)],
        [filled(own, 30 + i, device, [layer.outputs for layer in of_mlp]) for i, of_mlp in enumerate(parts)],
    ]


def _gradients(case: Case, device: torch.device) -> Iterator[Call]:
    for widths in dict.fromkeys(widths for widths, *_ in STEPS):
        yield Call(f"{case} {widths}", tuple(_operands(case, device, widths)), (widths,))


def _steps(case: Case, device: torch.device) -> Iterator[Call]:
    plain = Case(case.shape)
    own = plain if case.layout == "expanded" else replace(plain, layout=case.layout)
    for widths, rule, decay in STEPS:
        packed = torch.cat([buffer(plain, 40 + i, device, of_mlp) for i, of_mlp in enumerate(widths.split())])
        state = packed.square() + 0.1 if rule == "adagrad" else packed.new_empty(0)
        written = [own.tensor(1, device, tensor.shape).copy_(tensor) for tensor in (packed, state)]
        rate = torch.tensor(RATE, device=device)
        tensors = (*written, *_operands(case, device, widths), rate)
        yield Call(f"{case} {widths} {rule} {decay}", tensors, (rule, decay, EPS, widths))


@dataclass(frozen=True)
class Gradients:
    """A sum is off by k · eps of its terms, and by tf32's rounding of both factors of each, as often up as down."""

    k: float = 8.0

    def errors(self, reference, call, exact):
        return [self.of(*call.tensors, call.options[-1])[0] + torch.finfo(torch.float32).tiny]

    def of(self, *operands: list[Tensor] | str) -> tuple[Tensor, Tensor]:
        """(the error, the sum of the terms' absolute values)"""
        *lists, widths = operands
        lists = [[_finite(tensor.double().abs(), tensor) for tensor in tensors] for tensors in lists]
        terms = eager.gradients(*lists, widths)
        squares = eager.gradients(*([tensor.square() for tensor in tensors] for tensors in lists), widths)
        return self.k * torch.finfo(torch.float32).eps * terms + 2 * math.sqrt(2.0) * TF32_EPS * squares.sqrt(), terms


@dataclass(frozen=True)
class Step(Gradients):
    """A gradient g is off by δg. From it, with root = √state + eps:

        sgd        packed by lr · δg
        adagrad    state by 2 |g| δg + δg², packed by lr · δg / root, as |d(g / √(s + g²)) / dg| ≤ 1 / √(s + g²)

    and by some roundings. Finite terms alone: what is not finite is compared as it is.
    """

    def errors(self, reference, call, exact):
        packed, state, *operands, _ = (
            value.double() if isinstance(value, Tensor) else value for value in call.tensors
        )
        rule, decay, _, widths = call.options
        eps, error, terms = torch.finfo(torch.float32).eps, *self.of(*operands, widths)
        if rule == "sgd":
            size = packed.abs() * (1 + RATE * decay) + RATE * terms
            sizes = [RATE * error + 4 * eps * _finite(size, size), torch.zeros_like(state)]
        else:
            g = terms + decay * packed.abs()
            root = _finite(state, state).sqrt()  # below that of what the step leaves
            step = RATE * g / root
            sizes = [
                RATE * error / root + 8 * eps * (packed.abs() + step),
                2 * g * error + error.square() + 8 * eps * (state + g.square()),
            ]
        return [_finite(size, size) + torch.finfo(torch.float32).tiny for size in sizes]


def _step_cases(names: tuple[str, ...]) -> list[Case]:
    cases = [Case((rows, 3), every_option=rows == 77) for rows in (0, 1, 77, 130)]
    layouts = ("transposed", "strided", "expanded", "misaligned")
    cases += [Case((40, 3), layout=layout, every_option=False) for layout in layouts]
    return [*cases, Case((40, 3), values="special"), Case((40, 3), values="large", every_option=False)]


def _wide_cases(names: tuple[str, ...]) -> list[Case]:
    return [Case((rows, 3)) for rows in (2048, 5003)]


SPECS = {
    "fused_mlp_chain": Spec(
        eager.chain, _chains, outputs=("grad_x", "grads"), scale=Chain(), cases=_chain_cases, wide_cases=_wide_cases,
        dimensions=ROWS,
    ),
    "fused_mlp_gradients": Spec(
        eager.gradients, _gradients, outputs=("gradient",), scale=Gradients(), cases=_step_cases,
        wide_cases=_wide_cases, dimensions=ROWS,
    ),
    "fused_mlp_step": Spec(
        eager.step, _steps, outputs=(), mutated=("packed", "state"), scale=Step(), cases=_step_cases,
        wide_cases=_wide_cases, dimensions=ROWS,
    ),
}
