"""Reductions and a matrix product in Triton: each step's kernel, what ncu counts of it, the puzzles, pictures."""
