"""Which backend is faster for which softmax: what backend="auto" goes by."""

import functools

from torch import Tensor
from torch.compiler import is_compiling

from ... import runtime

LONG, LONG_HALVES = 32768, 16384  # columns of the longest rows that are Triton's
ODD = 33  # columns from which a row of an odd number of them is CUDA's

cuda_runs = functools.cache(lambda: not runtime.why_not("cuda", "cuda"))


def auto(x: Tensor) -> str:
    """What backend="auto" is for CUDA tensors: CUDA, where it runs, for long rows and for rows of an odd number of
    columns, else Triton.

    In an odd row Triton loads single elements, CUDA's threads the packs between its first and its last aligned address.
    Forward on an H200, µs, Triton / CUDA:

                    262144×33     65536×1023     2048×16384    2048×20000    1024×32768     512×50257     512×131072
        float32   24.3 / 19.9  132.9 / 128.8    66.6 / 67.3   94.3 / 98.2   71.4 / 83.3  113.4 / 74.4  221.6 / 198.3
        bfloat16  32.0 / 15.2    75.3 / 69.9    37.7 / 38.0   73.7 / 50.3   46.4 / 44.7   69.2 / 35.9   121.2 / 98.0

    A compiled graph is for any number of columns, and is Triton's.
    """
    shape = x.shape
    if not shape or is_compiling():
        return "triton"
    columns = shape[-1]
    if columns < ODD or not (columns & 1 or columns > (LONG_HALVES if x.itemsize < 4 else LONG)):
        return "triton"
    return "cuda" if cuda_runs() else "triton"
