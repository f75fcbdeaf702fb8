"""The one buffer that the kernels read an MLP's weights and biases from.

    layer l:  weight [P(out), P(in)], row by row, then bias [P(out)]      P(n) = n rounded up to a multiple of 16

and so layer by layer, in one tensor [elements] of the weights' dtype. What lies beyond [out, in] is zero. So every row
starts at a multiple of 16 elements, 32 bytes or more, however wide the layer is: rows of 367 numbers are not aligned,
and could be read four bytes at a time only. A product with padded columns adds zeros. What a padded row gives is not
kept: the kernels write zeros in its place, since 0 · Inf of a row that is not finite would be NaN.

`widths` says the same in a call's arguments: "13-512-256-64-16" is K, then the width of each layer's output.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import functional as F

from ...dispatch import checks
from ...dispatch.address import address
from ...dispatch.scalars import PLAIN

ALIGNMENT = 16  # elements


def padded(n: int) -> int:
    """n rounded up to a multiple of ALIGNMENT."""
    return -(-n // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Layer:
    """One layer of the buffer: `inputs` and `outputs` wide, its weight and its bias from these elements on."""

    inputs: int
    outputs: int
    weight: int
    bias: int

    @property
    def end(self) -> int:
        return self.bias + padded(self.outputs)


@functools.lru_cache(maxsize=256)
def layers(widths: str) -> tuple[Layer, ...]:
    """The layers of an MLP of such widths, and where they lie."""
    numbers = [int(width) for width in widths.split("-")]
    found, start = [], 0
    for inputs, outputs in itertools.pairwise(numbers):
        bias = start + padded(outputs) * padded(inputs)
        found.append(Layer(inputs, outputs, start, bias))
        start = found[-1].end
    return tuple(found)


def elements(widths: str) -> int:
    """How many the buffer has."""
    return layers(widths)[-1].end


def columns_of_grads(widths: str) -> int:
    """How many numbers the gradients of all layers' outputs have a row, each filled up."""
    return sum(padded(layer.outputs) for layer in layers(widths))


def widths_of(weights: Sequence[Tensor]) -> str:
    """ "K-N1-…-NL" of weights [N1, K], [N2, N1], …"""
    numbers = (weights[0].shape[1], *(weight.shape[0] for weight in weights))
    # operator.index specialises a symbolic size: the compiled graph is valid for these widths only.
    return "-".join([str(operator.index(number)) for number in numbers])


Biases = Sequence[Tensor | None]  # None: zeros


def check_parameters(op: str, weights: Sequence[Tensor], biases: Biases) -> None:
    """Raise unless weights are [N1, K], [N2, N1], …, biases [N1], [N2], … or None, of one dtype on one device."""
    for name, given in (("weights", weights), ("biases", biases)):
        if isinstance(given, Tensor) or not isinstance(given, Sequence):
            raise TypeError(f"{op}: {name} must be a sequence of tensors; got {type(given).__name__}")
        for i, tensor in enumerate(given):
            if not (isinstance(tensor, Tensor) or (tensor is None and given is biases)):
                raise TypeError(f"{op}: {name}[{i}] must be a tensor; got {type(tensor).__name__}")
    if not weights:
        raise ValueError(f"{op}: weights must have at least one layer; got none")
    if len(biases) != len(weights):
        raise ValueError(f"{op}: biases must have {len(weights)} entries, one for each of weights; got {len(biases)}")
    first = weights[0]
    checks.has_dtype(op, "weights[0]", first)
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if weight.dim() != 2 or not weight.numel():
            raise ValueError(f"{op}: weights[{i}] must have shape [out, in], neither of them 0; got "
                             f"{list(weight.shape)}")
        if i:
            inputs = weights[i - 1].shape[0]
            checks.belongs_to(op, f"weights[{i}]", weight, "weights[0]", first, (weight.shape[0], inputs))
        if bias is not None:
            checks.belongs_to(op, f"biases[{i}]", bias, "weights[0]", first, weight.shape[:1])


def derivative_reads_input(activation: str) -> bool:
    """Whether act'(z) is no function of act(z), and the backward reads z. (These two as in activations.cuh.)"""
    return activation in ("gelu", "gelu_tanh", "silu")


def derivative_reads_every_bit(activation: str) -> bool:
    """Whether act'(z) is of act(z), and not of its sign alone, which a rounded output has too."""
    return activation in ("sigmoid", "tanh")


