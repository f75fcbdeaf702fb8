"""float32 rounded to tf32 for Triton kernels: to the nearest number with 10 bits behind the leading one, as tf32.cuh.

Tensor cores take the upper 19 bits of a float as tf32 and cut the others off. Operands that are cut are too small, by
some 2^-11.5 of them in the mean, and so are all terms of a sum: such errors add up as absolute values, where those of
rounding mostly cancel.

From sm_90 on cvt.rn.tf32.f32 is one instruction. Before, cvt.rna.tf32.f32 would be three, and two do: of x = ± m 2^e
half of tf32's last place is ± 2^(e - 11), and x with it added, then cut, is x rounded. One instruction is for ± 2^e,
which are x's sign and exponent, and one for the sum.

Halfway between two numbers cvt.rn takes the even one; the sum, cut, is the one further from zero. NaN stays NaN, Inf
stays Inf, and what is nearer to 2^128 than to tf32's largest number becomes Inf. What is smaller than 2^-126
becomes one of the two numbers beside it.
"""

import triton
import triton.language as tl

from ..runtime import triton_mode

INTERPRETED = tl.constexpr(triton_mode() == "interpreted")  # whose products do not cut


@tl.core.builtin
def _is_one_instruction(_semantic=None):
    """Whether the GPU that is compiled for, if it is here or not, has cvt.rn.tf32.f32."""
    return tl.constexpr(int(_semantic.builder.options.arch.removeprefix("sm")) >= 90)


@triton.jit
def _raised(x):
    power = (x.to(tl.int32, bitcast=True) & -0x800000).to(tl.float32, bitcast=True)
    return x + power * 0.00048828125  # 2^-11


@triton.jit
def rounded(values, PRECISION: tl.constexpr):
    """float32 `values` rounded to tf32 if that is the products' PRECISION; others as they are.

    The upper 19 bits hold the result, and products read no others. The lower 13 are anything, so that rounding twice
    may raise a number once more: round what is stored when it is stored, or when it is read, not both times.
    """
    if PRECISION != "tf32" or values.dtype != tl.float32:
        return values
    elif INTERPRETED:
        return (_raised(values).to(tl.int32, bitcast=True) & -0x2000).to(tl.float32, bitcast=True)
    elif _is_one_instruction():
        bits = tl.inline_asm_elementwise("cvt.rn.tf32.f32 $0, $1;", "=r,f", [values], tl.int32, is_pure=True, pack=1)
        return bits.to(tl.float32, bitcast=True)
    else:
        return _raised(values)
