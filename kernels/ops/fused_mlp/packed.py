"""An MLP whose weights and biases are one tensor to autograd and to an optimizer."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling

from ...dispatch import checks
from ...hooks import has_hooks
from . import choice, packing, update
from .module import autocast, autocast_dtype, is_chosen, pack_mlp, precision_of
from .op import OP

# Products of a forward in full float32, up to which one kernel makes a step faster that waits for the host: 8,192 rows
# of the larger MLP of `is_packed`. Triton's forward takes four times as long as CUDA's (choice.py).
MOST_PRODUCTS = {"cuda": 2.65e9, "triton": 2.65e9 / 4}
MOVED = "PackedMLP: a parameter was moved or frozen since it was laid out; make the optimizer anew"


class Operands(NamedTuple):
    """What the gradients of an MLP's weights are made of, as `update.STEP` takes it; and x's version, which is the
    caller's to write to."""

    x: Tensor
    layer_values: Tensor
    layer_grads: Tensor
    version: int


class PackedMLP:
    """nn.Linear layers that `pack_mlp` laid out in one buffer, which is trained in their parameters' place.

        packed = PackedMLP(linears);  optimizer = SGD([packed.buffer]);  packed(x).sum().backward();  optimizer.step()

    `fused_mlp` of parameters finds the buffer behind them at each call, and gives each a gradient of its own, of which
    autograd copies those that are not dense. Here autograd knows the buffer alone, and its gradient is what the kernel
    wrote. The gradient of the padding is zero, so that rules which go element by element, and do nothing where weight
    and gradient are zero, as SGD, Adagrad and Adam do, leave the padding zero.

    The parameters are views of the buffer, and change when it does. After a backward their .grad are views of the
    buffer's: what clips, scales or looks at them finds them as ever. But nothing is called for them: hooks of theirs,
    and DistributedDataParallel's, wait in vain.

    Where `leaves_operands` is set, and update.py's kernels run, a backward computes no gradient of the weights. It
    leaves `operands` to a `step_by` or to `gradients_of`, one backward's for one step: till then there is no .grad, and
    they live, x among them, which nobody may change.

    Args:
        linears: each with a bias, and of widths that follow from one another (`pack_mlp` raises ValueError otherwise).
    """

    def __init__(self, linears: Sequence[nn.Linear]):
        self.linears = list(pack_mlp(nn.ModuleList(linears)))
        self.weights = [linear.weight for linear in self.linears]
        self.parameters = (*self.weights, *(linear.bias for linear in self.linears))
        self.widths = packing.widths_of(self.weights)
        first = self.weights[0]
        # A tensor of its own and no view: a view would count the changes of the parameter that it was made of.
        self.buffer = first.detach().new_empty(0).set_(
            first.untyped_storage(), first.storage_offset(), (packing.elements(self.widths),), (1,)
        ).requires_grad_()
        start = self.buffer.data_ptr()
        self._offsets = [parameter.data_ptr() - start for parameter in self.parameters]
        places = [(one.shape, one.stride(), one.storage_offset()) for one in self.split(self.buffer)]
        self._places = [(shape, stride, offset - self.buffer.storage_offset()) for shape, stride, offset in places]
        # What of the buffer's gradient the parameters have as their .grad, and where it lies.
        self._shown: list[Tensor] = []
        self._shown_at: list[int] = []
        self._shown_of: Tensor | None = None
        self.leaves_operands = False
        self.operands: Operands | None = None
        own = weakref.ref(self)  # or the buffer's hooks would keep it
        self.buffer.register_hook(lambda _: None if own() is None else own()._gather())
        self.buffer.register_post_accumulate_grad_hook(lambda _: None if own() is None else own()._arrived())

    def is_whole(self) -> bool:
        """Whether the parameters are all trained, and lie in the buffer: `.to(…)` gives them memory of their own, and
        what is done to the buffer is then lost."""
        start = self.buffer.data_ptr()
        for parameter, offset in zip(self.parameters, self._offsets, strict=True):
            if parameter.data_ptr() - start != offset or not parameter.requires_grad:
                return False
        return True

    def _is_called_by_parameter(self) -> bool:
        """Whether a layer has another parameter by now (pruned, parametrized, replaced), or one has a hook, which is to
        see its gradient."""
        own = [linear._parameters for linear in self.linears]
        now = (*(parameters.get("weight") for parameters in own), *(parameters.get("bias") for parameters in own))
        for parameter, ours in zip(now, self.parameters, strict=True):
            if parameter is not ours or ours._backward_hooks or ours._post_accumulate_grad_hooks:
                return True
        return False

    def takes(self, linears: Sequence[nn.Module], x: Tensor, backend: str = "auto") -> bool:
        """Whether a call of these layers, with a gradient, is a call of this: they are its own, none has a hook, and
        `is_packed` says so. Not within a transform of torch.func, nor where torch.distributed has several processes,
        which average the gradients of parameters."""
        if is_compiling() or not torch.is_grad_enabled() or list(linears) != self.linears or x.dim() != 2:
            return False
        if torch._C._are_functorch_transforms_active() or _has_several_processes():
            return False
        if any(map(has_hooks, self.linears)) or self._is_called_by_parameter() or not self.is_whole():
            return False
        return is_packed(x.shape[0], self.widths, autocast_dtype(x), precision_of(x), x.device, backend)

    def leaves(self, x: Tensor) -> bool:
        """Whether a call's backward leaves operands, if a kernel computes the call."""
        return self.leaves_operands and update.runs(x, precision_of(x)) and not self._is_called_itself()

    def __call__(
        self, x: Tensor, activation: str = "relu", final_activation: str = "identity", *, backend: str = "auto",
        known: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """`mlp` of the layers in one kernel, x [B, K'], whose gradients go to the buffer. The first K of K' >= K
        columns count. known: what OP would give, out and hidden, of a call that `leaves`, where another kernel has
        computed it."""
        x = autocast(x)
        options = activation, final_activation, precision_of(x)
        backend = backend_of(x.shape[0], self.widths, x.dtype, precision_of(x), x.device, backend)
        arguments = x, self.buffer, self.widths, *options, True
        leaves = known is not None or self.leaves(x)
        if leaves and not known:
            backend = OP.call.chosen(backend, *arguments)
        if leaves and (known or backend != "eager"):
            out = _LeavingOperands.apply(self, known or backend, x, self.buffer, *options)
        else:
            out, _ = OP.call(backend, *arguments)
        packing.refuse_changes(OP.name, out, self.weights)
        return out

    def take_gradients(self) -> None:
        """Have the buffer's gradient be the parameters', whatever was done to those since a backward: other tensors put
        there, or what did not go by `takes`. If a backward left operands, that is for those who take them.

        Raises RuntimeError if some parameters have a gradient and others have none, for one tensor cannot leave a part
        of itself out of a step; or if one no longer lies in the buffer.
        """
        if self.operands is not None:
            return
        without = [i for i, parameter in enumerate(self.parameters) if parameter.grad is None]
        if 0 < len(without) < len(self.parameters):
            raise RuntimeError(
                f"PackedMLP: the parameter of shape {list(self.parameters[without[0]].shape)} has no gradient, and "
                "others of its MLP, which is trained as one tensor, have; freeze it, if the MLP has it still, and make "
                "the optimizer anew"
            )
        self._gather()

    def forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        self.buffer.grad, self._shown, self._shown_of, self.operands = None, [], None, None

    def leave(self, operands: Operands) -> None:
        """A backward has computed them."""
        self._refuse_hooks()
        if self._is_called_itself():
            raise RuntimeError("PackedMLP: the buffer was given a hook behind the forward, and has no gradient for it")
        if self.operands is not None:
            raise RuntimeError(
                "PackedMLP: the operands of a backward are there, which the optimizer has not taken: a step that fuses "
                "the update has one call of the MLP and one backward"
            )
        self.operands = operands

    def check_operands(self) -> None:
        """Raise RuntimeError unless they are the whole gradient still, of parameters that lie in the buffer."""
        if any([tensor.grad is not None for tensor in (self.buffer, *self.parameters)]):
            raise RuntimeError(
                "PackedMLP: a backward left operands to the step, and there is a gradient beside them: a step that "
                "fuses the update has one call of the MLP and one backward, and nobody sets a .grad"
            )
        if not self.is_whole():
            raise RuntimeError(MOVED)
        if self.operands.x._version != self.operands.version:
            raise RuntimeError("PackedMLP: x was modified by an inplace operation between the backward and the step")

    def _is_called_itself(self) -> bool:
        """Whether the buffer has hooks beside its own two, which are to see its gradient; or not those, as a copy."""
        hooks = self.buffer._backward_hooks, self.buffer._post_accumulate_grad_hooks
        return [len(of_kind or ()) for of_kind in hooks] != [1, 1]

    def _refuse_hooks(self) -> None:
        if any([one._backward_hooks or one._post_accumulate_grad_hooks for one in self.parameters]):
            raise RuntimeError("PackedMLP: a parameter was given a hook behind the forward, and nothing calls it")

    def _arrived(self) -> None:
        """A backward has added to the buffer's gradient, or has left operands and nothing else."""
        self._refuse_hooks()
        if self.buffer.grad is not None:
            self._show()

    def _show(self) -> None:
        """Give each parameter its part of the buffer's gradient."""
        gradient = self.buffer.grad
        start = gradient.storage_offset()
        self._shown = [gradient.as_strided(shape, stride, start + offset) for shape, stride, offset in self._places]
        self._shown_at = [part.data_ptr() for part in self._shown]
        self._shown_of = gradient
        for parameter, part in zip(self.parameters, self._shown, strict=True):
            parameter.grad = part

    def _gather(self) -> None:
        """Make the buffer's gradient of the parameters', if those are no longer its parts; a backward does so before it
        adds to it."""
        gradients = [parameter.grad for parameter in self.parameters]
        is_shown = bool(self._shown) and all(map(operator.is_, gradients, self._shown))
        if is_shown and [gradient.data_ptr() for gradient in gradients] == self._shown_at:
            if self.buffer.grad is self._shown_of:
                return
            if self.buffer.grad is None:
                self.forget_gradients()
            else:  # it was replaced itself
                self._show()
            return
        if all([gradient is None for gradient in gradients]):
            if self._shown:
                self.forget_gradients()
            return
        if not self.is_whole():
            raise RuntimeError(MOVED)
        filled = [
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(self.parameters, gradients, strict=True)
        ]
        with torch.no_grad():
            self.buffer.grad = self.joined(filled)
        self._show()

    def split(self, buffer: Tensor) -> tuple[Tensor, ...]:
        """What of a tensor like the buffer belongs to each of `parameters`: views."""
        pairs = packing.views(buffer, self.widths)
        return (*(weight for weight, _ in pairs), *(bias for _, bias in pairs))

    @torch.no_grad()
    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """A tensor like the buffer of one like each of `parameters`, with zeros in the padding."""
        buffer = torch.zeros_like(self.buffer)
        for into, tensor in zip(self.split(buffer), tensors, strict=True):
            into.copy_(tensor)
        return buffer


class _LeavingOperands(torch.autograd.Function):
    """A PackedMLP's call whose backward computes x's gradient alone, and leaves what the weights' are made of. The
    second argument: OP's backend, or what it would give."""

    @staticmethod
    def forward(
        ctx, mlp: PackedMLP, known: str | tuple[Tensor, Tensor], x: Tensor, buffer: Tensor, activation: str, final: str,
        precision: str,
    ) -> Tensor:
        ctx.mlp, ctx.options = mlp, (mlp.widths, activation, final, precision)
        out, layer_values = OP.call(known, x, buffer, *ctx.options, True) if isinstance(known, str) else known
        ctx.save_for_backward(x, buffer, layer_values, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out: Tensor):
        x, buffer, layer_values, out = ctx.saved_tensors
        needs_x = ctx.needs_input_grad[2]
        columns = x.shape[1] if needs_x else 0
        grad_x, layer_grads = update.CHAIN.call("triton", grad_out, buffer, layer_values, out, *ctx.options, columns)
        _, (accumulates, _) = ctx.next_functions  # x's and the buffer's
        if torch._C._will_engine_execute_node(accumulates):  # not in a backward of x alone
            ctx.mlp.leave(Operands(x.detach(), layer_values, layer_grads, x._version))
        return None, None, grad_x if needs_x else None, None, None, None, None


def packed_together(mlps: Sequence[Sequence[nn.Linear]]) -> list[PackedMLP]:
    """A PackedMLP of the layers of each; of one dtype on one device their buffers lie one behind the other, which
    `step_by` takes as one."""
    packed = [PackedMLP(linears) for linears in mlps]
    buffers = [mlp.buffer.detach() for mlp in packed]
    if len({(buffer.dtype, buffer.device) for buffer in buffers}) > 1 or all(map(_is_behind, buffers[1:], buffers)):
        return packed
    sizes = [buffer.numel() for buffer in buffers]
    for mlp, part in zip(packed, torch.cat(buffers).split(sizes), strict=True):
        for linear, (weight, bias) in zip(mlp.linears, packing.views(part, mlp.widths), strict=True):
            linear.weight.data, linear.bias.data = weight, bias
    return [PackedMLP(linears) for linears in mlps]


@torch.no_grad()
def gradients_of(mlps: Sequence[PackedMLP]) -> None:
    """The buffers' gradients, of the operands that backwards left, in two launches for all whose buffers lie one behind
    the other, if they are of as many rows."""
    for group, operands, widths in _taken(mlps):
        gradient = update.GRADIENTS.call("cuda", *operands, widths)
        for mlp, part in zip(group, gradient.split([mlp.buffer.numel() for mlp in group]), strict=True):
            mlp.buffer.grad = part
            mlp._show()


@torch.no_grad()
def step_by(
    rule: str, mlps: Sequence[PackedMLP], learning_rate: Tensor, weight_decay: float, eps: float = 0.0,
    states: Sequence[Tensor] = (),
) -> None:
    """A step by sgd or adagrad on those buffers, likewise, without a gradient in memory.

    learning_rate: a scalar on the device, float32. states: adagrad's, like the buffers; those that lie one behind the
    other go together. Operands that no launch has taken, as it raised, are there still.
    """
    for i, (mlp, state) in enumerate(zip(mlps, states, strict=True)) if states else ():
        name = f"states[{i}]"
        checks.belongs_to("step_by", name, state, f"mlps[{i}].buffer", mlp.buffer, mlp.buffer.shape)
        if not state.is_contiguous():
            raise ValueError(f"step_by: {name} must be contiguous; got strides {list(state.stride())}")
    of_buffer = {id(mlp): state for mlp, state in zip(mlps, states, strict=True)} if states else {}
    for group, operands, widths in _taken(mlps, of_buffer):
        elements = sum(mlp.buffer.numel() for mlp in group)
        first = group[0]
        packed = first.buffer.detach().as_strided((elements,), (1,))
        state = of_buffer[id(first)].as_strided((elements,), (1,)) if states else packed.new_empty(0)
        update.STEP.call("cuda", packed, state, *operands, learning_rate, rule, weight_decay, eps, widths)
        torch.autograd.graph.increment_version([tensor for mlp in group for tensor in (mlp.buffer, *mlp.parameters)])


def _taken(
    mlps: Sequence[PackedMLP], states: Mapping[int, Tensor] = MappingProxyType({})
) -> Iterator[tuple[list[PackedMLP], list[list[Tensor]], str]]:
    """(MLPs, their operands, their widths) of each group that a launch takes, which then lets go of its operands."""
    if len({*map(id, mlps)}) < len(mlps):
        raise ValueError("mlps must be different ones; got one twice")
    groups: list[list[PackedMLP]] = []
    for mlp in mlps:
        if mlp.operands is None:
            continue
        mlp.check_operands()
        if groups and _goes_with(groups[-1][-1], mlp, states):
            groups[-1].append(mlp)
        else:
            groups.append([mlp])
    for group in groups:
        operands = [list(of_all) for of_all in zip(*(mlp.operands[:3] for mlp in group), strict=True)]
        yield group, operands, " ".join([mlp.widths for mlp in group])
        for mlp in group:
            mlp.operands = None


def _goes_with(before: PackedMLP, mlp: PackedMLP, states: Mapping[int, Tensor]) -> bool:
    if len(mlp.operands.x) != len(before.operands.x) or not _is_behind(mlp.buffer, before.buffer):
        return False
    return not states or _is_behind(states[id(mlp)], states[id(before)])


def _is_behind(buffer: Tensor, other: Tensor) -> bool:
    """Whether it begins where the other ends, in one memory."""
    begins = buffer.storage_offset() == other.storage_offset() + other.numel()
    return begins and buffer.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def is_packed(
    rows: int, widths: str, dtype: torch.dtype, precision: str, device: torch.device, backend: str
) -> bool:
    """Whether a PackedMLP is to train so many rows.

    In full float32 that is one kernel too, where `mlp` takes a matrix product a layer: cuBLAS is faster on the GPU, but
    a step that is no CUDA graph waits for the host, which launches four kernels an MLP here and five or six a layer
    there. On an H200, ms a step of a DLRM with MLPs 13-512-256-64-16 and 367-512-256-1, by SGD, one kernel, CUDA's / a
    product a layer:

        rows    without a graph     as a graph
         2048     1.54 / 3.04      0.538 / 0.451
        16384     2.24 / 2.83       2.16 / 1.54

    With 16,384 rows the one kernel's step is the GPU's already, and a faster host would have the other one done before.
    The limit is half of that.
    """
    chosen = backend_of(rows, widths, dtype, precision, device, backend)
    if chosen != backend:
        products = rows * sum(layer.inputs * layer.outputs for layer in packing.layers(widths))
        return chosen != "eager" and products <= MOST_PRODUCTS[chosen]
    return is_chosen(rows, widths, dtype, precision, True, device, backend)


def backend_of(
    rows: int, widths: str, dtype: torch.dtype, precision: str, device: torch.device, backend: str
) -> str:
    """What computes a PackedMLP's call: in full float32 "auto" is the faster kernel, where OP's is eager."""
    if backend == "auto" and device.type == "cuda" and choice.is_full_float32(dtype, precision):
        return choice.kernel_of(rows, widths, dtype, precision, True, device)
    return backend


def _has_several_processes() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