@functools.lru_cache(maxsize=256)
def hidden_parts(widths: str, activation: str, final_activation: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Where hidden [B, columns] has what the backward reads: (outputs, inputs, columns).

    outputs[l]: the first column of layer l's output, for all layers but the last. inputs[l]: the first column of what
    layer l's activation was applied to, where `derivative_reads_input`; else -1. Each takes P(out) columns; those
    beyond the layer's width are zeros. In tf32 an output is rounded, as the next layer takes it, but not where
    `derivative_reads_every_bit`.
    """
    parts = layers(widths)
    outputs, inputs, columns = [], [], 0
    for layer in parts[:-1]:
        outputs.append(columns)
        columns += padded(layer.outputs)
    for i, layer in enumerate(parts):
        is_kept = derivative_reads_input(activation if i < len(parts) - 1 else final_activation)
        inputs.append(columns if is_kept else -1)
        columns += padded(layer.outputs) * is_kept
    return tuple(outputs), tuple(inputs), columns


# ------------------------------------------------------------------------------------------------- into it, out of it


def views(packed: Tensor, widths: str) -> list[tuple[Tensor, Tensor]]:
    """(weight [out, in], bias [out]) of each layer: views of the buffer."""
    return [
        (
            packed[layer.weight : layer.bias].view(-1, padded(layer.inputs))[: layer.outputs, : layer.inputs],
            packed[layer.bias : layer.bias + layer.outputs],
        )
        for layer in layers(widths)
    ]


@dataclass(frozen=True)
class _Place:
    """Where one parameter of a buffer lies, in elements from the buffer's first, and how."""

    offset: int
    shape: torch.Size
    stride: tuple[int, ...]

    @functools.cached_property
    def is_dense(self) -> bool:
        """Whether its rows touch."""
        return self.stride[0] in (1, self.shape[-1])


@functools.lru_cache(maxsize=256)
def _places(shapes: tuple[torch.Size, ...]) -> tuple[str, int, tuple[_Place, ...]] | None:
    """(widths, elements, the places of the weights and then of the biases) of weights of these shapes; None of what is
    no MLP's."""
    shapes = [torch.Size(map(operator.index, shape)) for shape in shapes]  # torch.jit.trace has tensors in them
    if not all(len(shape) == 2 and shape.numel() for shape in shapes):
        return None
    if any(after[1] != before[0] for before, after in itertools.pairwise(shapes)):
        return None
    widths = "-".join(map(str, (shapes[0][1], *(shape[0] for shape in shapes))))
    weights = (_Place(layer.weight, shape, (padded(shape[1]), 1))
               for layer, shape in zip(layers(widths), shapes, strict=True))
    biases = (_Place(layer.bias, shape[:1], (1,)) for layer, shape in zip(layers(widths), shapes, strict=True))
    return widths, elements(widths), (*weights, *biases)


def is_transformed() -> bool:
    """Whether torch.func or forward mode follows what is done to tensors; not asked of a graph that is traced."""
    if is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def laid_out(weights: Sequence[Tensor], biases: Biases) -> tuple[Tensor, str] | None:
    """(the buffer that they are the views of, in their order, widths), as `pack_mlp` lays them out: their own memory.
    None of others, whatever they are: where a bias is None there must be zeros, and here nobody knows."""
    return None if is_compiling() or is_transformed() else buffer_behind(weights, biases)


def buffer_behind(
    weights: Sequence[Tensor], biases: Biases, address: Callable[[Tensor], int | None] = address
) -> tuple[Tensor, str] | None:
    """`laid_out` of tensors whose address a function tells."""
    try:
        first, found = weights[0], _places(tuple([weight.shape for weight in weights]))
        is_known = found is not None and len(biases) == len(weights)
    except (TypeError, AttributeError, LookupError):  # no tensors, as `check_parameters` will say
        return None
    if not is_known or (start := address(first)) is None or start % ALIGNMENT:
        return None
    widths, count, places = found
    dtype, size = first.dtype, first.itemsize
    for tensor, place in zip((*weights, *biases), places, strict=True):
        if type(tensor) not in PLAIN or tensor.dtype != dtype or tensor.is_neg():
            return None
        if tensor.stride() != place.stride or tensor.shape != place.shape:
            return None
        if address(tensor) != start + place.offset * size:
            return None
    try:
        return first.detach().as_strided((count,), (1,)), widths
    except RuntimeError:  # the first one's memory ends before: the others lie behind it by chance
        return None


def is_filled_up(weight: Tensor) -> bool:
    """Whether its rows lie as in a buffer, with zeros between them."""
    return bool(weight.shape[1] % ALIGNMENT) and weight.stride() == (padded(weight.shape[1]), 1)


def refuse_changes(op: str, out: Tensor, weights: Sequence[Tensor]) -> None:
    """Have every backward of `out` raise if a weight was changed before it; whichever gradients it is for."""
    versions = [weight._version for weight in weights]

    def check(_: Tensor) -> None:
        for i, (weight, version) in enumerate(zip(weights, versions, strict=True)):
            if weight._version != version:
                raise RuntimeError(
                    f"{op}: weights[{i}] was modified by an inplace operation between the forward and the backward, "
                    "which reads it"
                )

    out.register_hook(check)


def pack(
    weights: Sequence[Tensor], biases: Biases, known: tuple[Tensor, str] | None = None
) -> tuple[Tensor, str]:
    """(the buffer, widths) of weights [out, in] and biases [out], differentiable. known: what `laid_out` says of them.

    Nothing is copied where they lie in one buffer already (`pack_mlp`). Each call makes a copy of others, and none is
    kept: what writes to a parameter need not count as a change of it (`.data`, DLPack, torch.distributed, another
    process, an optimizer with fused=True), and to compare a copy with the weights reads them once, as the copy does.
    The copy is one kernel where all widths are multiples of 16, else zeros, one kernel, and one for each weight whose
    width is none.
    """
    if checks.has_no_values(weights[0]) or is_transformed():
        return by_operators(weights, biases), widths_of(weights)
    known = known or laid_out(weights, biases)
    buffer, widths = known or (None, widths_of(weights))
    tensors = (*weights, *biases)
    if torch.is_grad_enabled() and any([tensor is not None and tensor.requires_grad for tensor in tensors]):
        return _Pack.apply((widths, buffer), *tensors), widths
    return known or (copied(weights, biases), widths)


def by_operators(weights: Sequence[Tensor], biases: Biases) -> Tensor:
    """The copy in operators that a compiler makes one kernel of, forward and backward, and that torch.func knows."""
    parts = []
    for weight, bias in zip(weights, biases, strict=True):
        outputs, inputs = weight.shape
        rows = padded(outputs) - outputs
        parts.append(F.pad(weight, (0, padded(inputs) - inputs, 0, rows)).reshape(-1))
        parts.append(weight.new_zeros(outputs + rows) if bias is None else F.pad(bias, (0, rows)))
    return torch.cat(parts)


@functools.lru_cache(maxsize=256)
def _are_dense(widths: str) -> bool:
    """Whether gradients that may be views of the buffer's fill half of it or more. Autograd copies a weight's that are
    not dense: views of the others would hold the whole buffer's memory beside that."""
    numbers = [layer.outputs * (1 if layer.inputs % ALIGNMENT else 1 + layer.inputs) for layer in layers(widths)]
    return 2 * sum(numbers) >= elements(widths)


class _Pack(torch.autograd.Function):
    """The buffer, a copy where there is none yet; its gradients are views of its gradient, where that saves memory."""

    @staticmethod
    def forward(known: tuple[str, Tensor | None], *tensors: Tensor | None) -> Tensor:
        _, buffer = known
        count = len(tensors) // 2
        return copied(tensors[:count], tensors[count:]) if buffer is None else buffer

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.widths, _ = inputs[0]

    @staticmethod
    def backward(ctx, grad: Tensor):
        pairs = views(grad, ctx.widths)
        every = (*(weight for weight, _ in pairs), *(bias for _, bias in pairs))
        needed = [gradient if need else None for gradient, need in zip(every, ctx.needs_input_grad[1:], strict=True)]
        if _are_dense(ctx.widths):
            return None, *needed
        own = torch.contiguous_format
        return None, *(gradient if gradient is None else gradient.clone(memory_format=own) for gradient in needed)


@torch.no_grad()
def copied(weights: Sequence[Tensor], biases: Biases) -> Tensor:
    """A new buffer of these values."""
    widths, count, places = _places(tuple([weight.shape for weight in weights]))
    is_filled_up = _is_filled_up(widths) or any([bias is None for bias in biases])
    packed = (weights[0].new_zeros if is_filled_up else weights[0].new_empty)(count)
    start = packed.storage_offset()
    dense, others = [], []  # those that are contiguous on both sides are one kernel
    for tensor, place in zip((*weights, *biases), places, strict=True):
        if tensor is not None:
            pair = packed.as_strided(place.shape, place.stride, start + place.offset), tensor
            (dense if place.is_dense and tensor.is_contiguous() else others).append(pair)
    if dense:
        torch._foreach_copy_(*map(list, zip(*dense, strict=True)))
    for into, tensor in others:
        into.copy_(tensor)
    return packed


@functools.lru_cache(maxsize=256)
def _is_filled_up(widths: str) -> bool:
    """Whether some of the buffer is nobody's."""
    return any(int(width) % ALIGNMENT for width in widths.split("-"))
