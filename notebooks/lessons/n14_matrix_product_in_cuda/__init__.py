"""A matrix product in CUDA: its kernels, file by file, the puzzles, the banks of shared memory."""
