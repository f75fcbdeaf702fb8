"""What products in tf32 give whose operands are rounded to the nearest, and whether a kernel's errors are of that kind.

    with RoundedProducts():
        like = reference(…)          # in float64: sums are exact, so that only what the operands were rounded by is off
    assert_rounds(actual, exact, like)

Tensor cores cut operands that nobody rounds. Each then is off by up to twice as much, and always towards zero.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

EPS = 2.0**-10  # tf32's distance from 1 to the next number


def rounded(x: Tensor, grid: float = 1.0) -> Tensor:
    """x in float32 rounded to 10 bits behind the leading one, as kernels round on x's device; x's dtype. By another
    grid it is multiplied before, and divided after: another draw of the same errors.

    What lies halfway between two numbers becomes the even one by cvt.rn.tf32.f32, which a GPU has from sm_90 on, and
    else the one that is further from zero.
    """
    single = (x * grid).float()
    bits = single.view(torch.int32)
    even = x.is_cuda and torch.cuda.get_device_capability(x.device) >= (9, 0)
    half = 0xFFF + (bits >> 13 & 1) if even else 0x1000
    return torch.where(single.isfinite(), (bits + half & -0x2000).view(torch.float32), single).to(x.dtype) / grid


class _Linear(torch.autograd.Function):
    """F.linear, each of its three products of rounded operands. Only the gradient of the weight is a
    product of matrices where there is one output: nothing is rounded for the others."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight)
        if len(weight) == 1:
            return F.linear(x, weight, bias)
        return F.linear(rounded(x), rounded(weight), bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        g = grad.flatten(0, -2)
        of_bias = g.sum(0) if ctx.needs_input_grad[2] else None
        of_weight = rounded(g).T @ rounded(x.flatten(0, -2))
        if len(weight) == 1:
            return grad * weight[0], of_weight, of_bias
        return rounded(grad) @ rounded(weight), of_weight, of_bias


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _Linear.apply(input, weight, bias)


class RoundedProducts(TorchFunctionMode):
    """Within it F.linear rounds the operands of its products, in the forward and in the backward."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear:
            return _linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class AllRounded(TorchFunctionMode):
    """Within it F.linear of several outputs and a @ b round their operands, on a grid as `rounded` has it; forward
    alone."""

    def __init__(self, grid: float = 1.0) -> None:
        super().__init__()
        self._grid = grid

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear and len(args[1]) > 1:
            x, weight, *bias = args
            return func(rounded(x, self._grid), rounded(weight, self._grid), *bias, **(kwargs or {}))
        if func is Tensor.matmul:
            return func(*(rounded(factor, self._grid) for factor in args))
        return func(*args, **(kwargs or {}))


def assert_rounds(actual: Tensor, exact: Tensor, like: Tensor, same_operands: bool = True) -> None:
    """Raise unless actual's errors are as large as those of `like`, and as often away from zero as towards it.

    same_operands: as in `like`, so that these are the very errors, but for sums that come to lie on the other side of
    where a layer's output is rounded up. The largest of others' errors varies more: up to 1.5 times in some draws.
    """
    actual, exact, like = (tensor.detach().double() for tensor in (actual, exact, like))
    error, usual = actual - exact, like - exact
    largest, most = float(error.abs().max()), float(usual.abs().max())
    times = 1.5 if same_operands else 2
    assert largest <= times * most, f"off by up to {largest:.3g}, where rounded operands are by {most:.3g}"
    mean, common = float(error.abs().mean()), float(usual.abs().mean())
    assert 0.8 * common <= mean <= 1.25 * common, f"off by {mean:.3g}, where rounded operands are by {common:.3g}"
    # A few more of some hundred weights may be rounded up than down, but these are the same ones.
    outwards = float(((error - usual) * exact.sign()).mean())
    assert abs(outwards) <= 0.2 * common, f"errors of {mean:.3g} are {outwards:.3g} further from zero than rounding's"
    apart = float((actual - like).abs().mean())
    assert not same_operands or apart <= 0.25 * common, f"{apart:.3g} from rounded operands, which are {common:.3g} off"
