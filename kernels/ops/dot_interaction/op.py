"""dot_interaction: the declaration, and the public function."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...dispatch.op import Op, like
from . import eager


def check(op: str, dense: Tensor, sparse: Tensor, pad_to: int = 1) -> None:
    """Raise unless pad_to is positive."""
    if pad_to < 1:
        raise ValueError(f"{op}: pad_to must be a positive integer; got {pad_to}")


def _output(named: Mapping) -> tuple[Sequence[int], torch.dtype]:
    rows, features, columns = named["sparse"].shape
    return (rows, eager.width(features, columns, named["pad_to"])), named["dense"].dtype


OP = Op(
    "dot_interaction",
    "(Tensor dense, Tensor sparse, int pad_to) -> Tensor out",
    shapes="dense [B, D]: floating; sparse [B, F, D]: dense",
    eager=eager.dot_interaction,
    check=check,
    outputs={"out": _output},
    saves=("dense", "sparse"),
    gradients={"dense": like("dense"), "sparse": like("sparse")},
    auto="cuda",
)


def dot_interaction(dense: Tensor, sparse: Tensor, pad_to: int = 1, *, backend: str = "auto") -> Tensor:
    """DLRM's pairwise interaction (arXiv:1906.00091): dense [B, D], sparse [B, F, D] → [B, W], contiguous.

    With t_0 the dense vector of a row and t_1 … t_F its sparse ones, the row is t_0, then t_i · t_j for i = 1 … F and
    j = 0 … i - 1, then zeros up to W = D + F (F + 1) / 2 rounded up to a multiple of pad_to.

    Args:
        dense, sparse: float32, float16, bfloat16 or float64, of one dtype; any strides.
        pad_to: so that a following matrix product finds aligned rows: 4 for float32, 8 for half precision.
        backend: "triton", "cuda", "eager", or "auto": CUDA for a CUDA tensor, else eager.

    Products are added up in float32 (float64 for float64), float32 without TF32. Under torch.autocast inputs of one
    dtype are computed in it, where torch.bmm would cast them to autocast's; dense and sparse of differing dtypes are
    cast to that. Differentiable once, in reverse mode;
    every run gives the same bits. An Inf among a row's vectors makes its gradients Inf or NaN where eager, which
    multiplies it by the other half's zeros too, has NaN.

    Raises:
        TypeError: a dtype, dtypes that differ, a pad_to that is no integer. ValueError: a shape or device that does not
        fit, a pad_to below 1, an unknown backend. RuntimeError: a backend this machine lacks.
    """
    return OP.call(backend, dense, sparse, pad_to)
