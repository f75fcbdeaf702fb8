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
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...dispatch import checks
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


def widths_of(weights: Sequence[Tensor]) -> str:
    """ "K-N1-…-NL" of weights [N1, K], [N2, N1], …"""
    numbers = (weights[0].shape[1], *(weight.shape[0] for weight in weights))
    # By operator.index a symbolic size becomes the number that it has: a compiled graph is for these widths.
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


@functools.lru_cache(maxsize=256)
def hidden_parts(widths: str, activation: str, final_activation: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Where hidden [B, columns] has what the backward reads: (outputs, inputs, columns).

    outputs[l]: the first column of layer l's output, for all layers but the last. inputs[l]: the first column of what
    layer l's activation was applied to, where that is gelu, whose derivative is no function of its output; else -1.
    Each takes P(out) columns; those beyond the layer's width are zeros. In tf32 an output is rounded, as the next
    layer takes it: sigmoid's is not, for its derivative is of every bit.
    """
    parts = layers(widths)
    outputs, inputs, columns = [], [], 0
    for layer in parts[:-1]:
        outputs.append(columns)
        columns += padded(layer.outputs)
    for i, layer in enumerate(parts):
        gelu = (activation if i < len(parts) - 1 else final_activation) == "gelu"
        inputs.append(columns if gelu else -1)
        columns += padded(layer.outputs) * gelu
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


def packed(
    op: str, weights: Sequence[Tensor], biases: Biases, read_later: bool = False
) -> tuple[Tensor, str]:
    """(the buffer, widths): what an earlier call made of them, or else what `pack` does, when they are checked.

    read_later: a backward will read the buffer, for another gradient than theirs.
    """
    buffer_and_widths = None if is_compiling() else kept(weights, biases)
    if buffer_and_widths is None:
        check_parameters(op, weights, biases)
        buffer_and_widths = pack(weights, biases)
    buffer, widths = buffer_and_widths
    cloned = read_later and not buffer.requires_grad and is_shared(buffer, weights)
    return (buffer.clone() if cloned else buffer), widths


def is_shared(buffer: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether the buffer is the weights' own memory, of which autograd sees the first weight's changes only."""
    try:
        return not is_compiling() and buffer.data_ptr() == weights[0].data_ptr()
    except RuntimeError:  # torch.func's tensors have no address
        return False


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


def pack(weights: Sequence[Tensor], biases: Biases) -> tuple[Tensor, str]:
    """(the buffer, widths) of weights [out, in] and biases [out], differentiable.

    Nothing is copied where they lie in one buffer already (`pack_mlp`). Otherwise the copy is kept until a weight is
    changed or goes away; not so where gradients are recorded or a CUDA graph is, which must see every change.
    """
    if is_compiling():
        widths = widths_of(weights)
        return _traced(weights, biases), widths
    tensors = (*weights, *biases)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors if tensor is not None):
        widths = widths_of(weights)
        return _Pack.apply(widths, *tensors), widths
    return kept(weights, biases) or _keep(weights, biases)


def _traced(weights: Sequence[Tensor], biases: Biases) -> Tensor:
    """In operators that a compiler makes one kernel of, forward and backward."""
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
    """The copy; its gradients are views of the buffer's gradient, where that saves memory."""

    @staticmethod
    def forward(widths: str, *tensors: Tensor | None) -> Tensor:
        return copied(widths, tensors)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.widths = inputs[0]

    @staticmethod
    def backward(ctx, grad: Tensor):
        pairs = views(grad, ctx.widths)
        every = (*(weight for weight, _ in pairs), *(bias for _, bias in pairs))
        needed = [gradient if need else None for gradient, need in zip(every, ctx.needs_input_grad[1:], strict=True)]
        if _are_dense(ctx.widths):
            return None, *needed
        own = torch.contiguous_format
        return None, *(gradient if gradient is None else gradient.clone(memory_format=own) for gradient in needed)


def copied(widths: str, tensors: Sequence[Tensor | None]) -> Tensor:
    if (packed := _in_one_buffer(widths, tensors)) is not None:
        return packed
    weights, biases = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
    packed = weights[0].new_zeros(elements(widths))
    to, pairs = views(packed, widths), list(zip(weights, biases, strict=True))
    # Those that are contiguous on both sides are one kernel.
    flat = [(a, b) for t, p in zip(to, pairs, strict=True) for a, b in zip(t, p, strict=True) if b is not None]
    dense = [pair for pair in flat if pair[0].is_contiguous() and pair[1].is_contiguous()]
    if any(forward_ad.unpack_dual(b).tangent is not None for _, b in flat):
        raise RuntimeError('fused_mlp has no forward-mode derivative: use backend="eager"')
    if dense:
        torch._foreach_copy_([a for a, _ in dense], [b for _, b in dense])
    for a, b in flat:
        if not (a.is_contiguous() and b.is_contiguous()):
            a.copy_(b)
    return packed


