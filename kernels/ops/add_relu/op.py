"""add_relu and add_relu_: the declaration, and the public functions."""

from torch import Tensor

from ...dispatch.op import Op, last_dimension, like
from . import eager

OP = Op(
    "add_relu",
    "(Tensor x, Tensor bias) -> Tensor out",
    shapes="x [..., N]: floating; bias [N]: x",
    eager=eager.add_relu,
    eager_in_place=eager.add_relu_,
    outputs={"out": like("x")},
    in_place="x",
    elementwise=True,
    saves=("out",),
    gradients={"x": like("grad_out"), "bias": last_dimension("grad_out")},
)


def add_relu(x: Tensor, bias: Tensor, *, backend: str = "auto") -> Tensor:
    """relu(x + bias), contiguous.

    Args:
        x: [..., N], float32, float16, bfloat16 or float64; any strides.
        bias: [N], of x's dtype (under torch.autocast differing dtypes are cast to autocast's) and device.
        backend: "triton", "cuda", "eager", or "auto": Triton for a CUDA tensor, else eager.

    Float16 and bfloat16 are computed in float32. Differentiable once, in reverse mode; the bias gradient
    is summed in a fixed order, so every run gives the same bits.

    Raises:
        TypeError: a dtype. ValueError: a shape, a device, an unknown backend.
        RuntimeError: a backend this machine lacks.
    """
    return OP.call(backend, x, bias)


def add_relu_(x: Tensor, bias: Tensor, *, backend: str = "auto") -> Tensor:
    """The same, written to x, which is returned; for inference: it raises if a gradient would be needed.

    A bias that lies in x's memory counts as it was before the call, and is copied for that. An x that is not contiguous
    costs a temporary of its size.
    """
    OP.call_in_place(backend, x, bias)
    return x
