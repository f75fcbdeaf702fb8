"""outer_linear and outer_linear_folded: the declaration, and the public functions.

Triton alone: its compiled kernels have what a CUDA version would be written for, wgmma instructions that take their
left operand from the registers in which it was formed, while the weight's next tiles are copied.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ... import runtime
from ...dispatch import checks
from ...dispatch.op import Op, SavedBy, last_dimension, like
from ...dispatch.signature import Signature
from ..fused_mlp.choice import float32_products, is_full_float32
from . import eager, folding

_REST = f"bias [H]: c; activation: {' | '.join(eager.ACTIVATIONS)}; precision: ieee | tf32"
ARGUMENTS = Signature.of("outer_linear", f"c [B, C]: floating; weight [H, C · C]: c; {_REST}")
FOLDED = Signature.of("outer_linear_folded", f"c [B, C]: floating; weight [H, W]: c; {_REST}")


def check(
    op: str, c: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str, folded: bool
) -> None:
    """Raise unless c is [B, C], weight [H, C·C] (or folded, of C), bias [H], of one dtype on one device."""
    signature = FOLDED if folded else ARGUMENTS
    signature.check((c, weight, bias, activation, precision))
    if folded:
        checks.belongs_to(signature.name, "weight", weight, "c", c, (len(weight), folding.folded_width(c.shape[1])))


def auto(c: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str, folded: bool) -> str:
    """What backend="auto" is for CUDA tensors: in full float32 eager, whose products cuBLAS computes in less than half
    the time (traces/results/h200/lecture_14.json; of a folded weight neither was measured), else Triton. Triton too
    where PyTorch is set to tf32, in which eager would multiply."""
    is_full = is_full_float32(c.dtype, precision) and float32_products() == "ieee"
    return "eager" if is_full and not folded else "triton"


OP = Op(
    "outer_linear",
    "(Tensor c, Tensor weight, Tensor bias, str activation, str precision, bool folded) -> Tensor out",
    eager=eager.either,
    check=check,
    outputs={"out": lambda named: ((named["c"].shape[0], named["weight"].shape[0]), named["c"].dtype)},
    saves=SavedBy("activation", {"identity": ("c", "weight"), "relu": ("c", "weight", "out")}),
    gradients={"c": like("c"), "weight": like("weight"), "bias": last_dimension("grad_out")},
    backends=("triton",),
    auto=auto,
)


def outer_linear(
    c: Tensor,
    weight: Tensor,
    bias: Tensor,
    activation: str = "identity",
    precision: str = "ieee",
    *,
    backend: str = "auto",
) -> Tensor:
    """act(vec(c cᵀ) weightᵀ + bias) → [B, H], contiguous, where vec(c cᵀ)[i C + j] = c_i c_j is never written.

    Args:
        c: [B, C], float32, float16, bfloat16 or float64; any strides. weight: [H, C·C]. bias: [H].
        activation: identity or relu.
        precision: of float32 products: "ieee" (full float32) or "tf32": tensor cores, for which c_i c_j (of few rows
            c_j) and the weight are rounded to the nearest number with 10 bits behind the leading one. Halves always go
            through tensor cores, c_i c_j rounded to their dtype, and are added up in float32.
        backend: "triton", "eager", or "auto": Triton for a CUDA tensor, but in full float32, to which PyTorch is set
            too, eager; else eager. There is no "cuda" kernel. Eager writes c cᵀ, B C² numbers, keeps them for the weight's gradient, and writes as many in
            the backward: where there is no memory for that, say "triton". Its float32 products go by
            torch.set_float32_matmul_precision, whatever `precision` says.

    From 128 rows on the kernel adds weight[:, i C + j] and weight[:, j C + i] before it multiplies, of float32 and
    float64, where that leaves three quarters of the columns or less, as it does of C >= 98; the sums are a workspace.
    For up to 128 rows in tf32 it may multiply by c_i last instead. Either way a row of c that has an Inf may give NaN
    where eager gives Inf, or the reverse; and so may finite numbers of which some w c_j, or a sum of two weights, is
    beyond the largest one.
    Differentiable once, in reverse mode; every run gives the same bits. Under torch.autocast inputs of one dtype are
    computed in it, where nn.Linear would cast them to autocast's; inputs of differing dtypes are cast to that.

    Raises:
        TypeError: a dtype. ValueError: a shape, a device, an unknown name or backend.
        RuntimeError: a backend this machine lacks.
    """
    return OP.call(backend, c, weight, bias, activation, precision, False)


def fold_outer_weight(weight: Tensor) -> Tensor:
    """weight [H, C·C] → [H, 256 T (T + 1) / 2], T = ⌈C / 16⌉: what outer_linear_folded takes, with half the work.

    Fold once, after training: the layout is in folding.py, and a copy of weight's dtype and device is returned. A CUDA
    tensor is folded by a Triton kernel, which reads and writes each number once; where a gradient is recorded or
    torch.compile traces, by plain PyTorch. Both give the same bits.

    Raises:
        TypeError: a dtype. ValueError: a shape that is not [H, C·C].
    """
    checks.has_dtype("fold_outer_weight", "weight", weight)
    if weight.dim() != 2 or folding.columns_of(weight.shape[1]) ** 2 != weight.shape[1]:
        raise ValueError(f"fold_outer_weight: weight must have shape [H, C·C]; got {list(weight.shape)}")
    if not weight.is_cuda or not _is_plain(weight) or runtime.triton_mode() != "compiled":
        return folding.fold(weight)
    from . import triton_launch  # not before it is needed: it imports Triton

    columns = folding.columns_of(weight.shape[1])
    folded = weight.new_empty(len(weight), folding.folded_width(columns))
    with torch.cuda.device(weight.device):
        triton_launch.fold(weight.detach().contiguous(), columns, folded)
    return folded


def _is_plain(tensor: Tensor) -> bool:
    """Whether there is nothing to be traced or recorded, but memory alone."""
    recorded = torch.is_grad_enabled() and tensor.requires_grad
    return type(tensor) in (Tensor, torch.nn.Parameter) and not recorded and not torch.compiler.is_compiling()


def outer_linear_folded(
    c: Tensor,
    weight: Tensor,
    bias: Tensor,
    activation: str = "identity",
    precision: str = "ieee",
    *,
    backend: str = "auto",
) -> Tensor:
    """outer_linear with a weight that fold_outer_weight gave, [H, 256 T (T + 1) / 2]; for inference.

    The other arguments, the result and the errors are outer_linear's. RuntimeError if a gradient would be needed.
    """
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (c, weight, bias)):
        raise RuntimeError("outer_linear_folded has no gradient: call outer_linear, or this under torch.no_grad()")
    return OP.call(backend, c, weight, bias, activation, precision, True)
