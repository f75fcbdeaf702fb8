"""A kernel with a breakpoint, for Triton's interpreter.

    python -m lessons.n13_softmax_to_matrix_product.breakpoint_kernel
"""

import kernels  # noqa: I001, F401  before Triton, so that it interprets
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x, out, n: tl.constexpr, BLOCK: tl.constexpr):
    total = 0.0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < n, 1.0)  # wrong: what lies beyond the end must count as 0
        breakpoint()
        total += tl.sum(z)
    tl.store(out, total)


if __name__ == "__main__":
    out = torch.empty(1)
    sum_kernel[(1,)](torch.arange(6.0), out, n=6, BLOCK=4)
    print("0 + … + 5 =", out.item())
