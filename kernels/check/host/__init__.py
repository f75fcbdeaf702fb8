"""CUDA on a CPU: kernels as g++ builds them, for tests and puzzles where no GPU is.

    cuda_on_host.h   the blocks of a grid, one after the other; …_blocks, _warps, _fibers, _numbers, vectors: its parts
    testing.cuh      an op's test_<op>.cu; testing_inputs.cuh: what it draws
    programs.py      a kernel's text as a program of its own, watched: each access is held against the buffers
    watch.cpp        the program around it; watched.h: what the text is built with; on_gpu.cu: the same on a GPU
"""
