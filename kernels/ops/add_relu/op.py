"""add_relu and add_relu_: the public functions, and the dispatcher ops of the Triton backend.

The CUDA backend's schema and autograd stand in binding.cu; here it gets its fakes, once it is loaded.
"""

import torch
from torch import Tensor

from kernels import runtime
from kernels.dispatch import pointwise
from kernels.ops.add_relu import eager

_LIBRARY = torch.library.Library("fused_kernels", "FRAGMENT")
_OPS = torch.ops.fused_kernels  # called as .default: without overloads to choose from, a call costs 0.3 µs less


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
    backend = runtime.choose(backend, x)
    if not isinstance(bias, Tensor):
        pointwise.check_are_tensors("add_relu", bias=bias)
    if backend == "cuda":
        _load_cuda()
        # Which sees to all else, autocast and gradients too, for less than it costs here.
        return _OPS.add_relu_cuda.default(x, bias)
    x, bias = pointwise.of_one_dtype(x, bias)
    if backend == "triton":
        pointwise.refuse_forward_mode("add_relu", x, bias)
        return _OPS.add_relu_triton.default(x, bias)
    pointwise.check("add_relu", x, bias)
    return eager.add_relu(x, bias)


def add_relu_(x: Tensor, bias: Tensor, *, backend: str = "auto") -> Tensor:
    """The same, written to x, which is returned; for inference: it raises if a gradient would be needed.

    An x that is not contiguous costs a temporary of its size.
    """
    backend = runtime.choose(backend, x)
    if not isinstance(bias, Tensor):
        pointwise.check_are_tensors("add_relu_", bias=bias)
    if backend == "cuda":
        _load_cuda()
        _OPS.add_relu_cuda_.default(x, bias)
        return x
    bias = pointwise.of_one_dtype(x, bias)[1]
    pointwise.refuse_gradients("add_relu", x, bias)
    if backend == "triton":
        pointwise.refuse_forward_mode("add_relu_", x, bias)
        _OPS.add_relu_triton_.default(x, bias)
    else:
        pointwise.check("add_relu_", x, bias)
        if not torch.compiler.is_compiling():  # a compiled graph has no addresses, and writes to x last
            pointwise.check_in_place("add_relu_", x, bias)
            bias = pointwise.apart_from(x, bias)
        eager.add_relu_(x, bias)
    return x


# ------------------------------------------------------------------------------------------------------------------
# Triton. Its kernels are imported when first called, so that importing this package does not import Triton.


def _forward(x: Tensor, bias: Tensor) -> Tensor:
    from kernels.ops.add_relu import triton_kernel

    pointwise.check("add_relu", x, bias)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    with pointwise.on_device_of(x):
        triton_kernel.forward(x.contiguous(), bias.contiguous(), out)
    return out


def _in_place(x: Tensor, bias: Tensor) -> None:
    from kernels.ops.add_relu import triton_kernel

    pointwise.check("add_relu_", x, bias)
    pointwise.check_in_place("add_relu_", x, bias)
    pointwise.mark_written(x)
    if not x.is_contiguous():
        x.copy_(_forward(x, bias))
        return
    with pointwise.on_device_of(x):
        triton_kernel.forward(x, bias.contiguous(), x)


def _backward(grad: Tensor, out: Tensor, need_x: bool, need_bias: bool) -> tuple[Tensor, Tensor]:
    from kernels.ops.add_relu import triton_kernel

    grad_x, grad_bias = _empty_gradients(grad, out, need_x, need_bias)
    with pointwise.on_device_of(grad):
        triton_kernel.backward(
            grad.contiguous(), out.contiguous(), grad_x if need_x else None, grad_bias if need_bias else None
        )
    return grad_x, grad_bias


def _fake_forward(x: Tensor, bias: Tensor) -> Tensor:
    pointwise.check("add_relu", x, bias)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake_in_place(x: Tensor, bias: Tensor) -> None:
    pointwise.check("add_relu_", x, bias)


def _empty_gradients(grad: Tensor, out: Tensor, need_x: bool, need_bias: bool) -> tuple[Tensor, Tensor]:
    """Room for (grad_x, grad_bias), each of no elements where it is not needed."""
    return out.new_empty(out.shape if need_x else 0), out.new_empty(out.shape[-1] if need_bias else 0)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(output)


def _differentiate(ctx, grad):
    (out,) = ctx.saved_tensors
    grads = _OPS.add_relu_backward_triton.default(grad, out, *ctx.needs_input_grad)
    return tuple(g if needed else None for g, needed in zip(grads, ctx.needs_input_grad, strict=True))


def _refuse_second_derivative(ctx, *grads):
    raise RuntimeError('add_relu has no second derivative: use backend="eager"')


_LIBRARY.define("add_relu_triton(Tensor x, Tensor bias) -> Tensor")
_LIBRARY.define("add_relu_triton_(Tensor(a!) x, Tensor bias) -> ()")
_LIBRARY.define("add_relu_backward_triton(Tensor grad, Tensor out, bool need_x, bool need_bias) -> (Tensor, Tensor)")
for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("add_relu_triton", _forward, _key)
    _LIBRARY.impl("add_relu_triton_", _in_place, _key)
    _LIBRARY.impl("add_relu_backward_triton", _backward, _key)
torch.library.register_autograd("fused_kernels::add_relu_triton", _differentiate, setup_context=_save, lib=_LIBRARY)
torch.library.register_autograd(
    "fused_kernels::add_relu_backward_triton", _refuse_second_derivative, lib=_LIBRARY
)


def _register_fakes(backend: str) -> None:
    torch.library.register_fake(f"fused_kernels::add_relu_{backend}", _fake_forward, lib=_LIBRARY)
    torch.library.register_fake(f"fused_kernels::add_relu_{backend}_", _fake_in_place, lib=_LIBRARY)
    torch.library.register_fake(f"fused_kernels::add_relu_backward_{backend}", _empty_gradients, lib=_LIBRARY)


_register_fakes("triton")


@runtime.at_trace_time
def _load_cuda() -> bool:
    runtime.load_extension("add_relu")
    _register_fakes("cuda")
    return True
