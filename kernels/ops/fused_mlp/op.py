"""fused_mlp: the declaration, and the public function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...dispatch import checks
from ...dispatch.op import Kept, Op, like
from ...dispatch.refusals import autocasts
from ...dispatch.signature import Signature
from . import budget, choice, eager, packing, update

ACTIVATIONS = " | ".join(eager.ACTIVATIONS)
ARGUMENTS = Signature.of(
    "fused_mlp",
    "x [B, K]: floating; weights [...]: x; "
    f"activation: {ACTIVATIONS}; final_activation: {ACTIVATIONS}; precision: ieee | tf32",
)


def check(op: str, x: Tensor, packed: Tensor, widths: str, *options) -> None:
    """Raise unless the tensors are what ARGUMENTS says, x as wide as the first layer and `packed` of all weights."""
    check_beside(op, x, packed, widths, *options[:-1])
    checks.belongs_to(op, "weights", packed, "x", x, (packing.elements(widths),))


def check_beside(op: str, x: Tensor, weight: Tensor, widths: str, *options: str) -> None:
    """The same of whatever has the weights' dtype and device."""
    ARGUMENTS.check((x, weight, *options))
    wanted = int(widths.partition("-")[0])
    if x.shape[1] < wanted:
        raise ValueError(f"{op}: x must have shape [B, {wanted}] or be wider, for weights[0]; got {list(x.shape)}")


