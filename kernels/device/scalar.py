"""A number that changes from call to call: a kernel gets its value, or a pointer to it. As scalar.cuh."""

import triton
import triton.language as tl


@triton.jit
def scalar(value):
    value = tl.to_tensor(value)  # the interpreter gives a float as it is
    if value.dtype.is_ptr():
        return tl.load(value)
    else:
        return value
