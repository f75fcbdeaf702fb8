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

    Of an odd row Triton loads single elements, CUDA's threads the packs between its first and its last aligned address.
    Forward on an H200, µs, Triton / CUDA:

                    262144×33     65536×1023     2048×16384    2048×20000    1024×32768     512×50257     512×131072
        float32   24.2 / 19.8  132.9 / 128.9    66.9 / 67.3   94.4 / 97.8   70.9 / 82.2  113.6 / 72.7  219.8 / 193.7
        bfloat16  31.9 / 15.2    75.0 / 69.6    37.7 / 38.0   74.2 / 50.3   46.9 / 44.6   69.0 / 35.8   120.6 / 96.7

    A compiled graph is for any number of columns, and is Triton's.
    """
    shape = x.shape
    if not shape or is_compiling():
        return "triton"
    columns = shape[-1]
    if columns < ODD or not (columns & 1 or columns > (LONG_HALVES if x.itemsize < 4 else LONG)):
        return "triton"
    return "cuda" if cuda_runs() else "triton"
