"""add_mul_activation and add_mul_activation_: the public functions, and the dispatcher ops of the Triton backend.

The CUDA backend's schema and autograd stand in binding.cu; here it gets its fakes, once it is loaded.
"""

from numbers import Real

import torch
from torch import Tensor

from kernels import runtime
from kernels.dispatch import pointwise
from kernels.ops.add_mul_activation import eager

_LIBRARY = torch.library.Library("fused_kernels", "FRAGMENT")
_OPS = torch.ops.fused_kernels  # called as .default: without overloads to choose from, a call costs 0.3 µs less


def add_mul_activation(
    x: Tensor,
    bias: Tensor,
    y: Tensor,
    multiplier: float = 1.0,
    activation: str = "relu",
    *,
    backend: str = "auto",
) -> Tensor:
    """act(x + multiplier · y + bias), contiguous.

    Args:
        x: [..., N], float32, float16, bfloat16 or float64; any strides.
        bias, y: [N] and [..., N], of x's device and dtype (under torch.autocast differing dtypes are cast).
        multiplier: a number, not a tensor; no gradient. Triton takes it as a float32, also for float64 tensors.
        activation: "relu", "sigmoid", "tanh", "gelu" (the erf form), "silu" or "identity".
        backend: "triton", "cuda", "eager", or "auto": Triton for a CUDA tensor, else eager.

    Float16 and bfloat16 are computed in float32. Differentiable once, in reverse mode, from the
    output (relu, sigmoid, tanh) or from x, y and bias (gelu, silu); the bias gradient is summed in a fixed order, so
    every run gives the same bits.

    Raises:
        TypeError: a dtype, the multiplier. ValueError: a shape, a device, an unknown activation or backend.
        RuntimeError: a backend this machine lacks.
    """
    backend = runtime.choose(backend, x)
    _check_arguments("add_mul_activation", bias, y, multiplier, activation)
    if backend == "cuda":
        _load_cuda()
        # Which sees to all else, autocast and gradients too, for less than it costs here.
        return _OPS.add_mul_activation_cuda.default(x, bias, y, multiplier, activation)
    x, bias, y = pointwise.of_one_dtype(x, bias, y)
    if backend == "triton":
        pointwise.refuse_forward_mode("add_mul_activation", x, bias, y)
        return _OPS.add_mul_activation_triton.default(x, bias, y, multiplier, activation)
    pointwise.check("add_mul_activation", x, bias, y)
    return eager.add_mul_activation(x, bias, y, float(multiplier), activation)


def add_mul_activation_(
    x: Tensor,
    bias: Tensor,
    y: Tensor,
    multiplier: float = 1.0,
    activation: str = "relu",
    *,
    backend: str = "auto",
) -> Tensor:
    """The same, written to x, which is returned; for inference: it raises if a gradient would be needed.

    y may be x. An x that is not contiguous costs a temporary of its size.
    """
    backend = runtime.choose(backend, x)
    _check_arguments("add_mul_activation_", bias, y, multiplier, activation)
    if backend == "cuda":
        _load_cuda()
        _OPS.add_mul_activation_cuda_.default(x, bias, y, multiplier, activation)
        return x
    _, bias, y = pointwise.of_one_dtype(x, bias, y)
    pointwise.refuse_gradients("add_mul_activation", x, bias, y)
    if backend == "triton":
        pointwise.refuse_forward_mode("add_mul_activation_", x, bias, y)
        _OPS.add_mul_activation_triton_.default(x, bias, y, multiplier, activation)
    else:
        pointwise.check("add_mul_activation_", x, bias, y)
        if not torch.compiler.is_compiling():  # a compiled graph has no addresses, and writes to x last
            pointwise.check_in_place("add_mul_activation_", x, bias, y)
        eager.add_mul_activation_(x, bias, y, float(multiplier), activation)
    return x


def _check_arguments(op: str, bias: Tensor, y: Tensor, multiplier: float, activation: str) -> None:
    if not (isinstance(bias, Tensor) and isinstance(y, Tensor)):
        pointwise.check_are_tensors(op, bias=bias, y=y)
    if type(multiplier) is not float and not isinstance(multiplier, Real):
        raise TypeError(f"{op}: multiplier must be a number; got {type(multiplier).__name__}")
    if activation not in eager.FUNCTIONS:
        raise ValueError(f"{op}: activation must be one of {', '.join(eager.FUNCTIONS)}; got {activation!r}")


# ------------------------------------------------------------------------------------------------------------------
# Triton. Its kernels are imported when first called, so that importing this package does not import Triton.


def _forward(x: Tensor, bias: Tensor, y: Tensor, multiplier: float, activation: str) -> Tensor:
    from kernels.ops.add_mul_activation import triton_kernel

    _check("add_mul_activation", x, bias, y, multiplier, activation)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    with pointwise.on_device_of(x):
        triton_kernel.forward(x.contiguous(), bias.contiguous(), y.contiguous(), multiplier, activation, out)
    return out


