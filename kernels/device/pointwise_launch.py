"""How many elements a program of a pointwise Triton kernel takes; vector.cuh says it for CUDA."""

from .launch import interpreted


def pointwise_block(elements: int, itemsize: int) -> int:
    """Elements for a program of 4 warps: 16 bytes a thread; up to 2^18 elements only 256.

    The few keep more programs busy for a shorter time (measured on an H200). The interpreter's time goes by the
    program, not by the element.
    """
    if interpreted():
        return 1024
    return 256 if elements <= 2**18 else 128 * 16 // itemsize
