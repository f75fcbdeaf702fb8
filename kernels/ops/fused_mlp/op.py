"""fused_mlp: the declaration, and the public function."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from kernels import runtime
from kernels.dispatch import checks
from kernels.dispatch.op import Op, like
from kernels.ops.fused_mlp import budget, eager, packing

PRECISIONS = ("ieee", "tf32")


def check(
    op: str, x: Tensor, packed: Tensor, widths: str, activation: str, final_activation: str, precision: str, keep: bool
) -> None:
    """Raise unless x is [B, K'] of a floating dtype, and the rest goes with it."""
    checks.has_dtype(op, "x", x)
    wanted = packing.layers(widths)[0].inputs
    if x.dim() != 2 or x.shape[1] < wanted:
        raise ValueError(
            f"{op}: x must have shape [B, {wanted}] or be wider, for weights[0] of {wanted} columns; got "
            f"{list(x.shape)}"
        )
    checks.belongs_to(op, "weights", packed, "x", x, (packing.elements(widths),))
    for name, value in (("activation", activation), ("final_activation", final_activation)):
        checks.is_one_of(op, name, value, tuple(eager.ACTIVATIONS))
    checks.is_one_of(op, "precision", precision, PRECISIONS)


def check_parameters(op: str, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
    """Raise unless weights are [N1, K], [N2, N1], …, biases [N1], [N2], …, of one dtype on one device."""
    for name, given in (("weights", weights), ("biases", biases)):
        if isinstance(given, Tensor) or not isinstance(given, Sequence):
            raise TypeError(f"{op}: {name} must be a sequence of tensors; got {type(given).__name__}")
        for i, tensor in enumerate(given):
            if not isinstance(tensor, Tensor):
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
                             f"{list(weight.shape)}")  # fmt: skip
        if i:
            inputs = weights[i - 1].shape[0]
            checks.belongs_to(op, f"weights[{i}]", weight, "weights[0]", first, (weight.shape[0], inputs))
        checks.belongs_to(op, f"biases[{i}]", bias, "weights[0]", first, weight.shape[:1])


def _hidden(given: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
    *_, columns = packing.hidden_parts(given["widths"], given["activation"], given["final_activation"])
    return ((given["x"].shape[0], columns) if given["keep"] else (0,)), given["x"].dtype


def _fits(backend: str, given: Mapping[str, object]) -> None:
    """Of Triton's kernels the launcher says so, which knows the tile."""
    if backend == "cuda":
        budget.check_cuda("fused_mlp", given["widths"], given["packed"].dtype, given["packed"].device)


OP = Op(
    "fused_mlp",
    "(Tensor x, Tensor packed, str widths, str activation, str final_activation, str precision, bool keep)"
    " -> (Tensor out, Tensor hidden)",
    eager=eager.from_packed,
    check=check,
    outputs={
        "out": lambda given: ((given["x"].shape[0], packing.layers(given["widths"])[-1].outputs), given["x"].dtype),
        "hidden": _hidden,  # what the backward reads of the layers, where keep is true
    },
    saves=("x", "packed", "hidden", "out"),
    gradients={"x": like("x"), "packed": like("packed")},
    undifferentiable=("hidden",),
    backward_backends=("triton",),
    fits=_fits,
)


FEW = 100_000  # weights a layer, on average: an MLP of fewer is Triton's


@functools.lru_cache(maxsize=1024)
def cuda_rows(widths: str, dtype: torch.dtype, precision: str, device: torch.device) -> float:
    """Up to so many rows backend="auto" is "cuda" for CUDA tensors, above it "triton".

    In Triton's kernel a program reads all weights for its 16 rows; in the CUDA kernel eight blocks share them, and wait
    for one another after every layer. That pays where weights are many and rows so few that every tile has eight
    multiprocessors. On an H200, µs, Triton / CUDA, tf32; bfloat16 goes the same ways:

                                  a layer    128 rows       256            512             1024
        13-512-256-64-16           39 000   13.6 / 16.5   13.7 / 17.9    13.8 / 21.6     13.9 / 25.9
        1024-256-64-1              93 000   17.3 / 18.3   17.3 / 18.5    17.5 / 27.9     17.6 / 28.7
        367-512-256-1             106 000   24.7 / 17.4   26.0 / 25.0    25.2 / 25.1     24.9 / 34.7
        512-512-512               262 000   28.6 / 14.7   28.6 / 23.8    28.7 / 23.9     28.9 / 41.5
        479-1024-1024-512-256-1   439 000    137 / 55      137 / 90       139 / 163       144 / 168
        1024-1024               1 049 000   51.7 / 22.0   51.7 / 39.7    51.9 / 62.8     52.1 / 75.8

    (Of 367 and 479 columns Triton's were taken with loads that cost some 5 % more than now.) In bfloat16 a tile may be
    of 32 rows: at 512 rows 479-… takes 106 / 72, 512-512-512 21.7 / 16.4. Full float32 products go without tensor
    cores: Triton's take four times as long as CUDA's, or longer.
    """
    if dtype == torch.float64 or runtime.why_not("cuda", "cuda"):
        return 0
    try:
        budget.check_cuda(OP.name, widths, dtype, device)
    except budget.FusedMLPError:
        return 0
    if dtype == torch.float32 and precision == "ieee":
        return math.inf
    parts = packing.layers(widths)
    of_layer = sum(layer.inputs * layer.outputs for layer in parts) / len(parts)
    if of_layer < FEW:
        return 0
    return 128 if of_layer < 2 * FEW else 1024 // dtype.itemsize


def fused_mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str = "relu",
    final_activation: str = "identity",
    precision: str = "ieee",
    *,
    backend: str = "auto",
) -> Tensor:
    """final(… act(x W1ᵀ + b1) … WLᵀ + bL) → [B, NL], contiguous: every layer of an MLP in one kernel.

    Args:
        x: [B, K'], float32, float16, bfloat16 or float64; any strides. Of K' >= K columns the first K are read.
        weights: [N1, K], [N2, N1], …, as nn.Linear keeps them, one or more. biases: [N1], [N2], …, as many.
        activation, final_activation: identity, relu, sigmoid or gelu (of erf), after each layer but the last, and after
            the last.
        precision: of float32 products: "ieee" (full float32) or "tf32": tensor cores, which take x and the weights with
            10 bits behind the leading one and cut off the rest. Halves always go through tensor cores and are added up
            in float32.
        backend: "triton", "cuda", "eager", or "auto": for a CUDA tensor the faster of Triton and CUDA by `cuda_rows`:
            CUDA for few rows of an MLP with many weights, and where float32 products are full; under torch.compile
            Triton. Else eager.

    The kernels read weights and biases from one buffer. Of parameters that `pack_mlp` laid out so nothing is copied;
    of others a copy is made, and kept until one of them is changed, unless a gradient or a CUDA graph is recorded: then
    every call copies. A change that PyTorch does not count is not seen: through `.data`, through NumPy, by a CUDA graph
    of your own. Lay such parameters out by `pack_mlp`, or tell by torch.autograd.graph.increment_version.

    Differentiable once, in reverse mode, with respect to x, weights and biases; every run gives the same bits. Under
    torch.autocast inputs of one dtype are computed in it, where nn.Linear would cast them to autocast's; where x's and
    the weights' differ, all are cast to that.

    Raises:
        TypeError: a dtype, what is no tensor. ValueError: a shape, a device, no layer, an unknown name or backend.
        FusedMLPError: a ValueError: the layers are too wide for what is on a chip; it says how many bytes too many.
        RuntimeError: a backend this machine lacks.
    """
    compiling = is_compiling()
    found = None if compiling else packing.kept(weights, biases)
    if found is None:  # else they were checked in the call that packed them
        check_parameters(OP.name, weights, biases)
        found = packing.pack(weights, biases)
    packed, widths = found
    recorded = torch.is_grad_enabled()
    frozen = recorded and _has_gradient(x) and not packed.requires_grad
    if frozen and not compiling and packed.data_ptr() == weights[0].data_ptr():
        # The backward reads the weights; of a buffer that they share autograd sees the first one's changes only.
        packed = packed.clone()
    if backend == "auto" and isinstance(x, Tensor) and x.is_cuda and x.dim() and not compiling:
        backend = "cuda" if x.shape[0] <= cuda_rows(widths, x.dtype, precision, x.device) else "triton"
    keep = recorded and (_has_gradient(x) or packed.requires_grad)
    return OP.call(backend, x, packed, widths, activation, final_activation, precision, keep)[0]


def _has_gradient(x: object) -> bool:
    return isinstance(x, Tensor) and x.requires_grad