def _in_place(x: Tensor, bias: Tensor, y: Tensor, multiplier: float, activation: str) -> None:
    from kernels.ops.add_mul_activation import triton_kernel

    _check("add_mul_activation_", x, bias, y, multiplier, activation)
    pointwise.check_in_place("add_mul_activation_", x, bias, y)
    pointwise.mark_written(x)
    if not x.is_contiguous():
        x.copy_(_forward(x, bias, y, multiplier, activation))
        return
    with pointwise.on_device_of(x):
        triton_kernel.forward(x, bias.contiguous(), y.contiguous(), multiplier, activation, x)


def _backward(
    grad: Tensor, out: Tensor | None, x: Tensor | None, bias: Tensor | None, y: Tensor | None,
    multiplier: float, activation: str, need_x: bool, need_bias: bool, need_y: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from kernels.ops.add_mul_activation import triton_kernel

    saved = (None if tensor is None else tensor.contiguous() for tensor in (out, x, bias, y))
    gradients = _empty_gradients(grad, out, x, bias, y, multiplier, activation, need_x, need_bias, need_y)
    grad_x, grad_bias, grad_y = (
        gradient if needed else None for gradient, needed in zip(gradients, (need_x, need_bias, need_y), strict=True)
    )
    with pointwise.on_device_of(grad):
        triton_kernel.backward(grad.contiguous(), *saved, multiplier, activation, grad_x, grad_y, grad_bias)
    return gradients


def _check(op: str, x: Tensor, bias: Tensor, y: Tensor, multiplier: float, activation: str) -> None:
    _check_arguments(op, bias, y, multiplier, activation)
    pointwise.check(op, x, bias, y)


def _fake_forward(x: Tensor, bias: Tensor, y: Tensor, multiplier: float, activation: str) -> Tensor:
    _check("add_mul_activation", x, bias, y, multiplier, activation)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake_in_place(x: Tensor, bias: Tensor, y: Tensor, multiplier: float, activation: str) -> None:
    _check("add_mul_activation_", x, bias, y, multiplier, activation)


def _empty_gradients(
    grad: Tensor, out: Tensor | None, x: Tensor | None, bias: Tensor | None, y: Tensor | None,
    multiplier: float, activation: str, need_x: bool, need_bias: bool, need_y: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Room for (grad_x, grad_bias, grad_y), each of no elements where it is not needed."""
    shapes = (grad.shape, grad.shape[-1:], grad.shape)
    needs = (need_x, need_bias, need_y)
    return tuple(grad.new_empty(shape if needed else (0,)) for shape, needed in zip(shapes, needs, strict=True))


def _save(ctx, inputs, output) -> None:
    x, bias, y, ctx.multiplier, ctx.activation = inputs
    reads = eager.DERIVATIVE_READS[ctx.activation]
    inputs = (x, bias, y) if reads == "inputs" else (None, None, None)
    ctx.save_for_backward(output if reads == "output" else None, *inputs)


def _differentiate(ctx, grad):
    needs = ctx.needs_input_grad[:3]
    grads = _OPS.add_mul_activation_backward_triton.default(
        grad, *ctx.saved_tensors, ctx.multiplier, ctx.activation, *needs
    )
    return *(g if needed else None for g, needed in zip(grads, needs, strict=True)), None, None


def _refuse_second_derivative(ctx, *grads):
    raise RuntimeError('add_mul_activation has no second derivative: use backend="eager"')


_ARGUMENTS = "Tensor bias, Tensor y, float multiplier, str activation"
_LIBRARY.define(f"add_mul_activation_triton(Tensor x, {_ARGUMENTS}) -> Tensor")
_LIBRARY.define(f"add_mul_activation_triton_(Tensor(a!) x, {_ARGUMENTS}) -> ()")
_LIBRARY.define(
    "add_mul_activation_backward_triton(Tensor grad, Tensor? out, Tensor? x, Tensor? bias, Tensor? y, "
    "float multiplier, str activation, bool need_x, bool need_bias, bool need_y) -> (Tensor, Tensor, Tensor)"
)
for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("add_mul_activation_triton", _forward, _key)
    _LIBRARY.impl("add_mul_activation_triton_", _in_place, _key)
    _LIBRARY.impl("add_mul_activation_backward_triton", _backward, _key)
torch.library.register_autograd(
    "fused_kernels::add_mul_activation_triton", _differentiate, setup_context=_save, lib=_LIBRARY
)
torch.library.register_autograd(
    "fused_kernels::add_mul_activation_backward_triton", _refuse_second_derivative, lib=_LIBRARY
)


def _register_fakes(backend: str) -> None:
    name = "fused_kernels::add_mul_activation"
    torch.library.register_fake(f"{name}_{backend}", _fake_forward, lib=_LIBRARY)
    torch.library.register_fake(f"{name}_{backend}_", _fake_in_place, lib=_LIBRARY)
    torch.library.register_fake(f"{name}_backward_{backend}", _empty_gradients, lib=_LIBRARY)


_register_fakes("triton")


@runtime.at_trace_time
def _load_cuda() -> bool:
    runtime.load_extension("add_mul_activation")
    _register_fakes("cuda")
    return True