def _in_one_buffer(widths: str, tensors: Sequence[Tensor]) -> Tensor | None:
    """The buffer that the tensors are the views of, in their order; None if they are not."""
    first = tensors[0]
    if type(first) not in PLAIN or first.stride() != (padded(first.shape[1]), 1):
        return None
    start, size, parts = first.data_ptr(), first.itemsize, layers(widths)
    # Where a bias is None there must be zeros, and here nobody knows.
    if start % ALIGNMENT or any(tensor is None for tensor in tensors):
        return None
    storage = first.untyped_storage()
    if storage.data_ptr() + storage.nbytes() < start + elements(widths) * size:
        return None
    for layer, weight, bias in zip(parts, tensors, tensors[len(parts) :], strict=False):
        if weight.data_ptr() != start + layer.weight * size or weight.stride() != (padded(layer.inputs), 1):
            return None
        if bias.data_ptr() != start + layer.bias * size or bias.stride() != (1,):
            return None
    return first.detach().as_strided((elements(widths),), (1,))


# ---------------------------------------------------------------------------------------------- what has been packed


@dataclass
class _Entry:
    """A buffer, and what it was made of: weak references to what goes with each tensor (`_life`), and `_state`."""

    references: tuple
    state: list
    packed: Tensor
    widths: str
    is_view: bool


_entries: dict[tuple, _Entry] = {}
_lock = threading.Lock()
MOST_ENTRIES = 256
_optimizer_steps = 0  # since the first copy was kept


@functools.cache
def _count_optimizer_steps() -> None:
    """From here on: PyTorch's optimizers with fused=True change parameters, and their versions stay as they were."""
    register_optimizer_step_post_hook(_count_optimizer_step)


def _count_optimizer_step(*_) -> None:
    global _optimizer_steps
    _optimizer_steps += 1


def _key(weights: Sequence[Tensor], tensors: tuple[Tensor | None, ...]) -> tuple:
    device = tensors[0].get_device()
    stream = torch._C._cuda_getCurrentRawStream(device) if device >= 0 else 0
    return (stream, len(weights), *map(id, tensors))


def _state(tensors: Sequence[Tensor], is_view: bool) -> list:
    """Where each tensor lies and what it looks like, which `.data = …` changes uncounted; of a copy also how often each
    was changed, or may have been by an optimizer. RuntimeError for an inference tensor, which has no version."""
    found = [(t.data_ptr(), t.shape, t.stride()) for t in tensors]
    return [tensors[0].dtype, *found, *(() if is_view else [_optimizer_steps, *[t._version for t in tensors]])]


def _life(tensor: Tensor) -> set:
    """What goes when the tensor does, for weak references: one to the tensor would forbid torch.utils.swap_tensors,
    which Module.to may use. It is an empty set, for it is pickled with the tensor, and that loads anywhere."""
    return tensor.__dict__.setdefault("_fused_mlp_life", set())


def kept(weights: Sequence[Tensor], biases: Biases) -> tuple[Tensor, str] | None:
    """What an earlier call made of these very tensors, of which none was changed since; None where there is nothing, or
    a gradient or a CUDA graph is recorded that must not read it. They may be anything: what is not known is None."""
    try:
        tensors = (*weights, *biases)
        entry = _entries.get(_key(weights, tensors))
        tensors = [tensor for tensor in tensors if tensor is not None]
        if entry is None or entry.state != _state(tensors, entry.is_view):
            return None
    except (TypeError, AttributeError, IndexError, RuntimeError):
        return None
    if torch.is_grad_enabled() and any([tensor.requires_grad for tensor in tensors]):
        return None
    return (entry.packed, entry.widths) if entry.is_view or not _is_capturing(tensors[0]) else None


def _keep(weights: Sequence[Tensor], biases: Biases) -> tuple[Tensor, str]:
    """(the buffer, widths), kept for the next call where that may read it."""
    all_tensors, widths = (*weights, *biases), widths_of(weights)
    tensors = [tensor for tensor in all_tensors if tensor is not None]
    plain = all(type(t) in PLAIN and not t.is_inference() for t in tensors)
    _count_optimizer_steps()
    # Before the copy: another thread may change a weight meanwhile.
    state = _state(tensors, is_view=False) if plain else None
    with torch.inference_mode(not plain and torch.is_inference_mode_enabled()), torch.no_grad():
        packed = copied(widths, all_tensors)
    if plain and not _is_capturing(tensors[0]):
        key = _key(weights, all_tensors)
        references = tuple(weakref.ref(_life(t), lambda _, key=key: _entries.pop(key, None)) for t in tensors)
        with _lock:
            if len(_entries) >= MOST_ENTRIES:
                _entries.clear()
            is_view = packed.data_ptr() == tensors[0].data_ptr()
            state = _state(tensors, is_view=True) if is_view else state
            _entries[key] = _Entry(references, state, packed, widths, is_view)
    return packed, widths


def _is_capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured: it would go on reading a copy that the next change throws away."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
