"""CUDA kernels step by step: built, watched access by access on the host, timed."""
