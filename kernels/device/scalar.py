"""A number that changes from call to call: a kernel gets its value, or a pointer to it. As scalar.cuh."""

import triton
import triton.language as tl


@triton.jit
def scalar(value, dtype: tl.constexpr):
    """The number as dtype."""
    if hasattr(value, "dtype"):
        if value.dtype.is_ptr():
            return tl.load(value).to(dtype)
        else:
            return value.to(dtype)
    else:  # the interpreter leaves a float as it is
        return tl.full((), value, dtype)
