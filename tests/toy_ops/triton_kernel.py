"""The toy ops' Triton kernels."""

import triton
import triton.language as tl

from kernels.device.scalar import scalar


@triton.jit
def gather_kernel(table_ptr, ids_ptr, out_ptr, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, WIDTH)
    mask = rows < count
    ids = tl.load(ids_ptr + rows, mask, other=0).to(tl.int64)
    tl.store(out_ptr + rows * WIDTH + columns, tl.load(table_ptr + ids * WIDTH + columns, mask), mask)


@triton.jit
def scatter_kernel(grad_ptr, ids_ptr, grad_table_ptr, count, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], grad_ptr.dtype.element_ty)
    for i in range(count):
        same = tl.load(ids_ptr + i).to(tl.int64) == row
        total += tl.where(same, tl.load(grad_ptr + i * WIDTH + columns), 0)
    tl.store(grad_table_ptr + row * WIDTH + columns, total)


@triton.jit
def moments_kernel(x_ptr, shift_ptr, doubled_ptr, squared_ptr, elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    z = tl.load(x_ptr + offsets, mask)
    if shift_ptr is not None:
        z -= tl.load(shift_ptr + offsets, mask)
    tl.store(doubled_ptr + offsets, 2 * z, mask)
    tl.store(squared_ptr + offsets, z * z, mask)


@triton.jit
def moments_backward_kernel(doubled_ptr, squared_ptr, x_ptr, shift_ptr, grad_x_ptr, elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    z = tl.load(x_ptr + offsets, mask)
    if shift_ptr is not None:
        z -= tl.load(shift_ptr + offsets, mask)
    grad = 2 * tl.load(doubled_ptr + offsets, mask) + 2 * z * tl.load(squared_ptr + offsets, mask)
    tl.store(grad_x_ptr + offsets, grad, mask)


@triton.jit
def cube_kernel(x_ptr, out_ptr, slope_ptr, elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    x = tl.load(x_ptr + offsets, mask)
    tl.store(out_ptr + offsets, x * x * x, mask)
    tl.store(slope_ptr + offsets, 3 * x * x, mask)


@triton.jit
def cube_backward_kernel(grad_ptr, slope_ptr, grad_x_ptr, elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    tl.store(grad_x_ptr + offsets, tl.load(grad_ptr + offsets, mask) * tl.load(slope_ptr + offsets, mask), mask)


@triton.jit
def square_kernel(x_ptr, out_ptr, elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    x = tl.load(x_ptr + offsets, mask)
    tl.store(out_ptr + offsets, x * x, mask)


@triton.jit
def sgd_kernel(weights_ptr, gradient_ptr, lr, elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    weights = tl.load(weights_ptr + offsets, mask)
    gradient = tl.load(gradient_ptr + offsets, mask)
    tl.store(weights_ptr + offsets, weights - scalar(lr, weights.dtype) * gradient, mask)
