"""Compiled kernels in other programs: launcher.h launches them from C++ alone, `python -m kernels.cubin` makes them."""
