"""Compiled kernels in other programs: launcher.h launches them from C++ alone, program.py from Python.

    python -m kernels.cubin compile triton my_package.kernels:act --name act --arch 80 90 --argument x_ptr=*fp32:16 …
    python -m kernels.cubin embed act.sm_80.cubin act.sm_90.cubin --name act_images

cubin.cmake does both in a build of CMake's; tests/cubin_program/ is an example.
"""

from .program import load

__all__ = ["load"]
