"""Embedding look-ups: three kernels from one id to a block of ids, and the rows, sectors and bytes that ids read."""
