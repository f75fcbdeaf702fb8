"""softmax and softmax_: the declaration, and the public functions."""

from torch import Tensor

from ...dispatch.op import Op, like
from . import choice, eager

OP = Op(
    "softmax",
    "(Tensor x) -> Tensor out",
    shapes="x [..., N]: floating",
    eager=eager.softmax,
    eager_in_place=eager.softmax_,
    outputs={"out": like("x")},
    in_place="x",
    saves=("out",),
    gradients={"x": like("grad_out")},
    auto=choice.auto,
)


def softmax(x: Tensor, *, backend: str = "auto") -> Tensor:
    """e^x / Σ e^x over the last dimension, contiguous.

    Args:
        x: [..., N], float32, float16, bfloat16 or float64; any strides.
        backend: "triton", "cuda", "eager", or "auto". On a GPU "auto" is Triton; for long rows and for an odd number of
            columns it is CUDA, where that can run and torch.compile does not trace. On a CPU it is eager.

    Float16 and bfloat16 are computed in float32. Differentiable once, in reverse mode; every run gives the same bits.

    Raises:
        TypeError: a dtype. ValueError: a tensor without dimensions, an unknown backend.
        RuntimeError: a backend this machine lacks.
    """
    return OP.call(backend, x)


def softmax_(x: Tensor, *, backend: str = "auto") -> Tensor:
    """The same, written to x, which is returned; for inference: it raises if a gradient would be needed.

    An x that is not contiguous costs a temporary of its size.
    """
    OP.call_in_place(backend, x)
    return x
