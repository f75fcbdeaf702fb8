"""The kernels of the lesson: add_relu's first lines, add_mul_activation step by step, relu and gelu in several forms.

The first and the last steps, as_generated, cleaned and general, are those of the op, kernels/ops/add_mul_activation.
"""

import triton
import triton.language as tl

from kernels.device.activations import activate


@triton.jit
def one_row(x, bias, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(x + i) + tl.load(bias + i)
    tl.store(out + i, tl.maximum(z, 0.0))


@triton.jit
def six_lines(x, bias, out, n, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    z = tl.load(x + i, mask) + tl.load(bias + i % COLUMNS, mask)
    tl.store(out + i, tl.maximum(z, 0.0), mask)


# ------------------------------------------------------------------------------------------------------------------
# Between as_generated and cleaned.


@triton.jit
def renamed(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, elements, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    x = tl.load(x_ptr + offsets, mask)
    y = tl.load(y_ptr + offsets, mask)
    bias = tl.load(bias_ptr + offsets % COLUMNS, mask, eviction_policy="evict_last")
    tl.store(out_ptr + offsets, tl.sigmoid(x + 0.5 * y + bias), mask)


@triton.jit
def unhinted(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, elements, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    x = tl.load(x_ptr + offsets, mask)
    y = tl.load(y_ptr + offsets, mask)
    bias = tl.load(bias_ptr + offsets % COLUMNS, mask)
    tl.store(out_ptr + offsets, tl.sigmoid(x + 0.5 * y + bias), mask)


# ------------------------------------------------------------------------------------------------------------------
# Between cleaned and general.


@triton.jit
def _block(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, mask, COLUMNS: tl.constexpr):
    x = tl.load(x_ptr + offsets, mask)
    y = tl.load(y_ptr + offsets, mask)
    bias = tl.load(bias_ptr + offsets % COLUMNS, mask)
    tl.store(out_ptr + offsets, tl.sigmoid(x + multiplier * y + bias), mask)


@triton.jit
def split(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, elements, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= elements:
        _block(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, None, COLUMNS)
    else:
        _block(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, offsets < elements, COLUMNS)


@triton.jit
def _float32_block(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, mask, COLUMNS: tl.constexpr):
    x = tl.load(x_ptr + offsets, mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask).to(tl.float32)
    bias = tl.load(bias_ptr + offsets % COLUMNS, mask).to(tl.float32)
    tl.store(out_ptr + offsets, tl.sigmoid(x + multiplier * y + bias), mask)


@triton.jit
def in_float32(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, elements, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= elements:
        _float32_block(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, None, COLUMNS)
    else:
        _float32_block(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, offsets < elements, COLUMNS)


@triton.jit
def _short_block(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, mask, COLUMNS: tl.constexpr):
    x = tl.load(x_ptr + offsets, mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask).to(tl.float32)
    bias = tl.load(bias_ptr + offsets % COLUMNS, mask).to(tl.float32)
    tl.store(out_ptr + offsets, activate(x + multiplier * y + bias, "sigmoid"), mask)


@triton.jit
def short(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, elements, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= elements:
        _short_block(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, None, COLUMNS)
    else:
        _short_block(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, offsets, offsets < elements, COLUMNS)


# ------------------------------------------------------------------------------------------------------------------
# One thing in several forms.


@triton.jit
def relu_forms(x, out, n, FORM: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    z = tl.load(x + i, mask)
    if FORM == "maximum":
        z = tl.maximum(z, 0.0)
    elif FORM == "propagate_nan":
        z = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
    else:
        z = tl.where(z < 0, 0.0, z)
    tl.store(out + i, z, mask)


@triton.jit
def gelu_forms(
    x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, elements,
    COLUMNS: tl.constexpr, FORM: tl.constexpr, BLOCK: tl.constexpr,
):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    x = tl.load(x_ptr + offsets, mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask).to(tl.float32)
    z = x + multiplier * y + tl.load(bias_ptr + offsets % COLUMNS, mask).to(tl.float32)
    if FORM == "erf":
        tl.store(out_ptr + offsets, 0.5 * z * (1 + tl.erf(z * 0.7071067811865476)), mask)
    else:
        tl.store(out_ptr + offsets, activate(z, "gelu"), mask)
