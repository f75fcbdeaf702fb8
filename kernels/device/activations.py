"""The activations and their derivatives for Triton kernels, in float32 or float64; NaN and Inf as in PyTorch.

The formulas are those of activations.cuh, which says why gelu and tanh are not erf and tanh: in float32 they take half
the instructions. Float64 uses Triton's erf, and for tanh the exponential, whose error is one of 1, not of the result.
"""

import triton
import triton.language as tl

from ..runtime import triton_mode

# The special function unit's own instructions, as in activations.cuh. The interpreter runs no assembly.
INTERPRETED = tl.constexpr(triton_mode() == "interpreted")


@triton.jit
def _reciprocal(x):
    if INTERPRETED or x.dtype == tl.float64:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _exp(x):
    if INTERPRETED or x.dtype == tl.float64:
        return tl.exp(x)
    else:
        x *= 1.4426950408889634
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _sigmoid(z):
    return _reciprocal(1.0 + _exp(-z))


@triton.jit
def _tanh(z):
    # Near zero, where 1 - e^-2|z| cancels, a polynomial: tanh(z)/z on |z| < 0.6, fitted for the least largest error.
    s = z * z
    p = (((-5.90587e-3 * s + 2.080538e-2) * s - 5.378668e-2) * s + 1.3331958e-1) * s - 3.3333299e-1
    e = _exp(-2.0 * tl.abs(z))
    large = (1.0 - e) * _reciprocal(1.0 + e)
    large = tl.where(z < 0, -large, large)
    if z.dtype == tl.float64:
        return large
    return tl.where(s < 0.36, z + z * (s * p), large)


@triton.jit
def _normal_distribution(z):
    """P(Z < z) of the normal distribution."""
    if z.dtype == tl.float64:
        return 0.5 * (1.0 + tl.erf(z * 0.7071067811865476))
    # P(Z < -|z|) = t p(t) e^(-z²/2), p fitted for the least largest relative error, 9e-8.
    t = _reciprocal(1.0 + 0.3046891477 * tl.abs(z))
    p = (((0.03674989 * t - 0.15370804) * t + 0.18772005) * t - 0.03956143) * t + 0.12179649
    p = ((p * t + 0.10311532) * t + 0.12237389) * t + 0.12151389
    tail = t * p * _exp(-0.5 * z * z)
    return tl.where(z > 0, 1.0 - tail, tail)


@triton.jit
def _twice_of_tanh(z):
    """2 u of gelu_tanh, z (1 + tanh u) / 2 = z sigmoid(2 u) with u = √(2/π) (z + 0.044715 z³)."""
    return 0.07135481627260025 * z * (z * z + 22.363860002236386)


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        return tl.where(z < 0, 0.0, z)  # not tl.maximum, which returns 0 for NaN
    elif ACTIVATION == "sigmoid":
        return _sigmoid(z)
    elif ACTIVATION == "tanh":
        return _tanh(z)
    elif ACTIVATION == "gelu":
        return z * _normal_distribution(z)
    elif ACTIVATION == "silu":
        return z * _sigmoid(z)
    elif ACTIVATION == "gelu_tanh":
        return z * _sigmoid(_twice_of_tanh(z))
    elif ACTIVATION == "leaky_relu":
        return tl.where(z > 0, z, 0.01 * z)
    else:
        tl.static_assert(ACTIVATION == "identity")
        return z


@triton.jit
def input_gradient(gradient, value, ACTIVATION: tl.constexpr):
    """gradient · act'(z); value is the output for relu, leaky_relu, sigmoid and tanh, z for gelu, gelu_tanh and silu,
    unused for identity."""
    if ACTIVATION == "relu":
        return tl.where(value <= 0, 0.0, gradient)  # a product would make Inf · 0 NaN
    elif ACTIVATION == "sigmoid":
        return gradient * (1.0 - value) * value
    elif ACTIVATION == "tanh":
        return gradient * (1.0 - value * value)
    elif ACTIVATION == "gelu":
        density = 0.3989422804014327 * _exp(-0.5 * value * value)
        return gradient * (_normal_distribution(value) + value * density)
    elif ACTIVATION == "silu":
        s = _sigmoid(value)
        return gradient * (s * (1.0 + value * (1.0 - s)))
    elif ACTIVATION == "gelu_tanh":
        u = _twice_of_tanh(value)
        e = _exp(-tl.abs(u))  # s (1 - s) = e / (1 + e)², where 1 - s would cancel
        r = _reciprocal(1.0 + e)
        square = value * value
        if value.dtype == tl.float32:  # whose square may be Inf, and 0 · Inf NaN, as PyTorch's own gradient then is
            square = tl.minimum(square, 1e4)
        slope = 1.5957691216057308 + 0.21406444881780076 * square
        return gradient * (tl.where(u < 0, e * r, r) + e * r * r * value * slope)
    elif ACTIVATION == "leaky_relu":
        return tl.where(value > 0, gradient, 0.01 * gradient)
    else:
        tl.static_assert(ACTIVATION == "identity")
        return gradient
