"""add_mul_activation and add_mul_activation_: the declaration, and the public functions."""

from torch import Tensor

from ...dispatch.op import Op, SavedBy, last_dimension, like
from . import eager

SAVES = {"output": ("out",), "inputs": ("x", "bias", "y"), "nothing": ()}  # for what the derivative reads
OP = Op(
    "add_mul_activation",
    "(Tensor x, Tensor bias, Tensor y, Number multiplier, str activation) -> Tensor out",
    shapes=f"x [..., N]: floating; bias [N]: x; y [..., N]: x; activation: {' | '.join(eager.FUNCTIONS)}",
    eager=eager.add_mul_activation,
    eager_in_place=eager.add_mul_activation_,
    outputs={"out": like("x")},
    in_place="x",
    elementwise=True,
    saves=SavedBy("activation", {name: SAVES[reads] for name, reads in eager.DERIVATIVE_READS.items()}),
    gradients={"x": like("grad_out"), "bias": last_dimension("grad_out"), "y": like("grad_out")},
)


def add_mul_activation(
    x: Tensor,
    bias: Tensor,
    y: Tensor,
    multiplier: float | Tensor = 1.0,
    activation: str = "relu",
    *,
    backend: str = "auto",
) -> Tensor:
    """act(x + multiplier · y + bias), contiguous.

    Args:
        x: [..., N], float32, float16, bfloat16 or float64; any strides.
        bias, y: [N] and [..., N], of x's device and dtype (under torch.autocast differing dtypes are cast).
        multiplier: a number, or a 0-d tensor of float32 or float64: on the CPU, read at the call, or on x's device,
            read by the kernel; no gradient.
        activation: "relu", "sigmoid", "tanh", "gelu" (the erf form), "silu" or "identity".
        backend: "triton", "cuda", "eager", or "auto": Triton for a CUDA tensor, else eager.

    Float16 and bfloat16 are computed in float32. Differentiable once, in reverse mode, from the
    output (relu, sigmoid, tanh) or from x, y and bias (gelu, silu); the bias gradient is summed in a fixed order, so
    every run gives the same bits.

    Raises:
        TypeError: a dtype, the multiplier. ValueError: a shape, a device, an unknown activation or backend.
        RuntimeError: a backend this machine lacks.
    """
    return OP.call(backend, x, bias, y, multiplier, activation)


def add_mul_activation_(
    x: Tensor,
    bias: Tensor,
    y: Tensor,
    multiplier: float | Tensor = 1.0,
    activation: str = "relu",
    *,
    backend: str = "auto",
) -> Tensor:
    """The same, written to x, which is returned; for inference: it raises if a gradient would be needed.

    y may be x. What else lies in x's memory counts as it was before the call, and is copied for that. An x that is not
    contiguous costs a temporary of its size.
    """
    OP.call_in_place(backend, x, bias, y, multiplier, activation)
    return x