def _hidden(given: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
    *_, columns = packing.hidden_parts(given["widths"], given["activation"], given["final_activation"])
    return ((given["x"].shape[0], columns) if given["keep"] else (0,)), given["x"].dtype


def _packed_gradient(given: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
    """packed's. Raises unless the forward kept what its layers gave: the kernels would read beyond an empty tensor."""
    shape, _ = _hidden({**given, "keep": True})
    if given["hidden"].numel() != math.prod(shape):
        raise ValueError(
            f"fused_mlp_backward: hidden must have shape {list(shape)}; got {list(given['hidden'].shape)}: a forward "
            "keeps it with keep=True, as fused_mlp calls and exports it where gradients are enabled"
        )
    return like("packed")(given)


OP = Op(
    "fused_mlp",
    "(Tensor x, Tensor packed, str widths, str activation, str final_activation, str precision, bool keep)"
    " -> (Tensor out, Tensor hidden)",
    eager=eager.from_packed,
    check=check,
    outputs={
        "out": lambda given: ((given["x"].shape[0], packing.layers(given["widths"])[-1].outputs), given["x"].dtype),
        "hidden": Kept(_hidden),  # what the backward reads of the layers, where keep is true
    },
    saves=("x", "packed", "hidden", "out"),
    gradients={"x": like("x"), "packed": _packed_gradient},
    backends={"triton": "triton", "cuda": "triton"},  # the backward is triton_launch.py's
    auto=choice.auto,
    fits=budget.fits,
)
OPS = (OP, update.CHAIN, update.GRADIENTS, update.STEP)


def rows_of(x: Tensor) -> Tensor:
    """x [..., K] as [B, K]; what is no such tensor is left for the op's check."""
    if not isinstance(x, Tensor) or x.dim() in (0, 2):
        return x
    return x.flatten(0, -2) if x.dim() > 2 else x[None]


def fused_mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: packing.Biases,
    activation: str = "relu",
    final_activation: str = "identity",
    precision: str = "ieee",
    *,
    backend: str = "auto",
) -> Tensor:
    """final(… act(x W1ᵀ + b1) … WLᵀ + bL) → [..., NL], contiguous: every layer of an MLP in one kernel.

    Args:
        x: [..., K'], float32, float16, bfloat16 or float64; any strides. The first K of K' >= K columns are read.
        weights: [N1, K], [N2, N1], …, as nn.Linear keeps them, one or more. biases: [N1], [N2], … or None, as many.
        activation, final_activation: identity, relu, leaky_relu (of slope 0.01), sigmoid, tanh, silu, gelu (of erf) or
            gelu_tanh (its approximation by tanh), after each layer but the last, and after the last.
        precision: of float32 products: "ieee" (full float32) or "tf32": tensor cores, for which x, the weights and what
            is between the layers are rounded to the nearest number with 10 bits behind the leading one. Halves always
            go through tensor cores and are added up in float32.
        backend: "triton", "cuda", "eager", or "auto": for a CUDA tensor the faster of Triton and CUDA by
            choice.py: CUDA for few rows of an MLP with many weights; under torch.compile Triton; eager where the layers
            are too wide for it, and in full float32, which cuBLAS computes as fast. For other tensors eager.
            (`FusedMLP` and its `mlp` are faster than eager there.) Eager's float32 products go by
            torch.set_float32_matmul_precision, whatever `precision` says.

    Eager computes with the weights as they are. The kernels read weights and biases from one buffer, and no copy is
    kept: a call sees every change that was made before it, whoever made it. Parameters that `pack_mlp` laid out so are
    not copied, except by a compiled graph, and except frozen weights where x has a gradient. For others, and where a
    bias is None, every call makes a copy, which costs up to two launches and one for each weight whose width is no
    multiple of 16.

    Differentiable once, in reverse mode, with respect to x, weights and biases; every run gives the same bits. Eager is
    differentiable as PyTorch is, and under torch.func (vmap, grad, jacrev, jacfwd) "auto" is eager. Under
    torch.autocast inputs of one dtype are computed in it, where nn.Linear would cast them to autocast's; where x's and
    the weights' differ, all are cast to that. A weight that is changed between forward and backward is refused as by
    PyTorch's own products: where PyTorch counts the change, and not where the kernels have a copy.

    Raises:
        TypeError: a dtype, what is no tensor. ValueError: a shape, a device, no layer, an unknown name or backend.
        FusedMLPError: a ValueError: the layers are too wide for what is on a chip, and the backend is named; it says
            how many bytes too many.
        RuntimeError: a backend this machine lacks; a kernel's under a transform of torch.func that it does not know, or
            in forward mode. In the backward: a weight that is not copied was changed meanwhile.
    """
    laid_out = packing.laid_out(weights, biases)
    if laid_out is None:
        packing.check_parameters(OP.name, weights, biases)
    widths = packing.widths_of(weights) if laid_out is None else laid_out[1]
    rows, options = rows_of(x), (activation, final_activation, precision)
    recorded = torch.is_grad_enabled()
    x_has_gradient = recorded and isinstance(x, Tensor) and x.requires_grad
    keep = x_has_gradient or (recorded and any([t is not None and t.requires_grad for t in (*weights, *biases)]))
    if backend == "auto" and isinstance(x, Tensor):
        backend = "eager" if packing.is_transformed() else OP.call.chosen(backend, rows, None, widths, *options, keep)
    if backend == "eager":
        out = _by_eager(rows, weights, biases, widths, *options)
    else:
        buffer, _ = packing.pack(weights, biases, laid_out)
        if x_has_gradient and laid_out and not buffer.requires_grad:
            buffer = buffer.clone()  # of the weights' own memory autograd would see the first weight's changes only
        out, _ = OP.call(backend, rows, buffer, widths, *options, keep)
        if keep and laid_out and buffer.requires_grad:
            packing.refuse_changes(OP.name, out, weights)
    return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[-1])


def _by_eager(x: Tensor, weights: Sequence[Tensor], biases: packing.Biases, widths: str, *options: str) -> Tensor:
    """eager.fused_mlp, checked, and under torch.autocast as OP has it."""
    if isinstance(x, Tensor) and autocasts(x):
        if x.dtype != weights[0].dtype:
            x, *weights = (_cast(tensor) for tensor in (x, *weights))
            biases = [None if bias is None else _cast(bias) for bias in biases]
        with torch.autocast(x.device.type, enabled=False):
            return _by_eager(x, weights, biases, widths, *options)
    check_beside(OP.name, x, weights[0], widths, *options)
    return eager.fused_mlp(x, weights, biases, *options)


def _cast(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(torch.get_autocast_dtype(tensor.device.type))
