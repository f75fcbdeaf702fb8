"""float32 rounded to tf32 for Triton kernels: to the nearest number with 10 bits behind the leading one, as tf32.cuh.

Tensor cores take the upper 19 bits of a float as tf32 and cut the others off. Operands that are cut are too small, by
some 2^-11.5 of them in the mean, and so are all terms of a sum: such errors add up as absolute values, where those of
rounding mostly cancel. x with half of tf32's last place added, then cut, is x rounded; where x = ± m 2^e, this half is
± 2^(e - 11). It takes one instruction for ± 2^e, which are x's sign and exponent, and one for the sum. NaN and Inf stay
what they are, and what is beyond tf32's largest number becomes Inf, as by cvt.rna.tf32.f32, which takes three. What is
smaller than 2^-126 has no exponent, and is cut.
"""

import triton
import triton.language as tl

from kernels.runtime import triton_mode

INTERPRETED = tl.constexpr(triton_mode() == "interpreted")  # whose products do not cut


@triton.jit
def _raised(x):
    power = (x.to(tl.int32, bitcast=True) & -0x800000).to(tl.float32, bitcast=True)
    return x + power * 0.00048828125  # 2^-11


@triton.jit
def _cut(x):
    return (x.to(tl.int32, bitcast=True) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def rounded(values, PRECISION: tl.constexpr):
    """float32 `values` rounded to tf32 if that is the products' PRECISION; others as they are."""
    if PRECISION == "tf32" and values.dtype == tl.float32:
        return _cut(_raised(values))
    else:
        return values


@triton.jit
def operand(values, PRECISION: tl.constexpr):
    """`rounded` for a product that takes them at once: what it cuts off needs no instruction before."""
    if PRECISION == "tf32" and values.dtype == tl.float32:
        return _cut(_raised(values)) if INTERPRETED else _raised(values)
    else:
        return values
